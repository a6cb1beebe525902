// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/agent/forward"
	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/internal/baseline"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/signin/keys"
	"github.com/drover-dev/drover/internal/signin/token"
	"github.com/drover-dev/drover/test/agenttest"
	"github.com/drover-dev/drover/test/testkit"
)

const (
	issuer     = "https://hub.example.com"
	audience   = issuer + "/k8s/clusters/team/prod"
	namespace  = "drover-agent"
	secretPath = "/api/v1/namespaces/" + namespace + "/secrets/"
	lifetime   = time.Hour
)

// member is an Endpoint in front of an API server that records its requests.
type member struct {
	*Endpoint
	t   testing.TB
	api *agenttest.APIServer
	key keys.Key

	mu    sync.Mutex // guards the fields below
	asked []*http.Request
	clock time.Time
}

func newMember(t testing.TB) *member {
	t.Helper()
	m := &member{t: t, api: agenttest.NewAPIServer(t), clock: time.Now()}
	var err error
	if m.key, err = keys.New(m.clock); err != nil {
		t.Fatal(err)
	}
	backend := httptest.NewServer(http.HandlerFunc(m.serveAPI))
	t.Cleanup(backend.Close)
	m.Endpoint = m.endpoint(backend.URL)
	return m
}

// beside returns an Endpoint that serves the API server beside the agent.
func (m *member) beside(log logr.Logger) *member {
	m.t.Helper()
	client, err := kube.New(m.api.Config())
	if err != nil {
		m.t.Fatal(err)
	}
	e := New(Options{APIServer: true, Secrets: client.Secrets(namespace), Listen: "127.0.0.1:0", Now: m.now, Log: log})
	return &member{Endpoint: e, t: m.t, api: m.api, key: m.key, clock: m.clock}
}

func (m *member) endpoint(backend string) *Endpoint {
	m.t.Helper()
	client, err := kube.New(m.api.Config())
	if err != nil {
		m.t.Fatal(err)
	}
	cfg := &rest.Config{Host: backend, BearerToken: "agents-own"}
	transport, err := forward.Transport(cfg)
	if err != nil {
		m.t.Fatal(err)
	}
	base, err := url.Parse(backend)
	if err != nil {
		m.t.Fatal(err)
	}
	return New(Options{
		Secrets: client.Secrets(namespace), Listen: "127.0.0.1:0",
		Kubernetes: forward.New(m.t.Context(), base, transport, logr.Discard()),
		Changed:    func() {}, Now: m.now, Log: logr.Discard(),
	})
}

func (m *member) now() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.clock
}

// serveAPI is the API server. A watch starts with an event and continues until its client disconnects.
func (m *member) serveAPI(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	m.asked = append(m.asked, r)
	m.mu.Unlock()
	w.Header().Set("Set-Cookie", "a=b")
	if r.URL.Query().Get("watch") == "" {
		_, _ = io.WriteString(w, "served")
		return
	}
	_, _ = io.WriteString(w, "{\"type\":\"ADDED\",\"object\":{}}\n")
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

func (m *member) requests() []*http.Request {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.asked)
}

func (m *member) claims() token.Claims {
	return token.Claims{Issuer: issuer, Subject: "local:alice", Audience: jwt.Audience{audience}, Session: "s-1",
		UID: "u-1", Groups: []string{"local:ops"}}
}

func (m *member) sign(c token.Claims) string {
	m.t.Helper()
	signed, err := token.SignFor(lifetime, m.key, c, m.now())
	if err != nil {
		m.t.Fatal(err)
	}
	return signed
}

// delivery returns the Secret that the hub delivers.
func (m *member) delivery(change func(*protocol.DirectAccess)) *corev1.Secret {
	m.t.Helper()
	published, err := json.Marshal(keys.Set{m.key}.JWKS())
	if err != nil {
		m.t.Fatal(err)
	}
	access := protocol.DirectAccess{Issuer: issuer, Audience: audience, Keys: published,
		Lifetime: int64(lifetime / time.Second), ValidUntil: m.now().Add(lifetime), Host: "127.0.0.1"}
	change(&access)
	raw, err := json.Marshal(access)
	if err != nil {
		m.t.Fatal(err)
	}
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: protocol.DirectSecret},
		Data: map[string][]byte{protocol.DirectKey: raw}}
}

func unchanged(*protocol.DirectAccess) {}

