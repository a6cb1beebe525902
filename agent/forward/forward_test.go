// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

// arrives returns the impersonated user and groups of a request as the receiver sees them. It returns none if the
// request cannot be sent.
func arrives(t *testing.T, req *http.Request) []string {
	t.Helper()
	var wire bytes.Buffer
	if err := req.Write(&wire); err != nil {
		return nil
	}
	got, err := http.ReadRequest(bufio.NewReader(&wire))
	if err != nil {
		return nil
	}
	return append(got.Header["Impersonate-User"], got.Header["Impersonate-Group"]...)
}

// member returns an API server behind a Handler.
func member(t *testing.T, base string, api http.HandlerFunc) *httptest.Server {
	t.Helper()
	backend := httptest.NewServer(api)
	t.Cleanup(backend.Close)
	cfg := &rest.Config{Host: backend.URL + base, BearerToken: "agents-own"}
	return serve(t, cfg)
}

func serve(t *testing.T, cfg *rest.Config) *httptest.Server {
	t.Helper()
	return serveBy(t, cfg, New)
}

// serveBy does the same as serve, for a Handler that a function creates.
func serveBy(t *testing.T, cfg *rest.Config,
	handler func(context.Context, *url.URL, http.RoundTripper, logr.Logger) *Handler) *httptest.Server {
	t.Helper()
	transport, err := Transport(cfg)
	if err != nil {
		t.Fatal(err)
	}
	root, err := BaseURL(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	front := httptest.NewServer(handler(ctx, root, transport, logr.Discard()))
	front.Config.RegisterOnShutdown(cancel)
	t.Cleanup(front.Close)
	return front
}

// send writes a request unchanged, without a client that would clean it, and returns the response.
func send(t *testing.T, server *httptest.Server, target string, header http.Header) (*http.Response, string) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var text strings.Builder
	fmt.Fprintf(&text, "GET %s HTTP/1.1\r\nHost: agent\r\n", target)
	for name, values := range header {
		for _, v := range values {
			fmt.Fprintf(&text, "%s: %s\r\n", name, v)
		}
	}
	if _, err := io.WriteString(conn, text.String()+"\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// watch starts a watch as alice, which ends when ctx ends, and returns its body.
func watch(ctx context.Context, t *testing.T, url string) io.Reader {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = alice()
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp.Body
}

func alice() http.Header { return http.Header{"Impersonate-User": {"hub:alice"}} }

func TestPaths(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		base, target, want string // want is the target on the API server; empty means 400
	}{
		"an ordinary path":                       {"", "/v1/k8s/api/v1/pods?limit=5", "/api/v1/pods?limit=5"},
		"the root":                               {"", "/v1/k8s/", "/"},
		"an encoded slash stays encoded":         {"", "/v1/k8s/api/v1/namespaces/a%2Fb", "/api/v1/namespaces/a%2Fb"},
		"other encodings stay":                   {"", "/v1/k8s/a%20b/%7Ec", "/a%20b/%7Ec"},
		"two dots go to the API server to judge": {"", "/v1/k8s/api/../x", "/api/../x"},
		"two slashes stay on the same host":      {"", "/v1/k8s//evil.example/x", "//evil.example/x"},
		"a query that Go would drop stays":       {"", "/v1/k8s/x?a=1;b=2&c=%zz", "/x?a=1;b=2&c=%zz"},
		"an absolute target goes to the same":    {"", "http://evil.example/v1/k8s/x", "/x"},
		"a base path comes first":                {"/k8s/c-1", "/v1/k8s/api", "/k8s/c-1/api"},
		"no way out of a base path":              {"/k8s/c-1", "/v1/k8s/../c-2/api", ""},
		"no encoded way out of a base path":      {"/k8s/c-1", "/v1/k8s/%2e%2e/c-2/api", ""},
		"no way out behind an encoded slash":     {"/k8s/c-1", "/v1/k8s/x%2f..%2f..%2fc-2", ""},
		"another prefix":                         {"", "/v1/report", ""},
		"the prefix, encoded":                    {"", "/v1%2Fk8s/x", ""},
		"the prefix as part of a word":           {"", "/v1/k8sx", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ""
			front := member(t, tc.base, func(_ http.ResponseWriter, r *http.Request) { got = r.RequestURI })
			resp, body := send(t, front, tc.target, alice())
			if tc.want == "" && resp.StatusCode != http.StatusBadRequest {
				t.Errorf("%s %s, want 400", resp.Status, body)
			}
			if got != tc.want {
				t.Errorf("the API server saw %q, want %q", got, tc.want)
			}
		})
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	t.Run("the agent's credential replaces what came, and only identity passes", func(t *testing.T) {
		t.Parallel()
		var got http.Header
		front := member(t, "", func(w http.ResponseWriter, r *http.Request) { got = r.Header.Clone() })
		h := alice()
		h["Impersonate-Group"] = []string{"hub:dev", "system:authenticated"}
		for _, name := range []string{"Authorization", "Cookie", "Priority", "X-Remote-User", "X-Remote-Extra-Scopes",
			"X-Forwarded-For", "Forwarded"} {
			h[name] = []string{"stolen"}
		}
		h["Accept-Encoding"], h["User-Agent"], h["Accept"] = []string{"gzip"}, []string{"kubectl/v1"},
			[]string{"application/json"}
		send(t, front, "/v1/k8s/x", h)
		want := http.Header{
			"Authorization": {"Bearer agents-own"}, "Impersonate-User": {"hub:alice"},
			"Impersonate-Group": {"hub:dev", "system:authenticated"},
			"Accept-Encoding":   {"gzip"}, "User-Agent": {"kubectl/v1"}, "Accept": {"application/json"},
		}
		for name := range got {
			if fmt.Sprint(got[name]) != fmt.Sprint(want[name]) {
				t.Errorf("%s: got %q, want %q", name, got[name], want[name])
			}
			delete(want, name)
		}
		if len(want) > 0 {
			t.Errorf("missing %v", want)
		}
	})

	t.Run("CVE-2021-31999: what is denied never reaches the API server", func(t *testing.T) {
		t.Parallel()
		called := false
		front := member(t, "", func(http.ResponseWriter, *http.Request) { called = true })
		for want, h := range map[int]http.Header{
			http.StatusBadRequest: {"Impersonate-User": {"hub:alice"}, "Connection": {"Impersonate-User"}},
			http.StatusForbidden:  {"Impersonate-User": {"hub:alice"}, "Impersonate-Group": {"system:masters"}},
		} {
			resp, body := send(t, front, "/v1/k8s/x", h)
			status := wantStatus(t, resp, body, want)
			if status.Message == "" {
				t.Error("no message")
			}
		}
		if called {
			t.Error("the API server was called")
		}
	})

	t.Run("the token comes from a file, which client-go reads again each minute", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(path, []byte("first"), 0o600); err != nil {
			t.Fatal(err)
		}
		var got string
		backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter,
			r *http.Request) {
			got = r.Header.Get("Authorization")
		}))
		t.Cleanup(backend.Close)
		front := serve(t, &rest.Config{Host: backend.URL, BearerTokenFile: path})
		if send(t, front, "/v1/k8s/x", alice()); got != "Bearer first" {
			t.Errorf("got %q", got)
		}
	})
}

