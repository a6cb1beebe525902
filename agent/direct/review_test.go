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

// ask sends a request to what serves an API server.
func (m *member) ask(method, path, body string) (int, string) {
	r := httptest.NewRequestWithContext(m.t.Context(), method, path, strings.NewReader(body))
	w := httptest.NewRecorder()
	m.reviews().ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func reviewOf(version, raw string) string {
	return fmt.Sprintf(`{"kind":"TokenReview","apiVersion":"authentication.k8s.io/%s","spec":{"token":%q,"audiences":["https://kubernetes.default.svc"]}}`, version, raw)
}

func TestAnAPIServerIsToldWhoseATokenIs(t *testing.T) {
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
		told      string // what the API server is told of a token that cannot be judged
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
					t.Fatalf("it is answered with %d %s", code, body)
				}
				if got.APIVersion != "authentication.k8s.io/"+version || got.Kind != "TokenReview" ||
					got.Status.Authenticated != tt.accepted || strings.Contains(body, tt.raw) {
					t.Errorf("the answer is %s", body)
				}
				if (got.Status.Error != "") != (tt.told != "") || !strings.Contains(got.Status.Error, tt.told) {
					t.Errorf("the error is %q, want %q", got.Status.Error, tt.told)
				}
				user := got.Status.User
				if tt.accepted &&
					(user.Username != "local:alice" || user.UID != "u-1" || !slices.Equal(user.Groups, []string{"local:ops"}) || len(user.Extra) > 0) {
					t.Errorf("the user is %+v", user)
				}
				if !tt.accepted && (user.Username != "" || len(user.Groups) > 0) {
					t.Errorf("a token that is refused has the user %+v", user)
				}
			}
			if strings.Contains(log.String(), tt.raw) {
				t.Error("the token is in the log")
			}
		})
	}
	if log.Len() == 0 {
		t.Error("why a token is refused is not in the log")
	}
	m.set(nil)
	if code, body := m.ask(http.MethodPost, pathReview, reviewOf("v1", good)); code != http.StatusOK ||
		strings.Contains(body, `"authenticated":true`) || !strings.Contains(body, "no direct access") {
		t.Errorf("without direct access it is answered with %d %s", code, body)
	}
}

// TestAReviewIsBounded has CVE-2024-58259: bodies without bound.
func TestAReviewIsBounded(t *testing.T) {
	m := newMember(t).beside(logr.Discard())
	m.set(m.delivery(byAPIServer))
	good := m.sign(m.claims())
	for name, tt := range map[string]struct {
		method, body string
		code         int
	}{
		"as it should be":         {http.MethodPost, reviewOf("v1", good), 200},
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
				t.Errorf("it is answered with %d %s, want %d", code, body, tt.code)
			}
		})
	}
	for range maxReviews {
		m.reviewing <- struct{}{}
	}
	if code, _ := m.ask(http.MethodPost, pathReview, reviewOf("v1", good)); code != http.StatusTooManyRequests {
		t.Errorf("beyond %d reviews at once it is answered with %d", maxReviews, code)
	}
}

// An API server that is started while the hub is down reads the keys beside it. Where no token is to be accepted, it
// gets none, and forgets those that it has.
func TestAnAPIServerReadsTheKeysBesideIt(t *testing.T) {
	m := newMember(t)
	m.api.Put(t, secretPath+protocol.DirectSecret, m.delivery(byAPIServer))
	beside := run(t, m.beside(logr.Discard()))
	if m.api.Get(secretPath+protocol.DirectAuthority) != nil {
		t.Error("there is a CA before the agent has made one")
	}
	agent := run(t, m) // which makes the CA
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
			t.Fatalf("%s is answered with %s %v %s (%v)", url, resp.Status, resp.Header, raw, err)
		}
		if err := json.Unmarshal(raw, into); err != nil {
			t.Fatal(err)
		}
	}
	var found discovery
	get(beside.url()+pathDiscovery, &found)
	if found.Issuer != issuer || found.Keys != beside.url()+pathKeys {
		t.Fatalf("discovery says %+v", found)
	}
	var raw json.RawMessage
	get(found.Keys, &raw)
	keys, err := token.ParsePublished(raw)
	if _, _, failed := token.Verify(m.sign(m.claims()), keys, issuer,
		func(string) time.Duration { return lifetime }); err != nil || failed != nil {
		t.Errorf("the keys verify no token: %v, %v", err, failed)
	}
	if agent.address.Load() != nil || agent.Authority() == "" || agent.Authority() != beside.Authority() {
		t.Error("the agent serves users as well, or has made no CA")
	}
	for name, change := range map[string]func(*protocol.DirectAccess){
		"too old":                 func(a *protocol.DirectAccess) { byAPIServer(a); a.ValidUntil = m.now() },
		"too many ended sessions": func(a *protocol.DirectAccess) { byAPIServer(a); a.DenyAll = true },
	} {
		beside.set(m.delivery(change))
		if get(found.Keys, &raw); string(raw) != noKeys {
			t.Errorf("%s: the keys are %s", name, raw)
		}
		if resp, err := client.Get(beside.url() + pathReady); err != nil || resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s: it is ready (%v)", name, err)
		}
	}
	m.api.Put(t, secretPath+protocol.DirectSecret, m.delivery(unchanged)) // the agent serves users from then on
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if beside.address.Load() != nil || agent.address.Load() == nil {
			return fmt.Errorf("the agent does not serve, or an API server still finds keys")
		}
		return nil
	})
}

func TestTheCertificateForAnAPIServerIsForNoOtherAddress(t *testing.T) {
	m := newMember(t)
	m.api.Put(t, secretPath+protocol.DirectSecret, m.delivery(byAPIServer))
	run(t, m)
	beside := run(t, m.beside(logr.Discard()))
	beside.client(t)
	leaf, err := x509.ParseCertificate(beside.serving.Load().Certificate.Certificate[0])
	if err != nil || len(leaf.DNSNames) > 0 || len(leaf.IPAddresses) != 1 || !leaf.IPAddresses[0].IsLoopback() {
		t.Errorf("the certificate is for %v %v (%v)", leaf.DNSNames, leaf.IPAddresses, err)
	}
	if !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageServerAuth) || len(leaf.ExtKeyUsage) != 1 {
		t.Errorf("the certificate may be used for %v", leaf.ExtKeyUsage)
	}
	conn, err := tls.Dial("tcp", (*beside.address.Load()).String(), &tls.Config{MinVersion: tls.VersionTLS12})
	if err == nil {
		_ = conn.Close()
		t.Error("the machine's own CAs have signed it")
	}
}

func TestAnAPIServerIsServedOnLoopbackOnly(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:6440": true, "127.1.2.3:1": true, "[::1]:6440": true,
		":6440": false, "0.0.0.0:6440": false, "[::]:6440": false, "10.0.0.1:6440": false, "localhost:6440": false,
		"127.0.0.1": false, "": false,
	} {
		if got := IsLoopback(address); got != want {
			t.Errorf("%q: %t", address, got)
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
			t.Errorf("%+v is taken for a review", review)
		}
	})
}

// BenchmarkReview measures what an API server waits for, without the connection, which it keeps.
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
