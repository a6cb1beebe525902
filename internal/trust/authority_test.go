// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package trust_test

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
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/drover-dev/drover/internal/trust"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func authority(t *testing.T, at time.Time) trust.KeyPair {
	t.Helper()
	pair, err := trust.NewAuthority(at)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func TestServingCertificates(t *testing.T) {
	ca := authority(t, now)
	cert, err := trust.IssueServing(ca, []string{"hub.example.com", "127.0.0.1"}, now)
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
		"a name in it is verified":             {ca.Cert, "hub.example.com", now, true},
		"an address in it is verified":         {ca.Cert, "127.0.0.1", now, true},
		"another name is refused":              {ca.Cert, "evil.example.com", now, false},
		"another authority does not verify it": {authority(t, now).Cert, "hub.example.com", now, false},
		"it expires": {
			ca.Cert, "hub.example.com", now.Add(trust.ServingLifetime + time.Minute), false,
		},
		"a clock that is some minutes behind verifies it": {ca.Cert, "hub.example.com", now.Add(-10 * time.Minute), true},
	} {
		t.Run(name, func(t *testing.T) {
			if err := verify(tc.roots, tc.host, tc.at); (err == nil) != tc.good {
				t.Errorf("got %v, want it verified: %t", err, tc.good)
			}
		})
	}
	t.Run("it is renewed when a third of its lifetime is left", func(t *testing.T) {
		left := cert.Leaf.NotAfter.Sub(trust.RenewAt(cert.Leaf))
		if left < trust.ServingLifetime/3 || left > trust.ServingLifetime/3+time.Hour {
			t.Errorf("it is renewed %s before its end, want a third of %s", left, trust.ServingLifetime)
		}
	})
}

func TestDecide(t *testing.T) {
	ca := authority(t, now)
	stable := trust.State{Active: ca}
	changed := apply(t, stable, trust.StepChange, now)
	later := now.Add(3 * trust.RenewBefore) // the new authority outlives the old one
	retired := apply(t, apply(t, stable, trust.StepChange, later), trust.StepRetire, later)
	lastYear, end := now.Add(trust.AuthorityLifetime-trust.RenewBefore), now.Add(trust.AuthorityLifetime)
	for name, tc := range map[string]struct {
		in   trust.Input
		want trust.Step
	}{
		"the first authority is created": {trust.Input{Now: now}, trust.StepCreate},
		"a valid authority stays":        {trust.Input{State: stable, Now: now}, trust.StepWait},
		"a request causes a change": {trust.Input{State: stable, Requested: true, Now: now},
			trust.StepChange},
		"the last year causes a change without a request": {trust.Input{State: stable, Now: lastYear}, trust.StepChange},
		"earlier than the last year causes no change": {trust.Input{State: stable, Now: lastYear.Add(-time.Second)},
			trust.StepWait},
		"a missing member does not delay a change": {
			trust.Input{State: stable, Requested: true, Missing: []string{"a/b"}, Now: now},
			trust.StepChange},
		"the old authority is announced for some time": {
			trust.Input{State: changed, Now: now.Add(trust.RetireAfter - time.Hour)},
			trust.StepWait},
		"the old authority is retired then": {
			trust.Input{State: changed, Now: now.Add(trust.RetireAfter)}, trust.StepRetire,
		},
		"a retired authority is still cross-signed": {trust.Input{State: retired, Now: lastYear}, trust.StepWait},
		"a retired authority ends":                  {trust.Input{State: retired, Now: end}, trust.StepRetire},
		"an old authority is revoked when all connected members know the new one": {
			trust.Input{State: changed, Revoked: true, Now: now},
			trust.StepRevoke},
		"a retired authority can be revoked": {trust.Input{State: retired, Revoked: true, Now: now}, trust.StepRevoke},
		"a connected member that does not know the new authority delays the revocation": {trust.Input{State: changed,
			Revoked: true,
			Missing: []string{"a/b"}, Now: now.Add(trust.RevokePatience - time.Second)}, trust.StepWait},
		"the delay of the revocation is bounded": {trust.Input{State: changed, Revoked: true, Missing: []string{"a/b"},
			Now: now.Add(trust.RevokePatience)}, trust.StepRevoke},
		"without an old authority nothing is revoked": {trust.Input{State: stable, Revoked: true, Now: now}, trust.StepWait},
		"an authority that cannot sign another one stays": {trust.Input{State: trust.State{Active: leafOnly(t)},
			Requested: true,
			Now:       now}, trust.StepWait},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := trust.Decide(tc.in)
			if err != nil {
				t.Fatal(err)
			}
			if got.Step != tc.want || got.Why == "" {
				t.Errorf("got the step %s (%s), want %s with a reason", got.Step, got.Why, tc.want)
			}
			if got.Step == trust.StepWait && !got.LookAt.IsZero() && !got.LookAt.After(tc.in.Now) {
				t.Errorf("the next look is at %s, want a time after %s", got.LookAt, tc.in.Now)
			}
		})
	}
}

