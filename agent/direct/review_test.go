// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	authenticationv1 "k8s.io/api/authentication/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/signin/token"
	"github.com/drover-dev/drover/test/testkit"
)

func byAPIServer(a *protocol.DirectAccess) { a.Mode = string(v1.AuthorizedEndpointAPIServer) }

// ask sends a request to the endpoint that serves an API server.
func (m *member) ask(method, path, body string) (int, string) {
	r := httptest.NewRequestWithContext(m.t.Context(), method, path, strings.NewReader(body))
	w := httptest.NewRecorder()
	m.reviews().ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func reviewOf(version, raw string) string {
	return fmt.Sprintf(`{"kind":"TokenReview","apiVersion":"authentication.k8s.io/%s","spec":{"token":%q,`+
		`"audiences":["https://kubernetes.default.svc"]}}`, version, raw)
}

func TestReviewTellsAnAPIServerTheUserOfAToken(t *testing.T) {
	var log bytes.Buffer
	m := newMember(t).beside(funcr.New(func(_, args string) { log.WriteString(args + "\n") }, funcr.Options{}))
	with := func(change func(*token.Claims)) string {
		c := m.claims()
		change(&c)
		return m.sign(c)
	}
	good := m.sign(m.claims())
	for name, tt := range map[string]struct {
		delivered func(*protocol.DirectAccess)
		raw       string
		accepted  bool
		told      string // the error that the API server gets for a token that cannot be checked
	}{
		"a good token":      {byAPIServer, good, true, ""},
		"a revoked session": {func(a *protocol.DirectAccess) { a.Denied = []string{"s-0", "s-1"} }, good, false, ""},
		"another cluster": {byAPIServer,
			with(func(c *token.Claims) { c.Audience = jwt.Audience{issuer + "/k8s/clusters/team/test"} }), false, ""},
		"a system user": {byAPIServer, with(func(c *token.Claims) { c.Subject = "system:admin" }), false, ""},
		"a group of the cluster": {byAPIServer, with(func(c *token.Claims) { c.Groups = []string{"system:masters"} }), false,
			""},
		"a token of the API server":      {byAPIServer, "eyJhbGciOiJSUzI1NiJ9.e30.AA", false, ""},
		"keys and list that are too old": {func(a *protocol.DirectAccess) { a.ValidUntil = m.now() }, good, false, "too old"},
		"too many ended sessions":        {func(a *protocol.DirectAccess) { a.DenyAll = true }, good, false, "has room for"},
	} {
		t.Run(name, func(t *testing.T) {
			m.set(m.delivery(tt.delivered))
			for _, version := range []string{"v1", "v1beta1"} {
				code, body := m.ask(http.MethodPost, pathReview, reviewOf(version, tt.raw))
				var got authenticationv1.TokenReview
				if err := json.Unmarshal([]byte(body), &got); err != nil || code != http.StatusOK {
					t.Fatalf("got %d %s, want 200 or 201", code, body)
				}
				if got.APIVersion != "authentication.k8s.io/"+version || got.Kind != "TokenReview" ||
					got.Status.Authenticated != tt.accepted || strings.Contains(body, tt.raw) {
					t.Errorf("got the response %s, want another one", body)
				}
				if (got.Status.Error != "") != (tt.told != "") || !strings.Contains(got.Status.Error, tt.told) {
					t.Errorf("got the error %q, want %q", got.Status.Error, tt.told)
				}
				user := got.Status.User
				if tt.accepted &&
					(user.Username != "local:alice" || user.UID != "u-1" || !slices.Equal(user.Groups, []string{"local:ops"}) ||
						len(user.Extra) > 0) {
					t.Errorf("got the user %+v, want another one", user)
				}
				if !tt.accepted && (user.Username != "" || len(user.Groups) > 0) {
					t.Errorf("got the user %+v of a refused token, want none", user)
				}
			}
			if strings.Contains(log.String(), tt.raw) {
				t.Error("the token is in the log, want it kept secret")
			}
		})
	}
	if log.Len() == 0 {
		t.Error("want the reason of the refusal in the log")
	}
	m.set(nil)
	if code, body := m.ask(http.MethodPost, pathReview, reviewOf("v1", good)); code != http.StatusOK ||
		strings.Contains(body, `"authenticated":true`) || !strings.Contains(body, "no direct access") {
		t.Errorf("without direct access: got %d %s, want another response", code, body)
	}
}

// TestReviewIsBounded covers CVE-2024-58259: bodies of unlimited size.
func TestReviewIsBounded(t *testing.T) {
	m := newMember(t).beside(logr.Discard())
	m.set(m.delivery(byAPIServer))
	good := m.sign(m.claims())
	for name, tt := range map[string]struct {
		method, body string
		code         int
	}{
		"a valid review":          {http.MethodPost, reviewOf("v1", good), 200},
		"longer than any":         {http.MethodPost, reviewOf("v1", good+strings.Repeat(" ", maxReview)), 400},
		"a token longer than any": {http.MethodPost, reviewOf("v1", good+strings.Repeat("A", token.Max)), 200},
		"no JSON":                 {http.MethodPost, good, 400},
		"nothing":                 {http.MethodPost, "", 400},
		"another kind": {http.MethodPost, strings.Replace(reviewOf("v1", good), "TokenReview", "SubjectAccessReview", 1),
			400},
		"another version":           {http.MethodPost, reviewOf("v2", good), 400},
		"a review without a token":  {http.MethodPost, reviewOf("v1", ""), 400},
		"a request without a body":  {http.MethodGet, "", 405},
		"an object of another kind": {http.MethodPost, `[]`, 400},
	} {
		t.Run(name, func(t *testing.T) {
			code, body := m.ask(tt.method, pathReview, tt.body)
			if code != tt.code || strings.Contains(body, good) ||
				tt.code == 200 && strings.Contains(body, `"authenticated":true`) != (tt.body == reviewOf("v1", good)) {
				t.Errorf("got %d %s, want %d", code, body, tt.code)
			}
		})
	}
	for range maxReviews {
		m.reviewing <- struct{}{}
	}
	if code, _ := m.ask(http.MethodPost, pathReview, reviewOf("v1", good)); code != http.StatusTooManyRequests {
		t.Errorf("beyond %d reviews at once: got %d, want 429", maxReviews, code)
	}
}

// TestAPIServerReadsTheKeysOfTheEndpointBesideIt starts an API server while the hub is down. The API server reads the
// keys from the endpoint beside it. While no token is accepted, it gets no keys, and forgets its former ones.
func TestAPIServerReadsTheKeysOfTheEndpointBesideIt(t *testing.T) {
	m := newMember(t)
	m.api.Put(t, secretPath+protocol.DirectSecret, m.delivery(byAPIServer))
	beside := run(t, m.beside(logr.Discard()))
	if m.api.Get(secretPath+protocol.DirectAuthority) != nil {
		t.Error("got a CA before the agent has created one, want none")
	}
	agent := run(t, m) // it creates the CA
	client := beside.client(t)
	get := func(url string, into any) {
		t.Helper()
		resp, err := client.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Cache-Control") != "no-store" {
			t.Fatalf("%s: got %s %v %s (%v), want 200", url, resp.Status, resp.Header, raw, err)
		}
		if err := json.Unmarshal(raw, into); err != nil {
			t.Fatal(err)
		}
	}
	var found discovery
	get(beside.url()+pathDiscovery, &found)
	if found.Issuer != issuer || found.Keys != beside.url()+pathKeys {
		t.Fatalf("got the discovery document %+v, want another one", found)
	}
	var raw json.RawMessage
	get(found.Keys, &raw)
	keys, err := token.ParsePublished(raw)
	if _, _, failed := token.Verify(m.sign(m.claims()), keys, issuer,
		func(string) time.Duration { return lifetime }); err != nil || failed != nil {
		t.Errorf("got the errors %v, %v, want keys that verify the token", err, failed)
	}
	if agent.address.Load() != nil || agent.Authority() == "" || agent.Authority() != beside.Authority() {
		t.Error("the agent serves users too or has created no CA, want only the CA")
	}
	for name, change := range map[string]func(*protocol.DirectAccess){
		"too old":                 func(a *protocol.DirectAccess) { byAPIServer(a); a.ValidUntil = m.now() },
		"too many ended sessions": func(a *protocol.DirectAccess) { byAPIServer(a); a.DenyAll = true },
	} {
		beside.set(m.delivery(change))
		if get(found.Keys, &raw); string(raw) != noKeys {
			t.Errorf("%s: got the keys %s, want none", name, raw)
		}
		if resp, err := client.Get(beside.url() + pathReady); err != nil || resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s: the endpoint is ready (%v), want it not ready", name, err)
		}
	}
	m.api.Put(t, secretPath+protocol.DirectSecret, m.delivery(unchanged)) // from now on, the agent serves users
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if beside.address.Load() != nil || agent.address.Load() == nil {
			return fmt.Errorf("the agent does not serve, or an API server still gets keys")
		}
		return nil
	})
}