// get sends a request with a header, and returns the code and body of the response.
func (m *member) get(header http.Header) (int, string) {
	r := httptest.NewRequestWithContext(m.t.Context(), http.MethodGet, "/api/v1/pods", nil)
	r.Header = header
	w := httptest.NewRecorder()
	m.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func bearer(raw string) http.Header { return http.Header{"Authorization": {"Bearer " + raw}} }

// TestTokenIsRefusedUnlessThisHubSignedItForThisCluster covers GHSA-c45c-39f6-6gw9 and CVE-2023-22650: tokens that
// outlive their user.
func TestTokenIsRefusedUnlessThisHubSignedItForThisCluster(t *testing.T) {
	m := newMember(t)
	other, err := keys.New(m.clock)
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(*token.Claims)) string {
		c := m.claims()
		change(&c)
		return m.sign(c)
	}
	good := m.sign(m.claims())
	parts := strings.Split(good, ".")
	public, err := m.key.Private.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	hmac, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: public},
		(&jose.SignerOptions{}).WithType("JWT").WithHeader("kid", m.key.ID))
	if err != nil {
		t.Fatal(err)
	}
	forged, err := jwt.Signed(hmac).Claims(m.claims()).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := token.SignFor(lifetime, other, m.claims(), m.now())
	if err != nil {
		t.Fatal(err)
	}
	long, err := token.SignFor(2*lifetime, m.key, m.claims(), m.now())
	if err != nil {
		t.Fatal(err)
	}
	past, err := token.SignFor(lifetime, m.key, m.claims(), m.now().Add(-lifetime))
	if err != nil {
		t.Fatal(err)
	}
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","typ":"JWT","kid":"`+m.key.ID+`"}`)) + "." +
		parts[1] + "."
	for name, tt := range map[string]struct {
		delivered func(*protocol.DirectAccess)
		header    http.Header
		code      int
		want      string
	}{
		"a good token": {unchanged, bearer(good), 200, "served"},
		"another session was ended": {func(a *protocol.DirectAccess) { a.Denied = []string{"s-2"} }, bearer(good), 200,
			"served"},
		"no token": {unchanged, http.Header{}, 401, "one Authorization header"},
		"two tokens": {unchanged, http.Header{"Authorization": {"Bearer " + good, "Bearer " + good}}, 401,
			"one Authorization header"},
		"a password":                  {unchanged, http.Header{"Authorization": {"Basic YTpi"}}, 401, "bearer token"},
		"an empty token":              {unchanged, bearer(""), 401, "bearer token"},
		"text":                        {unchanged, bearer("x"), 401, "malformed"},
		"the algorithm none":          {unchanged, bearer(none), 401, "malformed"},
		"an HMAC with the public key": {unchanged, bearer(forged), 401, "malformed"},
		"a key of another issuer":     {unchanged, bearer(stranger), 401, "of the issuer's"},
		"an expired token":            {unchanged, bearer(past), 401, "expired"},
		"another issuer": {unchanged, bearer(with(func(c *token.Claims) { c.Issuer = "https://evil.example" })), 401,
			"another issuer"},
		"another cluster": {unchanged,
			bearer(with(func(c *token.Claims) { c.Audience = jwt.Audience{issuer + "/k8s/clusters/team/test"} })), 401,
			"another audience"},
		"a cluster whose name has this one as a prefix": {unchanged,
			bearer(with(func(c *token.Claims) { c.Audience = jwt.Audience{audience + "-2"} })), 401, "another audience"},
		"a token for the hub": {unchanged, bearer(with(func(c *token.Claims) { c.Audience = jwt.Audience{"kubectl"} })), 401,
			"another audience"},
		"a token for the proxy": {unchanged,
			bearer(with(func(c *token.Claims) { c.Audience = jwt.Audience{"cluster:team/prod"} })), 401, "another audience"},
		"two audiences": {unchanged, bearer(with(func(c *token.Claims) { c.Audience = jwt.Audience{audience, "kubectl"} })),
			401, "another audience"},
		"longer than the cluster allows": {unchanged, bearer(long), 401, "lives for longer"},
		"a revoked session": {func(a *protocol.DirectAccess) { a.Denied = []string{"s-0", "s-1"} }, bearer(good), 401,
			"session was ended"},
		"no session": {unchanged, bearer(with(func(c *token.Claims) { c.Session = "" })), 401, "required"},
		"keys and list that are too old": {func(a *protocol.DirectAccess) { a.ValidUntil = m.now() }, bearer(good), 503,
			"too old"},
		"too many sessions were ended": {func(a *protocol.DirectAccess) { a.DenyAll = true }, bearer(good), 503,
			"than the list has room for"},
		"no keys": {func(a *protocol.DirectAccess) { a.Keys = []byte(`{"keys":[]}`) }, bearer(good), 401,
			"of the issuer's"},
		"a system user": {unchanged, bearer(with(func(c *token.Claims) { c.Subject = "system:admin" })), 401,
			"not a principal"},
		"a user of the hub's own": {unchanged, bearer(with(func(c *token.Claims) { c.Subject = "hub:root" })), 401,
			"not a principal"},
		"the user of a Baseline": {unchanged, bearer(with(func(c *token.Claims) { c.Subject = baseline.User("cni") })), 401,
			"not a principal"},
		"a user without a provider": {unchanged, bearer(with(func(c *token.Claims) { c.Subject = "admin" })), 401,
			"not a principal"},
		"a line break in the name": {unchanged, bearer(with(func(c *token.Claims) { c.Subject = "local:a\nb" })), 401,
			"not a principal"},
		"a group of the cluster": {unchanged, bearer(with(func(c *token.Claims) { c.Groups = []string{"system:masters"} })),
			401, "provider"},
		"a group of another provider": {unchanged, bearer(with(func(c *token.Claims) { c.Groups = []string{"github:ops"} })),
			401, "provider"},
		"more groups than headers": {unchanged,
			bearer(with(func(c *token.Claims) { c.Groups = slices.Repeat([]string{"local:g"}, maxGroups+1) })), 401,
			"names 1025 groups"},
		"a token that is longer than any": {unchanged, bearer(good + strings.Repeat("A", token.Max)), 401, "longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			m.set(m.delivery(tt.delivered))
			before := len(m.requests())
			for range 2 { // the second time, the result is remembered
				code, body := m.get(tt.header)
				if code != tt.code || !strings.Contains(body, tt.want) || strings.Contains(body, good) {
					t.Errorf("got %d %s, want %d and %q", code, body, tt.code, tt.want)
				}
			}
			if asked := len(m.requests()) - before; (asked > 0) != (tt.code == 200) {
				t.Errorf("%d requests reached the API server, want another number", asked)
			}
		})
	}
	m.set(nil)
	if code, body := m.get(bearer(good)); code != 503 || !strings.Contains(body, "no direct access") {
		t.Errorf("without direct access: got %d %s, want 503", code, body)
	}
}