func apply(t *testing.T, s trust.State, step trust.Step, at time.Time) trust.State {
	t.Helper()
	next, err := trust.Apply(s, step, at)
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// leafOnly returns an authority whose certificate allows no authority below it.
func leafOnly(t *testing.T) trust.KeyPair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "leaf-only"},
		NotBefore: now.Add(-time.Hour),
		NotAfter:  now.Add(trust.AuthorityLifetime), IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return trust.KeyPair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}),
	}
}

func TestApplyRefusesAnAuthorityThatCannotSignAnother(t *testing.T) {
	if _, err := trust.Apply(trust.State{Active: leafOnly(t)}, trust.StepChange, now); err == nil {
		t.Error("the authority was changed, want an error, because its clients would be cut off")
	}
}

// served returns the certificate that the hub presents with a state.
func served(t *testing.T, s trust.State, at time.Time) *tls.Certificate {
	t.Helper()
	cert, err := trust.IssueServing(s.Active, []string{"hub.example.com"}, at)
	if err == nil {
		cert, err = s.WithBridges(cert)
	}
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// verify verifies a certificate as a client does that trusts only one authority.
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
	_, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: others, DNSName: "hub.example.com",
		CurrentTime: at})
	return err
}

// A kubeconfig contains one authority for years, and nothing updates it.
func TestClientsOfEarlierAuthoritiesVerifyTheHub(t *testing.T) {
	state, at := apply(t, trust.State{}, trust.StepCreate, now), now
	var authorities [][]byte
	for range 4 {
		authorities = append(authorities, state.Active.Cert)
		state = apply(t, state, trust.StepChange, at)
		for i, old := range append(authorities, state.Active.Cert) {
			if err := verify(t, served(t, state, at), old, at); err != nil {
				t.Errorf("after %d changes a client of authority %d: got %v, want it verified", len(authorities), i, err)
			}
		}
		at = at.Add(trust.RetireAfter)
		state = apply(t, state, trust.StepRetire, at)
		if err := verify(t, served(t, state, at), authorities[0], at); err != nil {
			t.Errorf("a client of a retired authority: got %v, want it verified", err)
		}
	}
	if err := verify(t, served(t, state, at), authority(t, now).Cert, at); err == nil {
		t.Error("a client of a foreign authority verifies the hub, want an error")
	}
	t.Run("until their authority ends", func(t *testing.T) {
		end := now.Add(trust.AuthorityLifetime)
		ended := apply(t, state, trust.StepRetire, end)
		if err := verify(t, served(t, ended, end.Add(-time.Minute)), state.Active.Cert, end.Add(-time.Minute)); err != nil {
			t.Error(err)
		}
		if len(ended.Bridges) >= len(state.Bridges) {
			t.Error("a bridge that has ended is still served, want it dropped")
		}
	})
	t.Run("until their authority is revoked", func(t *testing.T) {
		revoked := apply(t, state, trust.StepRevoke, at)
		for i, old := range authorities {
			if verify(t, served(t, revoked, at), old, at) == nil {
				t.Errorf("a client of revoked authority %d verifies the hub, want an error", i)
			}
		}
		if err := verify(t, served(t, revoked, at), state.Active.Cert, at); err != nil {
			t.Error(err)
		}
	})
	t.Run("with a bounded number of certificates", func(t *testing.T) {
		many := state
		for range 20 {
			many = apply(t, many, trust.StepChange, at)
		}
		if n := len(served(t, many, at).Certificate); n > 10 {
			t.Errorf("got %d certificates in each handshake, want at most 10", n)
		}
	})
}