func wantStatus(t *testing.T, resp *http.Response, body string, code int) metav1.Status {
	t.Helper()
	var status metav1.Status
	if err := json.Unmarshal([]byte(body), &status); err != nil {
		t.Fatalf("the response is no Status: %s %q: %v", resp.Status, body, err)
	}
	if resp.StatusCode != code || int(status.Code) != code || status.Kind != "Status" ||
		resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("got %s %+v, want %d", resp.Status, status, code)
	}
	return status
}

func TestFailures(t *testing.T) {
	t.Parallel()
	t.Run("an API server that is not there is a 503 to try again", func(t *testing.T) {
		t.Parallel()
		backend := httptest.NewServer(nil)
		address := backend.URL
		backend.Close()
		resp, body := send(t, serve(t, &rest.Config{Host: address}), "/v1/k8s/x", alice())
		wantStatus(t, resp, body, http.StatusServiceUnavailable)
		if resp.Header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	})
	t.Run("an API server that hangs up is a 502", func(t *testing.T) {
		t.Parallel()
		front := member(t, "", func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_ = conn.Close()
			}
		})
		resp, body := send(t, front, "/v1/k8s/x", alice())
		wantStatus(t, resp, body, http.StatusBadGateway)
	})
	t.Run("a transport that times out is a 504", func(t *testing.T) {
		t.Parallel()
		slow := roundTripper(func(*http.Request) (*http.Response, error) {
			return nil, &url.Error{Op: "Get", URL: "x", Err: context.DeadlineExceeded}
		})
		front := httptest.NewServer(New(t.Context(), &url.URL{Scheme: "https", Host: "api"}, slow, logr.Discard()))
		t.Cleanup(front.Close)
		resp, body := send(t, front, "/v1/k8s/x", alice())
		wantStatus(t, resp, body, http.StatusGatewayTimeout)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestStreams(t *testing.T) {
	t.Parallel()
	t.Run("each event of a watch arrives at once", func(t *testing.T) {
		t.Parallel()
		more := make(chan struct{})
		front := member(t, "", func(w http.ResponseWriter, _ *http.Request) {
			control := http.NewResponseController(w)
			for i := range 3 {
				fmt.Fprintf(w, "event %d\n", i)
				if control.Flush() != nil {
					return
				}
				<-more
			}
		})
		body := watch(t.Context(), t, front.URL+"/v1/k8s/api/v1/pods?watch=1")
		lines := bufio.NewReader(body)
		for i := range 3 { // the server sends the next event only after this one has been read
			line, err := lines.ReadString('\n')
			if err != nil || line != fmt.Sprintf("event %d\n", i) {
				t.Fatalf("got %q, %v, want the event as soon as the API server has sent it", line, err)
			}
			more <- struct{}{}
		}
	})
	t.Run("giving up a watch ends it at the API server", func(t *testing.T) {
		t.Parallel()
		ended := make(chan struct{})
		front := member(t, "", func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			close(ended)
		})
		ctx, cancel := context.WithCancel(t.Context())
		watch(ctx, t, front.URL+"/v1/k8s/api/v1/pods?watch=1")
		cancel()
		select {
		case <-ended:
		case <-time.After(testkit.Patience * 10 * time.Second):
			t.Fatal("still running after 10 s")
		}
	})
	t.Run("a watch ends cleanly with the agent, with all that came before", func(t *testing.T) {
		t.Parallel()
		front := member(t, "", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "event\n")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
		body := watch(t.Context(), t, front.URL+"/v1/k8s/api/v1/pods?watch=true")
		lines := bufio.NewReader(body)
		if line, err := lines.ReadString('\n'); line != "event\n" {
			t.Fatalf("got %q, %v, want the first event", line, err)
		}
		if err := front.Config.Shutdown(t.Context()); err != nil { // the agent does this when it stops
			t.Fatal(err)
		}
		if rest, err := io.ReadAll(lines); len(rest) > 0 || err != nil {
			t.Errorf("got %q, %v, want the end of the body and no error", rest, err)
		}
	})
	t.Run("an upgrade carries bytes both ways, as the user", func(t *testing.T) {
		t.Parallel()
		front := member(t, "", func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Impersonate-User") != "hub:alice" || r.Header.Get("Authorization") != "Bearer agents-own" {
				http.Error(w, "who?", http.StatusForbidden)
				return
			}
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
			_, _ = io.Copy(conn, rw)
		})
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", front.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, err = io.WriteString(conn,
			"POST /v1/k8s/exec HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nImpersonate-User: "+
				"hub:alice\r\n\r\n")
		if err != nil {
			t.Fatal(err)
		}
		reader := bufio.NewReader(conn)
		resp, err := http.ReadResponse(reader, nil)
		if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("upgrade: got %v, %v, want 101", resp, err)
		}
		if _, err := io.WriteString(conn, "ping"); err != nil {
			t.Fatal(err)
		}
		echo := make([]byte, 4)
		if _, err := io.ReadFull(reader, echo); err != nil || string(echo) != "ping" {
			t.Errorf("got %q, %v, want the echo of \"ping\"", echo, err)
		}
	})
	t.Run("an upgraded connection that the API server has closed is read to its end", func(t *testing.T) {
		t.Parallel()
		testkit.ReadUpgradeToEnd(t,
			"POST /v1/k8s/exec HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nImpersonate-User: "+
				"hub:alice\r\n\r\n", func(transport http.RoundTripper) string {
				front := httptest.NewServer(New(t.Context(), &url.URL{Scheme: "http", Host: "api"}, transport, logr.Discard()))
				t.Cleanup(front.Close)
				return front.Listener.Addr().String()
			})
	})
}

