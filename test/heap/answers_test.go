// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package heap_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/portal/subscribe"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/signin/github"
	"github.com/drover-dev/drover/internal/signin/ldap"
	"github.com/drover-dev/drover/internal/signin/token"
	"github.com/drover-dev/drover/test/testkit"
)

// sent are the entry points where others connect, or respond to requests of the manager.
func sent(t *testing.T) []entry {
	t.Helper()
	joins := joining(t)
	const mega = 1 << 20
	tokens := map[string]string{}
	for name, text := range merged(dense(mega, `{"alg":`, "}"), dense(48<<10, `{"alg":"ES256","kid":"k","typ":`, "}")) {
		coded := base64.RawURLEncoding.EncodeToString([]byte(text))
		tokens["a header of "+name], tokens["claims of "+name] = coded+".e30.AAAA", "eyJhbGciOiJFUzI1NiJ9."+coded+".AAAA"
	}
	tokens["points"] = strings.Repeat(".", mega)
	resumes := map[string]string{}
	for name, text := range merged(dense(mega, `{"a":`, "}"), dense(3<<10, `{"a":`, "}")) {
		resumes[name] = base64.RawURLEncoding.EncodeToString([]byte(text))
	}
	return []entry{
		{"lines of a member", "an agent", merged(dense(protocol.MaxLine-2, `{"a":`, "}\n"), dense(protocol.MaxLine-2, `{"set":`, "}\n"), dense(protocol.MaxLine-2, `{"plan":`, "}\n"),
			dense(protocol.MaxLine-2, `{"report":`, "}\n"), map[string]string{"a line without end": strings.Repeat("x", 2*protocol.MaxLine)}), member},
		{"joins", "who has a join token", merged(dense(protocol.MaxBody, `{"publicKey":`, "}"), dense(4*mega, `{"a":`, "}")), func(t *testing.T, text string) { join(t, joins, text) }},
		{"headers and claims of tokens", "a stranger", tokens, func(t *testing.T, text string) {
			if token.IssuedBy(text, "https://hub.example.com") {
				t.Error("the token is taken for the issuer's, want it left to others")
			}
			_, _, _ = token.Verify(text, nobodys{}, "https://hub.example.com", func(string) time.Duration { return time.Hour })
		}},
		{"resume tokens of a stream", "a user", resumes, resume},
		{"answers of GitHub, to the code", "who runs that GitHub", merged(dense(4*mega, `{"access_token":`, "}"), dense(mega, `{"a":`, "}"), map[string]string{"a form": fill(mega, "", "a&", "")}),
			func(t *testing.T, text string) { hub(t, map[string]string{"/login/oauth/access_token": text}) }},
		{"answers of GitHub, about a user", "who runs that GitHub", merged(dense(4*mega, `{"id":`, "}"), dense(mega, "", "")), func(t *testing.T, text string) {
			hub(t, map[string]string{"/login/oauth/access_token": `{"access_token":"t","token_type":"bearer","scope":"read:org"}`, "/": text})
		}},
		{"answers of a directory", "who runs it", map[string]string{
			"empty elements": message(strings.Repeat("\x05\x00", mega/2)), "some empty elements": message(strings.Repeat("\x05\x00", 20<<10)), "depth": message(nested(20 << 10)), "a text": message(element(4, strings.Repeat("x", mega))),
			"one that is announced": "\x30\x84\x7f\xff\xff\xff", "many messages": strings.Repeat(message(element(4, "")), mega/16),
		}, directory},
	}
}

// nobodys is a set of keys without any keys.
type nobodys struct{ token.Keys }

// tunnel is a member that sends one text.
type tunnel struct {
	text string
	read chan struct{} // closed when the text was read, or given up
	done chan struct{}
}

func (s *tunnel) RoundTrip(*http.Request) (*http.Response, error) {
	select {
	case <-s.read:
		return nil, errors.New("it was asked before")
	default:
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: &ending{strings.NewReader(s.text), s.read}}, nil
}
func (s *tunnel) Done() <-chan struct{}       { return s.done }
func (s *tunnel) Err() error                  { return nil }
func (s *tunnel) Drain(context.Context) error { return nil }
func (s *tunnel) Close() error                { return nil }

// ending closes a channel when it is closed itself.
type ending struct {
	io.Reader
	closed chan struct{}
}

func (e *ending) Close() error { close(e.closed); return nil }

func member(t *testing.T, text string) {
	t.Helper()
	s := &tunnel{text: text, read: make(chan struct{}), done: make(chan struct{})}
	registry := members.New(logr.Discard(), time.Now)
	defer registry.Close()
	defer close(s.done)
	registry.Add(members.Peer{Cluster: protocol.ClusterRef{Namespace: "team", Name: "prod"}}, s)
	select {
	case <-s.read:
	case <-time.After(testkit.Patience * 30 * time.Second):
		t.Error("the text is not read, want that the hub asks for it")
	}
}

// secret is the join token of a Cluster.
var secret = strings.Repeat("t", 40)

