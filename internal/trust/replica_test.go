// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package trust_test

import (
	"crypto/x509"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/drover-dev/drover/internal/pki"
	"github.com/drover-dev/drover/internal/testkit"
	"github.com/drover-dev/drover/internal/trust"
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
	load := func(state pki.State) {
		t.Helper()
		secret := &corev1.Secret{}
		pki.WriteSecret(secret, state)
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
	state, err := pki.Apply(pki.State{}, pki.StepCreate, clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	load(state)
	first := leaf()
	t.Run("one certificate serves until it is due", func(t *testing.T) {
		clock.Advance(pki.RenewAt(first).Sub(clock.Now()) - time.Second)
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
		for _, step := range []pki.Step{pki.StepAnnounce, pki.StepPromote} {
			if state, err = pki.Apply(state, step, clock.Now()); err != nil {
				t.Fatal(err)
			}
			load(state)
			config, err := h.ReplicaTLS()
			if err != nil {
				t.Fatal(err)
			}
			for _, cert := range []*x509.Certificate{before, config.Certificates[0].Leaf} {
				for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
					options := x509.VerifyOptions{Roots: config.RootCAs, DNSName: config.ServerName, CurrentTime: clock.Now(), KeyUsages: []x509.ExtKeyUsage{usage}}
					if _, err := cert.Verify(options); err != nil {
						t.Errorf("%s: %v", step, err)
					}
				}
			}
		}
		if leaf().Issuer.String() == before.Issuer.String() {
			t.Error("the CA of before still signs")
		}
	})
}