func TestAcceptedTokenIsRefusedWhenItExpiresOrTheListIsTooOld(t *testing.T) {
	m := newMember(t)
	m.set(m.delivery(func(a *protocol.DirectAccess) { a.ValidUntil = m.now().Add(2 * lifetime) }))
	good := m.sign(m.claims())
	if code, body := m.get(bearer(good)); code != 200 {
		t.Fatalf("got %d %s, want 200", code, body)
	}
	m.clock = m.clock.Add(lifetime)
	if code, body := m.get(bearer(good)); code != 401 || !strings.Contains(body, "expired") {
		t.Errorf("with an expired token: got %d %s, want 401", code, body)
	}
	fresh := m.sign(m.claims())
	if code, _ := m.get(bearer(fresh)); code != 200 {
		t.Fatal("a fresh token was refused, want it accepted")
	}
	m.clock = m.clock.Add(lifetime)
	if code, body := m.get(bearer(fresh)); code != 503 || !strings.Contains(body, "too old") {
		t.Errorf("with a list that is too old: got %d %s, want 503", code, body)
	}
}

// TestUnreadableDeliveryEndsDirectAccess checks that a delivery is used completely or not at all, because a list that
// cannot be read could contain the session.
func TestUnreadableDeliveryEndsDirectAccess(t *testing.T) {
	m := newMember(t)
	for name, change := range map[string]func(*corev1.Secret){
		"nothing": func(s *corev1.Secret) { s.Data = nil },
		"text":    func(s *corev1.Secret) { s.Data[protocol.DirectKey] = []byte("x") },
		"an unknown field": func(s *corev1.Secret) {
			s.Data[protocol.DirectKey] = append([]byte(`{"more":1,`), s.Data[protocol.DirectKey][1:]...)
		},
		"too much": func(s *corev1.Secret) {
			s.Data[protocol.DirectKey] = append(s.Data[protocol.DirectKey], make([]byte, maxAccess)...)
		},
		"no audience": func(s *corev1.Secret) { *s = *m.delivery(func(a *protocol.DirectAccess) { a.Audience = "" }) },
		"no end": func(s *corev1.Secret) {
			*s = *m.delivery(func(a *protocol.DirectAccess) { a.ValidUntil = time.Time{} })
		},
		"a day": func(s *corev1.Secret) { *s = *m.delivery(func(a *protocol.DirectAccess) { a.Lifetime = 86400 }) },
		"a long list": func(s *corev1.Secret) {
			*s = *m.delivery(func(a *protocol.DirectAccess) { a.Denied = slices.Repeat([]string{"a"}, protocol.MaxDenied+1) })
		},
		"a secret key": func(s *corev1.Secret) {
			*s = *m.delivery(func(a *protocol.DirectAccess) {
				a.Keys = []byte(`{"keys":[{"kty":"oct","k":"YQ","kid":"a","alg":"ES256","use":"sig"}]}`)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			m.set(m.delivery(unchanged))
			if code, body := m.get(bearer(m.sign(m.claims()))); code != 200 {
				t.Fatalf("before: got %d %s, want 200", code, body)
			}
			secret := m.delivery(unchanged)
			change(secret)
			m.set(secret)
			if code, body := m.get(bearer(m.sign(m.claims()))); code != 503 {
				t.Errorf("got %d %s, want no direct access", code, body)
			}
		})
	}
}

func TestUserIsServedAsByTheHub(t *testing.T) {
	m := newMember(t)
	m.set(m.delivery(unchanged))
	server := httptest.NewServer(m)
	defer server.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		server.URL+"/api/v1/namespaces/a%2Fb/pods?labelSelector=a%3Db&x=%2F", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{
		"Authorization": {"Bearer " + m.sign(m.claims())}, "Cookie": {"a=b"}, "X-Remote-User": {"root"},
		"X-Remote-Extra-A": {"b"}, "X-Forwarded-For": {"10.0.0.1"},
		"Origin": {"https://evil.example"}, "Proxy-Authorization": {"Basic YTpi"}, "Accept": {"application/json"},
		"User-Agent": {"kubectl/v1"},
	}
	resp, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	asked := m.requests()
	if len(asked) != 1 {
		t.Fatalf("%d requests reached the API server, want 1", len(asked))
	}
	got := asked[0]
	if got.RequestURI != "/api/v1/namespaces/a%2Fb/pods?labelSelector=a%3Db&x=%2F" {
		t.Errorf("the API server got a request for %s, want another URI", got.RequestURI)
	}
	want := http.Header{
		"Authorization": {"Bearer agents-own"}, "Impersonate-User": {"local:alice"}, "Impersonate-Uid": {"u-1"},
		"Impersonate-Group": {"local:ops"},
		"Accept":            {"application/json"}, "User-Agent": {"kubectl/v1"},
	}
	for name, values := range want {
		if !slices.Equal(got.Header[name], values) {
			t.Errorf("%s: got %q, want %q", name, got.Header[name], values)
		}
		delete(got.Header, name)
	}
	delete(got.Header, "Accept-Encoding")
	if len(got.Header) > 0 {
		t.Errorf("the API server also got the headers %v, want no others", got.Header)
	}
	if resp.Header.Get("Set-Cookie") != "" {
		t.Error("the user got a cookie of the API server, want none")
	}
}

// TestRequestNamesNoOtherUserThanItsToken covers CVE-2021-36776 and CVE-2021-31999: headers that name a user to
// impersonate, or that have such headers removed on the way.
func TestRequestNamesNoOtherUserThanItsToken(t *testing.T) {
	m := newMember(t)
	m.set(m.delivery(unchanged))
	for name, header := range map[string]http.Header{
		"a user":               {"Impersonate-User": {"system:admin"}},
		"a user in lower case": {"impersonate-user": {"system:admin"}},
		"a group":              {"Impersonate-Group": {"system:masters"}},
		"an extra":             {"Impersonate-Extra-Scopes": {"all"}},
		"an account in a group": {"Impersonate-User": {"system:serviceaccount:web:x"},
			"Impersonate-Group": {"system:masters"}},
		"two accounts": {"Impersonate-User": {"system:serviceaccount:web:x",
			"system:serviceaccount:web:y"}},
		"the header to the agent":                  {"Impersonate-Drover-Serviceaccount": {"system:serviceaccount:web:x"}},
		"no name of an account":                    {"Impersonate-User": {"system:serviceaccount:web:x:y"}},
		"an empty user":                            {"Impersonate-User": {""}},
		"impersonation removed on the way":         {"Connection": {"Impersonate-User, Impersonate-Group"}},
		"impersonation removed, in lower case":     {"Connection": {"keep-alive, impersonate-user"}},
		"the agent's own token removed on the way": {"Connection": {"Authorization"}},
		"another token for WebSocket": {
			"Sec-Websocket-Protocol": {"v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.YQ"}},
	} {
		t.Run(name, func(t *testing.T) {
			header["Authorization"] = []string{"Bearer " + m.sign(m.claims())}
			if code, body := m.get(header); code != 400 && code != 403 {
				t.Errorf("got %d %s, want a refusal", code, body)
			}
		})
	}
	if asked := m.requests(); len(asked) > 0 {
		t.Errorf("%d requests reached the API server, want none: %v", len(asked), asked[0].Header)
	}
}

func TestAgentAcceptsTheNamesThatTheHubSigns(t *testing.T) {
	for _, name := range []string{"local:alice", "github:a b", "ldap:uid=a,dc=b", "system:admin", "kubeadm:x", "hub:x",
		"eks:x", "alice", ":alice", "local:", "local:a\x7f", "local:ä", " local:a", "local:a "} {
		for _, group := range []string{"", "local:g", "github:g", "system:masters", "local:", "local: g "} {
			var groups []string
			if group != "" {
				groups = []string{group}
			}
			_, hub := identity.Principal(name, "u", groups...)
			agent := principal(token.Claims{Subject: name, UID: "u", Groups: groups})
			if hub != nil && agent == nil {
				t.Errorf("the agent accepts %q in %q, want it refused as at the hub: %v", name, group, hub)
			}
			if hub == nil && agent != nil {
				t.Errorf("the agent refuses %q in %q, want it accepted as at the hub: %v", name, group, agent)
			}
		}
	}
}

func TestOneUserCannotTakeAllPlaces(t *testing.T) {
	var o open
	var taken []*opened
	for range maxOpenUser {
		r := &opened{known: known{Claims: token.Claims{Subject: "local:alice"}}}
		if !o.enter(r) {
			t.Fatal("the first request got no place, want one")
		}
		taken = append(taken, r)
	}
	alice, bob := &opened{known: known{Claims: token.Claims{Subject: "local:alice"}}},
		&opened{known: known{Claims: token.Claims{Subject: "local:bob"}}}
	if o.enter(alice) || !o.enter(bob) {
		t.Error("alice got another place or bob got none, want the opposite")
	}
	o.leave(taken[0])
	if !o.enter(alice) {
		t.Error("the place of a request that ended is not free, want it free")
	}
	o.leave(bob)
	for i := 0; len(o.requests) < maxOpen; i++ {
		if !o.enter(&opened{known: known{Claims: token.Claims{Subject: fmt.Sprintf("local:%d", i)}}}) {
			t.Fatal("a request below maxOpen got no place, want one")
		}
	}
	if o.enter(bob) {
		t.Error("a request beyond maxOpen got a place, want none")
	}
}

// running is a member whose endpoint runs.
type running struct {
	*member
	stop func()
}

func run(t *testing.T, m *member) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); m.Run(ctx) }()
	stop := func() { cancel(); <-ended }
	t.Cleanup(stop)
	return &running{m, stop}
}

