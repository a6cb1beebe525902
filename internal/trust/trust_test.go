// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package trust_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/testkit"
)

// world is a holder with a clock and a count of its changes.
type world struct {
	*trust.Holder
	t       *testing.T
	clock   *testkit.Clock
	changes int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, clock: testkit.NewClock()}
	holder, err := trust.New([]string{"https://hub.example.com", "https://10.0.0.1:8443"}, []string{"localhost"},
		w.clock.Now)
	if err != nil {
		t.Fatal(err)
	}
	w.Holder = holder
	holder.OnChange(func() { w.changes++ })
	return w
}

func (w *world) authority() trust.KeyPair {
	w.t.Helper()
	pair, err := trust.NewAuthority(w.clock.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	return pair
}

func (w *world) load(state trust.State) {
	w.t.Helper()
	secret := &corev1.Secret{}
	trust.WriteSecret(secret, state)
	if err := w.LoadAuthority(secret); err != nil {
		w.t.Fatal(err)
	}
}

// given returns an operator's Secret with a certificate for hub.example.com.
func (w *world) given(ca trust.KeyPair, withCA bool) *corev1.Secret {
	w.t.Helper()
	cert, err := trust.IssueServing(ca, []string{"hub.example.com"}, w.clock.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	secret := &corev1.Secret{Data: tlsData(w.t, cert)}
	if withCA {
		secret.Data["ca.crt"] = ca.Cert
	}
	return secret
}

// tlsData returns the data of a Secret of type kubernetes.io/tls for a certificate.
func tlsData(t testing.TB, cert *tls.Certificate) map[string][]byte {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{
		corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}),
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
	}
}

// serves fails the test unless the served certificate is valid for a host and verified by a CA.
func (w *world) serves(ca trust.KeyPair, host string) *tls.Certificate {
	w.t.Helper()
	cert, err := w.GetCertificate(&tls.ClientHelloInfo{})
	if err != nil {
		w.t.Fatal(err)
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Cert)
	for _, der := range cert.Certificate[1:] {
		bridge, err := x509.ParseCertificate(der)
		if err != nil {
			w.t.Fatal(err)
		}
		between.AddCert(bridge)
	}
	if _, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, DNSName: host,
		CurrentTime: w.clock.Now()}); err != nil {
		w.t.Errorf("for %s: got %v, want the certificate verified", host, err)
	}
	return cert
}

func TestHolder(t *testing.T) {
	for name, test := range map[string]func(*world){
		"without an authority nothing is served":                                  testEmpty,
		"a certificate of the active authority is served for all hosts":           testServes,
		"a certificate is renewed before it expires":                              testRenews,
		"a new authority signs at once, and clients of the old one still connect": testChanged,
		"a revoked authority has no bridge":                                       testRevoked,
		"the whole chain of the operator's certificate is served":                 testGivenChain,
		"an unusable Secret changes nothing":                                      testBadSecret,
		"the operator's certificate is preferred, and its CA is in the bundle":    testGiven,
		"an unusable operator's Secret changes nothing":                           testBadGiven,
		"nothing is announced while the operator's certificate is awaited":        testAwaitsGiven,
		"a missing operator's certificate does not block":                         testGivenAbsent,
	} {
		t.Run(name, func(t *testing.T) { test(newWorld(t)) })
	}
}

