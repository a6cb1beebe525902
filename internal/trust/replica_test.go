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
		t.Fatalf("before there is a CA: %v", err)
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
	t.Run("one certificate serves until it is due", func(t *testing.T) {
		clock.Advance(trust.RenewAt(first).Sub(clock.Now()) - time.Second)
		if !leaf().Equal(first) {
			t.Error("renewed early")
		}
		clock.Advance(2 * time.Second)
		if leaf().Equal(first) {
			t.Error("not renewed")
		}
	})
	t.Run("through a change of the CA the replicas know each other at every step", func(t *testing.T) {
		before := leaf()
		lagging, err := h.ReplicaTLS() // of a replica that has not loaded what follows
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
						continue // no replica shows it for that long
					}
					options := x509.VerifyOptions{Roots: config.RootCAs, DNSName: config.ServerName, CurrentTime: clock.Now(),
						KeyUsages: []x509.ExtKeyUsage{usage}}
					if _, err := cert.Verify(options); err != nil {
						t.Errorf("%s: %v", step, err)
					}
				}
			}
		}
		ahead, err := h.ReplicaTLS()
		if err != nil {
			t.Fatal(err)
		}
		if err := meet(t, lagging, ahead, clock.Now); err != nil {
			t.Errorf("one that lags behind does not know one that is ahead: %v", err)
		}
		if leaf().Issuer.String() == before.Issuer.String() {
			t.Error("the CA of before still signs")
		}
	})
}

// meet makes a connection between two replicas.
func meet(t *testing.T, client, server *tls.Config, now func() time.Time) error {
	t.Helper()
	client, server = client.Clone(), server.Clone()
	client.Time, server.Time = now, now
	server.ClientCAs = server.ClientCAs.Clone()
	server.ClientAuth = tls.RequestClientCert // the one that is ahead may have retired the other's authority
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