// client returns a client that connects to the endpoint and trusts only its CA.
func (r *running) client(t *testing.T) *http.Client {
	t.Helper()
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if r.address.Load() == nil || r.Authority() == "" {
			return fmt.Errorf("the endpoint does not serve yet")
		}
		return nil
	})
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(r.Authority())) {
		t.Fatalf("got the CA %q, want a certificate in PEM", r.Authority())
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func (r *running) url() string { return "https://" + (*r.address.Load()).String() }

// ends fails the test unless a watch ends without another event.
func ends(t *testing.T, watch *http.Response) {
	t.Helper()
	if rest, err := io.ReadAll(watch.Body); len(rest) > 0 || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the watch continues with %q (%v), want its end", rest, err)
	}
}

func (r *running) watch(t *testing.T, client *http.Client, raw string) *http.Response {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience*20*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url()+"/api/v1/pods?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+raw)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil || !strings.Contains(line, "ADDED") {
		t.Fatalf("the watch begins with %s %q (%v), want an event", resp.Status, line, err)
	}
	return resp
}

func TestRequestInProgressEndsWithItsSession(t *testing.T) {
	m := newMember(t)
	m.api.Put(t, secretPath+protocol.DirectSecret, m.delivery(unchanged))
	r := run(t, m)
	client := r.client(t)
	other := m.claims()
	other.Session = "s-2"
	first, second := r.watch(t, client, m.sign(m.claims())), r.watch(t, client, m.sign(other))
	m.api.Put(t, secretPath+protocol.DirectSecret,
		m.delivery(func(a *protocol.DirectAccess) { a.Denied = []string{"s-1"} }))
	ends(t, first)
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		m.open.mu.Lock()
		defer m.open.mu.Unlock()
		if len(m.open.requests) != 1 {
			return fmt.Errorf("%d requests are open, want only the one of the other session", len(m.open.requests))
		}
		return nil
	})
	m.api.Delete(secretPath + protocol.DirectSecret)
	ends(t, second)
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if r.address.Load() != nil {
			return fmt.Errorf("the endpoint still serves")
		}
		return nil
	})
}

