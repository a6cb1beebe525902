// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pki_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

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
	ca := authority(t, now)
	stable := pki.State{Active: ca}
	changed := apply(t, stable, pki.StepChange, now)
	later := now.Add(3 * pki.RenewBefore) // the new one outlives the old one
	retired := apply(t, apply(t, stable, pki.StepChange, later), pki.StepRetire, later)
	lastYear, end := now.Add(pki.AuthorityLifetime-pki.RenewBefore), now.Add(pki.AuthorityLifetime)
	for name, tc := range map[string]struct {
		in   pki.Input
		want pki.Step
	}{
		"the first authority is made":                       {pki.Input{Now: now}, pki.StepCreate},
		"an authority in order stays":                       {pki.Input{State: stable, Now: now}, pki.StepWait},
		"a request changes it":                              {pki.Input{State: stable, Requested: true, Now: now}, pki.StepChange},
		"it is changed in its last year without a request":  {pki.Input{State: stable, Now: lastYear}, pki.StepChange},
		"and not before":                                    {pki.Input{State: stable, Now: lastYear.Add(-time.Second)}, pki.StepWait},
		"who is away holds up no change":                    {pki.Input{State: stable, Requested: true, Missing: []string{"a/b"}, Now: now}, pki.StepChange},
		"the old one is announced for a while":              {pki.Input{State: changed, Now: now.Add(pki.RetireAfter - time.Hour)}, pki.StepWait},
		"and retired then":                                  {pki.Input{State: changed, Now: now.Add(pki.RetireAfter)}, pki.StepRetire},
		"a retired one still verifies":                      {pki.Input{State: retired, Now: lastYear}, pki.StepWait},
		"until it ends":                                     {pki.Input{State: retired, Now: end}, pki.StepRetire},
		"a stolen one is revoked when all connected know":   {pki.Input{State: changed, Revoked: true, Now: now}, pki.StepRevoke},
		"also one that was retired before":                  {pki.Input{State: retired, Revoked: true, Now: now}, pki.StepRevoke},
		"a connected member that does not know holds it up": {pki.Input{State: changed, Revoked: true, Missing: []string{"a/b"}, Now: now.Add(pki.RevokePatience - time.Second)}, pki.StepWait},
		"for some minutes":                                  {pki.Input{State: changed, Revoked: true, Missing: []string{"a/b"}, Now: now.Add(pki.RevokePatience)}, pki.StepRevoke},
		"with nothing to revoke nothing is revoked":         {pki.Input{State: stable, Revoked: true, Now: now}, pki.StepWait},
		"an authority that may not vouch stays":             {pki.Input{State: pki.State{Active: leafOnly(t)}, Requested: true, Now: now}, pki.StepWait},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := pki.Decide(tc.in)
			if err != nil {
				t.Fatal(err)
			}
			if got.Step != tc.want || got.Why == "" {
				t.Errorf("step %s (%s), want %s", got.Step, got.Why, tc.want)
			}
			if got.Step == pki.StepWait && !got.LookAt.IsZero() && !got.LookAt.After(tc.in.Now) {
				t.Errorf("looks again at %s, which is past", got.LookAt)
			}
		})
	}
}

func apply(t *testing.T, s pki.State, step pki.Step, at time.Time) pki.State {
	t.Helper()
	next, err := pki.Apply(s, step, at)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// leafOnly is an authority whose certificate allows no authority below it.
func leafOnly(t *testing.T) pki.KeyPair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "leaf-only"}, NotBefore: now.Add(-time.Hour),
		NotAfter: now.Add(pki.AuthorityLifetime), IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pki.KeyPair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}),
	}
}

func TestAnAuthorityThatMayNotVouchIsRefusedByApplyToo(t *testing.T) {
	if _, err := pki.Apply(pki.State{Active: leafOnly(t)}, pki.StepChange, now); err == nil {
		t.Error("changed: every client of the old authority is cut off")
	}
}

// served is what the hub shows with a state.
func served(t *testing.T, s pki.State, at time.Time) *tls.Certificate {
	t.Helper()
	cert, err := pki.IssueServing(s.Active, []string{"hub.example.com"}, at)
	if err == nil {
		cert, err = s.WithBridges(cert)
	}
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// verify is what a client does that trusts one authority and nothing else.
func verify(t *testing.T, cert *tls.Certificate, root []byte, at time.Time) error {
	t.Helper()
	roots, others := x509.NewCertPool(), x509.NewCertPool()
	roots.AppendCertsFromPEM(root)
	for _, der := range cert.Certificate[1:] {
		between, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		others.AddCert(between)
	}
	_, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: others, DNSName: "hub.example.com", CurrentTime: at})
	return err
}

