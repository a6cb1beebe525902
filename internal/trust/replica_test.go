// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package trust_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/testkit"
)

func TestReplicaTLS(t *testing.T) {
	clock := testkit.NewClock()
	h, err := trust.New([]string{"https://hub.example.com"}, nil, clock.Now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.ReplicaTLS(); !errors.Is(err, trust.ErrNoAuthority) {
		t.Fatalf("before there is a CA: got %v, want %v", err, trust.ErrNoAuthority)
	}
	load := func(state trust.State) {
		t.Helper()
		secret := &corev1.Secret{}
		trust.WriteSecret(secret, state)
		if err := h.LoadAuthority(secret); err != nil {
			t.Fatal(err)
		}
	}
	leaf := func() *x509.Certificate {
		t.Helper()
		config, err := h.ReplicaTLS()
		if err != nil {
			t.Fatal(err)
		}
		return config.Certificates[0].Leaf
	}
	state, err := trust.Apply(trust.State{}, trust.StepCreate, clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	load(state)
	first := leaf()
	t.Run("a certificate is used until it must be renewed", func(t *testing.T) {
		clock.Advance(trust.RenewAt(first).Sub(clock.Now()) - time.Second)
		if !leaf().Equal(first) {
			t.Error("the certificate was renewed too early, want the same")
		}
		clock.Advance(2 * time.Second)
		if leaf().Equal(first) {
			t.Error("the certificate was not renewed, want a new one")
		}
	})
	t.Run("replicas accept each other at every step of a change of the CA", func(t *testing.T) {
		before := leaf()
		lagging, err := h.ReplicaTLS() // the configuration of a replica that has not loaded the later states
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range []trust.Step{trust.StepChange, trust.StepRetire} {
			if state, err = trust.Apply(state, step, clock.Now()); err != nil {
				t.Fatal(err)
			}
			load(state)
			config, err := h.ReplicaTLS()
			if err != nil {
				t.Fatal(err)
			}
			for _, cert := range []*x509.Certificate{before, config.Certificates[0].Leaf} {
				for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
					if step == trust.StepRetire && cert == before {
						continue // no replica uses it for that long
					}
					options := x509.VerifyOptions{Roots: config.RootCAs, DNSName: config.ServerName, CurrentTime: clock.Now(),
						KeyUsages: []x509.ExtKeyUsage{usage}}
					if _, err := cert.Verify(options); err != nil {
						t.Errorf("%s: got %v, want the certificate verified", step, err)
					}
				}
			}
		}
		ahead, err := h.ReplicaTLS()
		if err != nil {
			t.Fatal(err)
		}
		if err := meet(t, lagging, ahead, clock.Now); err != nil {
			t.Errorf("a connection from a replica that lags behind: got %v, want no error", err)
		}
		if leaf().Issuer.String() == before.Issuer.String() {
			t.Error("the certificate is signed by the old CA, want the new one")
		}
	})
}

// meet makes a connection between two replicas.
func meet(t *testing.T, client, server *tls.Config, now func() time.Time) error {
	t.Helper()
	client, server = client.Clone(), server.Clone()
	client.Time, server.Time = now, now
	server.ClientCAs = server.ClientCAs.Clone()
	server.ClientAuth = tls.RequestClientCert // the server may have retired the authority of the client
	near, far := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		defer far.Close()
		_ = tls.Server(far, server).HandshakeContext(t.Context())
	}()
	err := tls.Client(near, client).HandshakeContext(t.Context())
	_ = near.Close()
	<-served
	return err
}