// TestRequestInProgressEndsWithItsTokenItsKeyAndTheList checks requests that outlive their token. Members are told
// about an ended session only until its tokens expire, so nothing could end such a request later.
func TestRequestInProgressEndsWithItsTokenItsKeyAndTheList(t *testing.T) {
	m := newMember(t)
	var all open
	ended := map[string]error{}
	for name, k := range map[string]known{"short": {m.claims(), m.key.ID}, "long": {m.claims(), m.key.ID},
		"former": {m.claims(), "former"}} {
		if k.Expiry = jwt.NewNumericDate(m.now().Add(2 * lifetime)); name == "short" {
			k.Expiry = jwt.NewNumericDate(m.now().Add(time.Minute))
		}
		all.enter(&opened{k, func(cause error) { ended[name] = cause }})
	}
	m.set(m.delivery(unchanged))
	if all.review(m.stands); len(ended) != 1 || ended["former"] == nil {
		t.Errorf("the requests %v ended, want the one whose key is no longer published", ended)
	}
	m.clock = m.clock.Add(time.Minute)
	if all.review(m.stands); len(ended) != 2 || !errors.Is(ended["short"], token.ErrToken) {
		t.Errorf("the requests %v ended, want the one whose token has expired", ended)
	}
	m.clock = m.clock.Add(lifetime)
	if all.review(m.stands); !errors.Is(ended["long"], errTooOld) {
		t.Errorf("the requests %v ended, want the rest, because the list is too old", ended)
	}
}