func testEmpty(w *world) {
	if _, err := w.GetCertificate(&tls.ClientHelloInfo{}); !errors.Is(err, trust.ErrNoAuthority) {
		w.t.Errorf("certificate: got %v, want %v", err, trust.ErrNoAuthority)
	}
	if err := w.Ready(); !errors.Is(err, trust.ErrNoAuthority) {
		w.t.Errorf("ready: got %v, want %v", err, trust.ErrNoAuthority)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	cancel()
	if err := w.Wait(ctx); !errors.Is(err, trust.ErrNoAuthority) || !errors.Is(err, context.Canceled) {
		w.t.Errorf("wait: got %v, want %v and %v", err, trust.ErrNoAuthority, context.Canceled)
	}
	if len(w.Bundle()) > 0 {
		w.t.Error("there is a bundle, want none")
	}
}

func testServes(w *world) {
	ca := w.authority()
	w.load(trust.State{Active: ca})
	first := w.serves(ca, "hub.example.com")
	for _, host := range []string{"10.0.0.1", "localhost"} {
		if w.serves(ca, host) != first {
			w.t.Error("a handshake made another certificate, want the same")
		}
	}
	if err := errors.Join(w.Ready(), w.Wait(w.t.Context())); err != nil {
		w.t.Error(err)
	}
	w.load(trust.State{Active: ca})
	if w.changes != 1 {
		w.t.Errorf("got %d changes, want 1", w.changes)
	}
}

func testRenews(w *world) {
	ca := w.authority()
	w.load(trust.State{Active: ca})
	first := w.serves(ca, "localhost")
	w.clock.Advance(trust.ServingLifetime / 2)
	if w.serves(ca, "localhost") != first {
		w.t.Error("the certificate was renewed after half its lifetime, want the same")
	}
	w.clock.Advance(trust.ServingLifetime / 4)
	second := w.serves(ca, "localhost")
	if second == first || !second.Leaf.NotAfter.After(first.Leaf.NotAfter) {
		w.t.Error("the certificate was not renewed after three quarters of its lifetime, want a later one")
	}
	if w.changes != 1 {
		w.t.Errorf("got %d changes, want 1, because a renewal does not concern agents", w.changes)
	}
}

// changed returns a state and the state after a change of the authority.
func (w *world) changed() (before, after trust.State) {
	w.t.Helper()
	before = trust.State{Active: w.authority()}
	after, err := trust.Apply(before, trust.StepChange, w.clock.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	return before, after
}

func testChanged(w *world) {
	before, after := w.changed()
	w.load(before)
	w.serves(before.Active, "localhost")
	w.load(after)
	w.serves(after.Active, "localhost")
	w.serves(before.Active, "localhost") // a client that trusts only the old one
	if want := string(slices.Concat(after.Active.Cert, before.Active.Cert)); string(w.Bundle()) != want {
		w.t.Error("the bundle differs, want the new and the old authority")
	}
	if w.changes != 2 {
		w.t.Errorf("got %d changes, want 2", w.changes)
	}
}

func testRevoked(w *world) {
	before, after := w.changed()
	w.load(after)
	w.serves(before.Active, "localhost")
	retired := after
	retired.Old = nil
	w.load(retired)
	w.serves(before.Active, "localhost")
	retired.Bridges = nil
	w.load(retired)
	if n := len(w.serves(after.Active, "localhost").Certificate); n != 1 {
		w.t.Errorf("got %d certificates, want 1", n)
	}
}

// testGivenChain checks that operators can also cross-sign when they change their own CA.
func testGivenChain(w *world) {
	before, after := w.changed()
	w.load(trust.State{Active: w.authority()})
	secret := w.given(after.Active, true)
	secret.Data[corev1.TLSCertKey] = append(secret.Data[corev1.TLSCertKey], after.Bridges...)
	if err := w.LoadGiven(secret); err != nil {
		w.t.Fatal(err)
	}
	w.serves(after.Active, "hub.example.com")
	w.serves(before.Active, "hub.example.com")
}

func testBadSecret(w *world) {
	ca, other := w.authority(), w.authority()
	w.load(trust.State{Identity: trust.Identity("a-uid"), Active: ca})
	for name, state := range map[string]trust.State{
		"no data":                      {},
		"no key":                       {Active: trust.KeyPair{Cert: other.Cert}},
		"the key of another CA":        {Active: trust.KeyPair{Cert: other.Cert, Key: ca.Key}},
		"no certificate":               {Active: trust.KeyPair{Cert: []byte("x"), Key: ca.Key}},
		"something else in the bundle": {Active: ca, Old: other.Key},
		"a key among the cross-signed": {Active: ca, Bridges: other.Key},
		"a malformed identity":         {Active: ca, Identity: "hub"},
	} {
		secret := &corev1.Secret{}
		trust.WriteSecret(secret, state)
		if err := w.LoadAuthority(secret); err == nil {
			w.t.Errorf("%s: it was accepted, want an error", name)
		}
	}
	w.serves(ca, "localhost")
	if string(w.Bundle()) != string(ca.Cert) || w.changes != 1 || w.Identity() != "drover-hub:a-uid" {
		w.t.Errorf("the bundle is %q after %d changes, the identity is %q, want all unchanged",
			w.Bundle(), w.changes, w.Identity())
	}
}

func testGiven(w *world) {
	own, operators := w.authority(), w.authority()
	w.load(trust.State{Active: own})
	if err := w.LoadGiven(w.given(operators, true)); err != nil {
		w.t.Fatal(err)
	}
	w.serves(operators, "hub.example.com")
	if string(w.Bundle()) != string(slices.Concat(own.Cert, operators.Cert)) {
		w.t.Error("the bundle differs, want the hub's and the operator's CA")
	}
	// A certificate that the operator has renewed under the same CA is served at once, and does not concern agents.
	before := w.changes
	if err := w.LoadGiven(w.given(operators, true)); err != nil {
		w.t.Fatal(err)
	}
	if w.changes != before {
		w.t.Errorf("got %d changes after the renewal, want %d", w.changes, before)
	}
	if err := w.LoadGiven(w.given(operators, false)); err != nil {
		w.t.Fatal(err)
	}
	if string(w.Bundle()) != string(own.Cert) || w.changes != before+1 {
		w.t.Errorf("the bundle is %q after %d changes, want only the hub's CA after one", w.Bundle(), w.changes-before)
	}
}

func testBadGiven(w *world) {
	own, operators := w.authority(), w.authority()
	w.load(trust.State{Active: own})
	good := w.given(operators, true)
	if err := w.LoadGiven(good); err != nil {
		w.t.Fatal(err)
	}
	noKey, badCA := good.DeepCopy(), w.given(operators, true)
	delete(noKey.Data, "tls.key")
	badCA.Data["ca.crt"] = []byte("x")
	for _, secret := range []*corev1.Secret{{}, noKey, badCA} {
		if err := w.LoadGiven(secret); err == nil {
			w.t.Error("the Secret was accepted, want an error")
		}
	}
	w.serves(operators, "hub.example.com")
}

func testAwaitsGiven(w *world) {
	own, operators := w.authority(), w.authority()
	w.AwaitGiven()
	w.load(trust.State{Active: own})
	if err := w.Ready(); !errors.Is(err, trust.ErrNoAuthority) || len(w.Bundle()) > 0 {
		w.t.Errorf("ready: got %v with the bundle %q, want %v without one", err, w.Bundle(), trust.ErrNoAuthority)
	}
	if _, err := w.GetCertificate(&tls.ClientHelloInfo{}); !errors.Is(err, trust.ErrNoAuthority) {
		w.t.Errorf("certificate: got %v, want %v", err, trust.ErrNoAuthority)
	}
	before := w.changes
	if err := w.LoadGiven(w.given(operators, false)); err != nil {
		w.t.Fatal(err)
	}
	if err := w.Wait(w.t.Context()); err != nil || w.changes != before+1 {
		w.t.Errorf("wait: got %v after %d changes, want no error after 1", err, w.changes-before)
	}
	w.serves(operators, "hub.example.com")
}

func testGivenAbsent(w *world) {
	own, operators := w.authority(), w.authority()
	w.AwaitGiven()
	w.GivenAbsent()
	if w.Ready() == nil {
		w.t.Error("the holder is ready without an authority, want an error")
	}
	w.load(trust.State{Active: own})
	if err := w.Wait(w.t.Context()); err != nil {
		w.t.Error(err)
	}
	w.serves(own, "hub.example.com")
	if err := w.LoadGiven(w.given(operators, true)); err != nil {
		w.t.Fatal(err)
	}
	w.GivenAbsent() // deleted by mistake
	w.serves(operators, "hub.example.com")
}

func TestHolderIsSafeForConcurrentUse(t *testing.T) {
	w := newWorld(t)
	holder, err := trust.New([]string{"https://hub.example.com"}, nil, w.clock.Now)
	if err != nil {
		t.Fatal(err)
	}
	before, after := w.changed()
	states := []trust.State{before, after}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for range 20 {
				secret := &corev1.Secret{}
				trust.WriteSecret(secret, states[i%2])
				if err := holder.LoadAuthority(secret); err != nil {
					t.Error(err)
				}
				if _, err := holder.GetCertificate(&tls.ClientHelloInfo{}); err != nil {
					t.Error(err)
				}
				holder.Bundle()
				holder.OnChange(func() {})
			}
		})
	}
	all.Wait()
}

func TestURLWithoutAHostIsRefused(t *testing.T) {
	if _, err := trust.New([]string{"https://"}, nil, testkit.NewClock().Now); err == nil {
		t.Error("the URL https:// was accepted, want an error")
	}
}