func TestCertificateForAnAPIServerIsForNoOtherAddress(t *testing.T) {
	m := newMember(t)
	m.api.Put(t, secretPath+protocol.DirectSecret, m.delivery(byAPIServer))
	run(t, m)
	beside := run(t, m.beside(logr.Discard()))
	beside.client(t)
	leaf, err := x509.ParseCertificate(beside.serving.Load().Certificate.Certificate[0])
	if err != nil || len(leaf.DNSNames) > 0 || len(leaf.IPAddresses) != 1 || !leaf.IPAddresses[0].IsLoopback() {
		t.Errorf("got a certificate for %v %v (%v), want only the listen address", leaf.DNSNames, leaf.IPAddresses, err)
	}
	if !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageServerAuth) || len(leaf.ExtKeyUsage) != 1 {
		t.Errorf("got the key usages %v, want server authentication only", leaf.ExtKeyUsage)
	}
	conn, err := tls.Dial("tcp", (*beside.address.Load()).String(), &tls.Config{MinVersion: tls.VersionTLS12})
	if err == nil {
		_ = conn.Close()
		t.Error("the machine's own CAs verify the certificate, want only the agent's CA")
	}
}

func TestAPIServerIsServedOnLoopbackOnly(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:6440": true, "127.1.2.3:1": true, "[::1]:6440": true,
		":6440": false, "0.0.0.0:6440": false, "[::]:6440": false, "10.0.0.1:6440": false, "localhost:6440": false,
		"127.0.0.1": false, "": false,
	} {
		if got := IsLoopback(address); got != want {
			t.Errorf("%q: got %t, want the opposite", address, got)
		}
	}
}