func TestCertificateIsSignedByTheCAThatTheMemberStores(t *testing.T) {
	m := newMember(t)
	m.api.Put(t, secretPath+protocol.DirectSecret, m.delivery(unchanged))
	first := run(t, m)
	client := first.client(t)
	authority := first.Authority()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, first.url()+"/api", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = bearer(m.sign(m.claims()))
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
		t.Errorf("got %s by %s, want 200 by HTTP/2", resp.Status, resp.Proto)
	}
	first.stop()
	m.Endpoint = m.endpoint(m.api.URL) // another replica, or this replica after a restart
	again := run(t, m)
	again.client(t)
	if again.Authority() != authority {
		t.Error("got another CA after a restart, want the same: kubeconfigs contain it")
	}
	again.stop()
	m.api.Put(t, secretPath+protocol.DirectSecret,
		m.delivery(func(a *protocol.DirectAccess) { a.Host = "prod.example.com" }))
	m.Endpoint = m.endpoint(m.api.URL)
	named := run(t, m)
	client = named.client(t)
	if _, err := client.Get(named.url()); err == nil || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("the certificate for prod.example.com: got the error %v for 127.0.0.1, want a refusal", err)
	}
	if keys := m.api.Get(secretPath + protocol.DirectAuthority); keys["type"] != string(corev1.SecretTypeTLS) {
		t.Errorf("got a Secret of the type %v, want another one", keys["type"])
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"issuer":"https://a","audience":"b","keys":{"keys":[]},"lifetimeSeconds":600,` +
		`"validUntil":"2026-11-01T00:00:00Z","host":"c"}`))
	f.Add([]byte(`{"keys":{"keys":[{"kty":"EC","crv":"P-256","x":"a","y":"b"}]}}`))
	f.Add([]byte(`[[[[`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, err := parse(&corev1.Secret{Data: map[string][]byte{protocol.DirectKey: raw}})
		if err != nil {
			return
		}
		if _, err := a.verify("a.b.c", time.Unix(0, 0)); err == nil {
			t.Error("a token without claims was accepted, want it refused")
		}
	})
}