// joining returns a hub with a Cluster that has a join token.
func joining(t *testing.T) client.WithWatch {
	t.Helper()
	cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", UID: "u"}}
	registered := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: "prod" + v1.RegistrationSecretSuffix, Labels: map[string]string{v1.LabelSecretKind: v1.SecretKindRegistration, v1.LabelCluster: "prod"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: v1.GroupVersion.String(), Kind: "Cluster", Name: "prod", UID: "u"}},
	}, Data: map[string][]byte{registration.KeyToken: []byte(secret)}}
	return fake.NewClientBuilder().WithScheme(testkit.Scheme(t)).WithObjects(cluster, registered).
		WithIndex(&corev1.Secret{}, registration.TokenHashIndex, registration.IndexTokenHash).Build()
}

// join sends a body with the join token.
func join(t *testing.T, hub client.WithWatch, text string) {
	t.Helper()
	mux := http.NewServeMux()
	server := &registration.Server{
		Cache: hub, Live: hub, Writer: hub, Now: time.Now, Log: logr.Discard(), Settings: func() protocol.Settings { return protocol.Settings{} },
		Refused: func(types.NamespacedName, string, string) {},
	}
	server.Register(mux)
	request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, protocol.PathRegister, strings.NewReader(text))
	request.Header.Set("Authorization", "Bearer "+secret)
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, request)
	if answer.Code < 400 || answer.Code >= 500 || answer.Code == http.StatusUnauthorized || answer.Code == http.StatusTooManyRequests {
		t.Errorf("the join is answered with %d, want a refusal of its body", answer.Code)
	}
}

// watching is a cache that cannot be watched.
type watching struct{ cache.Informers }

func (watching) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return nil, errors.New("no cache here")
}

// resume requests a stream that continues from a token.
func resume(t *testing.T, text string) {
	t.Helper()
	mux := http.NewServeMux()
	subscribe.New(subscribe.Options{
		Authenticate: func(*http.Request) (identity.Identity, error) {
			return identity.Identity{User: "hub:u", Groups: []string{"hub:system:authenticated"}, Hub: authenticationv1.UserInfo{Username: "u"}}, nil
		},
		Watch: func(context.Context, identity.Identity, string, string) (bool, error) { return true, nil }, Informers: watching{}, Now: time.Now,
	}).Register(t.Context(), mux)
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, subscribe.Path+"?kind=clusters&resume="+url.QueryEscape(text), nil)
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", "websocket")
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, request)
	if answer.Code != http.StatusServiceUnavailable {
		t.Errorf("the stream is answered with %d, want 503: its query was not read", answer.Code)
	}
}

// hub makes a user sign in to a GitHub server that responds by path. The path "/" applies to all other paths.
func hub(t *testing.T, answers map[string]string) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, known := answers[r.URL.Path]
		if !known {
			text = answers["/"]
		}
		w.Header().Set("Content-Type", "application/json")
		for rest := text; rest != ""; rest = rest[min(len(rest), 64<<10):] {
			_, _ = io.WriteString(w, rest[:min(len(rest), 64<<10)])
		}
	}))
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	c, err := github.New(github.Config{URL: server.URL, ClientID: "a", ClientSecret: "b", Roots: roots, AnyUser: true})
	if err != nil {
		t.Fatal(err)
	}
	_, kept, err := c.Begin(t.Context(), "https://hub.example.com/callback", "state")
	if err == nil {
		_, err = c.Finish(t.Context(), "https://hub.example.com/callback", kept, url.Values{"code": {"c"}})
	}
	if err == nil {
		t.Error("the login succeeded, want the answers refused")
	}
}

// element returns a BER element with a length of four bytes.
func element(tag byte, content string) string {
	n := len(content)
	return string([]byte{tag, 0x84, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}) + content
}

// message returns an LDAP message that responds to a bind request, with elements in it.
func message(elements string) string { return element(0x30, "\x02\x01\x01"+element(0x61, elements)) }

// nested returns elements in elements to the given depth.
func nested(depth int) string {
	var heads []byte
	for size := 6 * depth; size > 0; size -= 6 {
		n := size - 6
		heads = append(heads, 0x30, 0x84, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	return string(heads)
}

// directory makes a user sign in to a directory that responds to the first request with a text.
func directory(t *testing.T, text string) {
	t.Helper()
	lender := httptest.NewTLSServer(http.NotFoundHandler()) // of its certificate
	defer lender.Close()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS12, Certificates: lender.TLS.Certificates})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	asked := make(chan struct{}, 8)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func(conn net.Conn) {
				defer conn.Close()
				if _, err := bufio.NewReader(conn).ReadByte(); err == nil {
					asked <- struct{}{}
					_, _ = io.WriteString(conn, text)
				}
			}(conn)
		}
	}()
	roots := x509.NewCertPool()
	roots.AddCert(lender.Certificate())
	users := ldap.Users{Base: "ou=people,dc=example,dc=org", Filter: "(uid={name})", ID: "entryUUID", Name: "uid"}
	groups := ldap.Groups{Source: ldap.Search, Base: "ou=groups,dc=example,dc=org", Filter: "(member={dn})", Name: "cn"}
	c, err := ldap.New(ldap.Config{
		Servers: []string{fmt.Sprintf("ldaps://%s", listener.Addr())}, Roots: roots, BindDN: "cn=drover,dc=example,dc=org",
		BindPassword: func(context.Context) (string, error) { return "hush", nil }, Users: users, Groups: groups,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Login(t.Context(), "alice", "secret"); err == nil {
		t.Error("the login succeeded, want the answer refused")
	}
	if len(asked) == 0 {
		t.Error("the directory was not asked, want that its answer is read")
	}
}