func FuzzReadReview(f *testing.F) {
	f.Add([]byte(reviewOf("v1", "a.b.c")))
	f.Add([]byte(reviewOf("v1beta1", "")))
	f.Add([]byte(`{"kind":"TokenReview","spec":null}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		review, err := readReview(bytes.NewReader(raw))
		if err == nil && (review.Spec.Token == "" || review.Kind != "TokenReview") {
			t.Errorf("got the review %+v, want an error", review)
		}
	})
}

// BenchmarkReview measures how long an API server waits for a review, without the connection, which it keeps open.
func BenchmarkReview(b *testing.B) {
	m := newMember(b).beside(logr.Discard())
	m.set(m.delivery(byAPIServer))
	handler := m.reviews()
	ask := func(body string) {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, pathReview, strings.NewReader(body)))
		if !strings.Contains(w.Body.String(), `"authenticated":true`) {
			b.Fatal(w.Body.String())
		}
	}
	b.Run("a token that was seen before", func(b *testing.B) {
		body := reviewOf("v1", m.sign(m.claims()))
		ask(body)
		for b.Loop() {
			ask(body)
		}
	})
	b.Run("another token each time", func(b *testing.B) {
		bodies := make([]string, b.N)
		for i := range bodies {
			bodies[i] = reviewOf("v1", m.sign(m.claims()))
		}
		b.ResetTimer()
		for _, body := range bodies {
			ask(body)
		}
	})
}