// Other verifiers build chains in their own ways. OpenSSL stands for curl, Python, Ruby and most programs that are not
// written in Go.
func TestOpenSSLVerifiesAfterChanges(t *testing.T) {
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("openssl is not installed")
	}
	at := time.Now()
	first := apply(t, trust.State{}, trust.StepCreate, at)
	second := apply(t, first, trust.StepChange, at)
	third := apply(t, second, trust.StepChange, at)
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
	for name, trusted := range map[string]trust.State{"first": first, "second": second, "third": third} {
		root := write(name+".crt", trusted.Active.Cert)
		arguments := []string{"verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname", "hub.example.com",
			"-CAfile", root, "-untrusted", bridges, leaf}
		if out, err := exec.CommandContext(t.Context(), openssl, arguments...).CombinedOutput(); err != nil {
			t.Errorf("a client of the %s authority: got %v: %s, want it verified", name, err, out)
		}
	}
	stranger := write("stranger.crt", authority(t, at).Cert)
	if out, err := exec.CommandContext(t.Context(), openssl, "verify", "-CAfile", stranger, "-untrusted", bridges,
		leaf).CombinedOutput(); err == nil {
		t.Errorf("a client of a foreign authority: got %s, want an error", out)
	}
}

func TestSecretKeepsTheWholeState(t *testing.T) {
	state := apply(t, apply(t, trust.State{Identity: trust.Identity("a-uid")}, trust.StepCreate, now), trust.StepChange,
		now)
	secret := &corev1.Secret{}
	trust.WriteSecret(secret, state)
	got, err := trust.ReadSecret(secret)
	if err != nil || !reflect.DeepEqual(got, state) {
		t.Errorf("got %+v, %v, want %+v", got, err, state)
	}
}

// Agents identify the hub by its identity, whatever its authority is.
func TestIdentityOutlivesEveryAuthority(t *testing.T) {
	state := trust.State{Identity: trust.Identity("a-uid")}
	for _, step := range []trust.Step{trust.StepCreate, trust.StepWait, trust.StepChange, trust.StepRetire,
		trust.StepChange, trust.StepRevoke} {
		if state = apply(t, state, step, now); state.Identity != "drover-hub:a-uid" {
			t.Fatalf("after %s the identity is %q, want it unchanged", step, state.Identity)
		}
	}
	secret := &corev1.Secret{}
	trust.WriteSecret(secret, state)
	if trust.Identify(secret, trust.Identity("another")) {
		t.Error("an identity was replaced, want it kept")
	}
	delete(secret.Data, "identity")
	if !trust.Identify(secret, trust.Identity("another")) || string(secret.Data["identity"]) != "drover-hub:another" {
		t.Errorf("the Secret of an earlier version gets the identity %q, want drover-hub:another", secret.Data["identity"])
	}
	if trust.Identify(&corev1.Secret{}, trust.Identity("another")) {
		t.Error("a Secret without an authority gets an identity, want none")
	}
	for _, malformed := range []string{"a-uid", "drover-hub:", "drover-hub:a b", "drover-hub:a\n", "x drover-hub:a",
		"drover-hub:" + strings.Repeat("a", 65)} {
		secret.Data["identity"] = []byte(malformed)
		if _, err := trust.ReadSecret(secret); err == nil {
			t.Errorf("the identity %q is accepted, want an error", malformed)
		}
	}
}
