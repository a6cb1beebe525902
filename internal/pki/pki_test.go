// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pki_test

import (
	"bytes"
	"crypto/x509"
	"testing"
	"time"

	"github.com/drover-dev/drover/internal/pki"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func authority(t *testing.T, at time.Time) pki.KeyPair {
	t.Helper()
	pair, err := pki.NewAuthority(at)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func TestServingCertificates(t *testing.T) {
	ca := authority(t, now)
	cert, err := pki.IssueServing(ca, []string{"hub.example.com", "127.0.0.1"}, now)
	if err != nil {
		t.Fatal(err)
	}
	verify := func(roots []byte, host string, at time.Time) error {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(roots)
		_, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: host, CurrentTime: at})
		return err
	}
	for name, tc := range map[string]struct {
		roots []byte
		host  string
		at    time.Time
		good  bool
	}{
		"a name it was made for verifies":         {ca.Cert, "hub.example.com", now, true},
		"an address it was made for verifies":     {ca.Cert, "127.0.0.1", now, true},
		"another name does not":                   {ca.Cert, "evil.example.com", now, false},
		"another authority does not vouch for it": {authority(t, now).Cert, "hub.example.com", now, false},
		"it ends": {ca.Cert, "hub.example.com", now.Add(pki.ServingLifetime + time.Minute), false},
		"a clock that is some minutes behind does": {ca.Cert, "hub.example.com", now.Add(-10 * time.Minute), true},
	} {
		t.Run(name, func(t *testing.T) {
			if err := verify(tc.roots, tc.host, tc.at); (err == nil) != tc.good {
				t.Errorf("verify: %v, want good=%t", err, tc.good)
			}
		})
	}
	t.Run("it is renewed while a third of its life is left", func(t *testing.T) {
		left := cert.Leaf.NotAfter.Sub(pki.RenewAt(cert.Leaf))
		if left < pki.ServingLifetime/3 || left > pki.ServingLifetime/3+time.Hour {
			t.Errorf("renewed %s before its end", left)
		}
	})
}

func TestDecide(t *testing.T) {
	ca, next := authority(t, now), authority(t, now)
	stable := pki.State{Active: ca}
	announced := pki.State{Active: ca, Next: next, Changed: now}
	replaced := pki.State{Active: next, Old: ca.Cert, Changed: now}
	for name, tc := range map[string]struct {
		in   pki.Input
		want pki.Step
	}{
		"the first authority is made":                       {pki.Input{Now: now}, pki.StepCreate},
		"an authority in order stays":                       {pki.Input{State: stable, Now: now}, pki.StepWait},
		"a request starts a change":                         {pki.Input{State: stable, Requested: true, Now: now}, pki.StepAnnounce},
		"a change starts by itself a year before the end":   {pki.Input{State: stable, Now: now.Add(pki.AuthorityLifetime - pki.RenewBefore)}, pki.StepAnnounce},
		"a member that does not know the next one holds it": {pki.Input{State: announced, Missing: []string{"a/b"}, Now: now}, pki.StepWait},
		"a second request does not restart a change":        {pki.Input{State: announced, Requested: true, Missing: []string{"a/b"}, Now: now}, pki.StepWait},
		"when all know the next one it signs":               {pki.Input{State: announced, Now: now}, pki.StepPromote},
		"force does not wait":                               {pki.Input{State: announced, Forced: true, Missing: []string{"a/b"}, Now: now}, pki.StepPromote},
		"an ending authority does not wait for ever":        {pki.Input{State: announced, Missing: []string{"a/b"}, Now: now.Add(pki.AuthorityLifetime - pki.ForceBefore)}, pki.StepPromote},
		"a replaced one is announced for a while":           {pki.Input{State: replaced, Now: now.Add(pki.RetireAfter - time.Hour)}, pki.StepWait},
		"or as soon as a person asks":                       {pki.Input{State: replaced, Retired: true, Now: now}, pki.StepRetire},
		"and retired then":                                  {pki.Input{State: replaced, Now: now.Add(pki.RetireAfter)}, pki.StepRetire},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := pki.Decide(tc.in)
			if err != nil {
				t.Fatal(err)
			}
			if got.Step != tc.want {
				t.Errorf("step %s (%s), want %s", got.Step, got.Why, tc.want)
			}
		})
	}
}

func TestAChangeNeverLeavesAMomentWithoutCommonTrust(t *testing.T) {
	state := pki.State{}
	at := now
	var signers [][]byte
	for _, want := range []pki.Step{pki.StepCreate, pki.StepAnnounce, pki.StepPromote, pki.StepRetire} {
		in := pki.Input{State: state, Requested: want == pki.StepAnnounce, Now: at}
		got, err := pki.Decide(in)
		if err != nil {
			t.Fatal(err)
		}
		if got.Step != want {
			t.Fatalf("step %s, want %s", got.Step, want)
		}
		before := state.Bundle()
		if state, err = pki.Apply(state, got.Step, at); err != nil {
			t.Fatal(err)
		}
		if len(before) > 0 && !bytes.Contains(before, state.Active.Cert) {
			t.Fatalf("step %s lets an authority sign that was not announced before", got.Step)
		}
		signers = append(signers, state.Active.Cert)
		at = at.Add(pki.RetireAfter)
	}
	if bytes.Equal(signers[0], signers[3]) || len(state.Old) > 0 {
		t.Error("the change did not come to its end")
	}
}