func TestReadOnlyAgentForwardsOnlyReadsAsTheViewer(t *testing.T) {
	t.Parallel()
	var seen []http.Header
	backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter,
		r *http.Request) {
		seen = append(seen, r.Header)
	}))
	t.Cleanup(backend.Close)
	cfg := &rest.Config{Host: backend.URL, BearerToken: "agents-own"}
	transport, err := Transport(cfg)
	if err != nil {
		t.Fatal(err)
	}
	root, err := BaseURL(cfg)
	if err != nil {
		t.Fatal(err)
	}
	h := NewReadOnly(t.Context(), root, transport, logr.Discard())
	ask := func(method string, change func(http.Header)) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), method, "/v1/k8s/api/v1/pods", nil)
		r.Header.Set("Impersonate-User", "github:alice")
		r.Header.Set("Impersonate-Extra-A", "b")
		change(r.Header)
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, r)
		return answer
	}
	t.Run("reads as the viewer, whoever asks", func(t *testing.T) {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			if got := ask(method, func(http.Header) {}); got.Code != http.StatusOK {
				t.Fatalf("%s: %d %s, want 200", method, got.Code, got.Body)
			}
		}
		for _, header := range seen {
			for name := range header {
				if isImpersonation(name) && name != impersonateUser || header.Get(impersonateUser) != protocol.Viewer ||
					header.Get("Authorization") != "Bearer agents-own" {
					t.Errorf("the API server got %v", header)
				}
			}
		}
	})
	t.Run("refuses everything else with a Status that says why", func(t *testing.T) {
		before := len(seen)
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, "CONNECT"} {
			if got := ask(method, func(http.Header) {}); got.Code != http.StatusForbidden ||
				!strings.Contains(got.Body.String(), "ReadOnly") {
				t.Errorf("%s: %d %s, want 403 that names the profile ReadOnly", method, got.Code, got.Body)
			}
		}
		upgrade := func(h http.Header) { h.Set("Connection", "Upgrade"); h.Set("Upgrade", "websocket") }
		if got := ask(http.MethodGet, upgrade); got.Code != http.StatusForbidden {
			t.Errorf("an upgrade: %d", got.Code)
		}
		noUser := func(h http.Header) { h.Del("Impersonate-User") }
		if got := ask(http.MethodGet, noUser); got.Code != http.StatusForbidden {
			t.Errorf("a request that names no user: got %d", got.Code)
		}
		if len(seen) != before {
			t.Error("some of it reached the API server")
		}
	})
}