// A kubeconfig has one authority, for years, and no one tells it of another.
func TestAChangeLeavesNoClientBehind(t *testing.T) {
	state, at := apply(t, pki.State{}, pki.StepCreate, now), now
	var authorities [][]byte
	for range 4 {
		authorities = append(authorities, state.Active.Cert)
		state = apply(t, state, pki.StepChange, at)
		for i, old := range append(authorities, state.Active.Cert) {
			if err := verify(t, served(t, state, at), old, at); err != nil {
				t.Errorf("after %d changes a client of authority %d: %v", len(authorities), i, err)
			}
		}
		at = at.Add(pki.RetireAfter)
		state = apply(t, state, pki.StepRetire, at)
		if err := verify(t, served(t, state, at), authorities[0], at); err != nil {
			t.Errorf("a client of an authority that was retired: %v", err)
		}
	}
	if err := verify(t, served(t, state, at), authority(t, now).Cert, at); err == nil {
		t.Error("a client of an authority that was never this hub's verifies it")
	}
	t.Run("until its authority ends", func(t *testing.T) {
		end := now.Add(pki.AuthorityLifetime)
		ended := apply(t, state, pki.StepRetire, end)
		if err := verify(t, served(t, ended, end.Add(-time.Minute)), state.Active.Cert, end.Add(-time.Minute)); err != nil {
			t.Error(err)
		}
		if len(ended.Bridges) >= len(state.Bridges) {
			t.Error("what has ended is still shown")
		}
	})
	t.Run("or is revoked", func(t *testing.T) {
		revoked := apply(t, state, pki.StepRevoke, at)
		for i, old := range authorities {
			if verify(t, served(t, revoked, at), old, at) == nil {
				t.Errorf("a client of authority %d still verifies the hub", i)
			}
		}
		if err := verify(t, served(t, revoked, at), state.Active.Cert, at); err != nil {
			t.Error(err)
		}
	})
	t.Run("and what is shown does not grow for ever", func(t *testing.T) {
		many := state
		for range 20 {
			many = apply(t, many, pki.StepChange, at)
		}
		if n := len(served(t, many, at).Certificate); n > 10 {
			t.Errorf("%d certificates in each handshake", n)
		}
	})
}

// Other verifiers build chains in their own way: OpenSSL stands for curl, Python, Ruby and most of what is not Go.
func TestOpenSSLVerifiesAcrossAChange(t *testing.T) {
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("openssl is not installed")
	}
	at := time.Now()
	first := apply(t, pki.State{}, pki.StepCreate, at)
	second := apply(t, first, pki.StepChange, at)
	third := apply(t, second, pki.StepChange, at)
	dir := t.TempDir()
	write := func(name string, raw []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	shown := served(t, third, at)
	leaf := write("leaf.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: shown.Certificate[0]}))
	bridges := write("bridges.crt", third.Bridges)
	for name, trusted := range map[string]pki.State{"first": first, "second": second, "third": third} {
		root := write(name+".crt", trusted.Active.Cert)
		arguments := []string{"verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname", "hub.example.com", "-CAfile", root, "-untrusted", bridges, leaf}
		if out, err := exec.CommandContext(t.Context(), openssl, arguments...).CombinedOutput(); err != nil {
			t.Errorf("a client of the %s authority: %v: %s", name, err, out)
		}
	}
	stranger := write("stranger.crt", authority(t, at).Cert)
	if out, err := exec.CommandContext(t.Context(), openssl, "verify", "-CAfile", stranger, "-untrusted", bridges, leaf).CombinedOutput(); err == nil {
		t.Errorf("a client of another authority verifies: %s", out)
	}
}

func TestASecretKeepsTheWholeState(t *testing.T) {
	state := apply(t, apply(t, pki.State{}, pki.StepCreate, now), pki.StepChange, now)
	secret := &corev1.Secret{}
	pki.WriteSecret(secret, state)
	got, err := pki.ReadSecret(secret)
	if err != nil || !reflect.DeepEqual(got, state) {
		t.Errorf("%v, %+v", err, got)
	}
}
