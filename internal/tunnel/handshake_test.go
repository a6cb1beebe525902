// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

func TestAcceptRefusesAllButAgents(t *testing.T) {
	hub := newTestServer(t, Config{})
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: hub.roots}}}
	defer client.CloseIdleConnections()
	offer := func(change func(http.Header)) http.Header {
		h := http.Header{
			"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
			"Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}, "Sec-Websocket-Protocol": {Subprotocol},
		}
		change(h)
		return h
	}
	for _, test := range []struct {
		name   string
		change func(http.Header)
		status int
		says   string
	}{
		{"a browser of another site", func(h http.Header) { h.Set("Origin", "https://evil.example") }, 403, "Origin"},
		{"a browser of the same site", func(h http.Header) { h.Set("Origin", hub.url) }, 403, "Origin"},
		{"a browser without a site", func(h http.Header) { h["Origin"] = []string{""} }, 403, "Origin"},
		{"an ordinary request", func(h http.Header) { h.Del("Upgrade"); h.Del("Connection") }, 426, Subprotocol},
		{"another upgrade", func(h http.Header) { h.Set("Upgrade", "h2c") }, 426, Subprotocol},
		{"an agent that offers no subprotocol", func(h http.Header) { h.Del("Sec-Websocket-Protocol") }, 400, Subprotocol},
		{"an agent of another version", func(h http.Header) { h.Set("Sec-Websocket-Protocol", "drover.h3.v9") }, 400,
			"drover.h3.v9"},
		{"a WebSocket of another version", func(h http.Header) { h.Set("Sec-Websocket-Version", "8") }, 400, "13"},
		{"a WebSocket without a key", func(h http.Header) { h.Del("Sec-Websocket-Key") }, 400, "Key"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.Replace(hub.url, "wss", "https", 1), nil)
			r.Header = offer(test.change)
			response, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			if body := readAll(t, response); response.StatusCode != test.status || !strings.Contains(body, test.says) {
				t.Errorf("got %s, %q, want %d and %q", response.Status, body, test.status, test.says)
			}
			if err := await(t, "the reason at the hub", hub.errors); err == nil {
				t.Error("got no error at the hub, want the reason")
			}
		})
	}
}

func TestDialTurnedAway(t *testing.T) {
	for name, tt := range map[string]struct {
		hub  func(*httptest.Server)
		want bool
	}{
		"a hub that ends the TLS handshake turns the agent away": {func(s *httptest.Server) {
			s.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				return nil,
					errors.New("busy")
			}}
		}, true},
		"a connection that ends without an alert does not": {func(s *httptest.Server) {
			s.TLS = &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
				return nil,
					hello.Conn.Close()
			}}
		}, false},
		"an untrusted certificate does not": {func(*httptest.Server) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(http.NotFoundHandler())
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			tt.hub(server)
			server.StartTLS()
			t.Cleanup(server.Close)
			dialer := &Dialer{TLS: &tls.Config{RootCAs: x509.NewCertPool()}, Proxy: noProxy}
			if _, err := dialer.Dial(t.Context(), "wss"+strings.TrimPrefix(server.URL, "https"), nil); err == nil ||
				errors.Is(err, ErrTurnedAway) != tt.want {
				t.Errorf("got error %v, want ErrTurnedAway: %t", err, tt.want)
			}
		})
	}
}

func TestDialRefused(t *testing.T) {
	serve := func(h http.HandlerFunc) (string, *Dialer) {
		server := httptest.NewUnstartedServer(h)
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.StartTLS()
		t.Cleanup(server.Close)
		roots := server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
		return "wss" + strings.TrimPrefix(server.URL, "https"), &Dialer{TLS: &tls.Config{RootCAs: roots}, Proxy: noProxy}
	}
	t.Run("a refusal has a status, a body and a time to retry", func(t *testing.T) {
		target, dialer := serve(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			http.Error(w, "IdentityMismatch: "+strings.Repeat("x", 1<<20), http.StatusForbidden)
		})
		_, err := dialer.Dial(t.Context(), target, http.Header{"Authorization": {"Bearer secret"}})
		var refused *HandshakeError
		if !errors.As(err, &refused) {
			t.Fatalf("got %v, want a HandshakeError", err)
		}
		if refused.StatusCode != 403 || refused.RetryAfter != 7*time.Second ||
			!strings.HasPrefix(refused.Body, "IdentityMismatch") {
			t.Errorf("got %+v, want 403, Retry-After 7 s and the reason", refused)
		}
		if len(refused.Body) > 1<<10 {
			t.Errorf("the error has %d bytes of the body, want at most 1 KiB", len(refused.Body))
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("the error shows the credential: %v", err)
		}
	})
	t.Run("a redirect is not followed with the credential", func(t *testing.T) {
		target, dialer := serve(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://evil.example/", http.StatusFound)
		})
		_, err := dialer.Dial(t.Context(), target, nil)
		var refused *HandshakeError
		if !errors.As(err, &refused) || refused.StatusCode != http.StatusFound {
			t.Errorf("got %v, want the redirect refused", err)
		}
	})
	t.Run("a WebSocket that is not a tunnel is not used", func(t *testing.T) {
		upgrader := websocket.Upgrader{}
		target, dialer := serve(func(w http.ResponseWriter, r *http.Request) {
			if ws, err := upgrader.Upgrade(w, r, nil); err == nil {
				_ = ws.Close()
			}
		})
		if _, err := dialer.Dial(t.Context(), target, nil); err == nil || !strings.Contains(err.Error(), Subprotocol) {
			t.Errorf("got %v, want an error that names the subprotocol", err)
		}
	})
	t.Run("the agent gives up a hub that never answers", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = listener.Close() }()
		gone := make(chan struct{})
		go func() {
			if conn, err := listener.Accept(); err == nil {
				_, _ = io.Copy(io.Discard, conn) // until the agent closes it
				_ = conn.Close()
				close(gone)
			}
		}()
		dialer := &Dialer{Config: Config{HandshakeTimeout: 50 * time.Millisecond}, Proxy: noProxy}
		if _, err := dialer.Dial(t.Context(), "ws://"+listener.Addr().String(), nil); err == nil {
			t.Error("Dial succeeds, want an error")
		}
		await(t, "the connection to be closed", gone)
	})
	t.Run("a certificate of another CA is refused", func(t *testing.T) {
		target, _ := serve(func(http.ResponseWriter, *http.Request) { t.Error("a request came, want none") })
		other := newTestServer(t, Config{})
		other.roots = nil // the system's
		_, err := other.dialer(Config{}).Dial(t.Context(), target, nil)
		var unknown *tls.CertificateVerificationError
		if !errors.As(err, &unknown) {
			t.Errorf("got error %v, want one about the certificate", err)
		}
	})
	t.Run("TLS 1.2 is refused", func(t *testing.T) {
		server := httptest.NewUnstartedServer(http.NotFoundHandler())
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.TLS = &tls.Config{MaxVersion: tls.VersionTLS12}
		server.StartTLS()
		defer server.Close()
		dialer := &Dialer{TLS: &tls.Config{InsecureSkipVerify: true}, Proxy: noProxy}
		_, err := dialer.Dial(t.Context(), "wss"+strings.TrimPrefix(server.URL, "https"), nil)
		if err == nil || !strings.Contains(err.Error(), "version") {
			t.Errorf("got %v, want an error about the version", err)
		}
	})
}

func TestAgentOffersOnlyHTTP1(t *testing.T) {
	given := &tls.Config{NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS10, ServerName: "x"}
	got := clientTLS(given)
	if len(got.NextProtos) != 1 || got.NextProtos[0] != "http/1.1" || got.MinVersion != tls.VersionTLS13 ||
		got.ServerName != "x" {
		t.Errorf("got %v, %x, %s, want HTTP/1.1, TLS 1.3 and the server's name \"x\"", got.NextProtos, got.MinVersion,
			got.ServerName)
	}
	if given.NextProtos[0] != "h2" {
		t.Error("Dial changed the caller's configuration")
	}
}

func TestPeerThatIsNotATunnelIsRefused(t *testing.T) {
	t.Run("an agent that sends text is refused", func(t *testing.T) {
		hub := newTestServer(t, Config{HandshakeTimeout: 5 * time.Second})
		dialer := websocket.Dialer{TLSClientConfig: &tls.Config{RootCAs: hub.roots}, Subprotocols: []string{Subprotocol}}
		ws, _, err := dialer.DialContext(t.Context(), hub.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = ws.Close() }()
		_ = ws.WriteMessage(websocket.TextMessage, []byte("hello"))
		wantError(t, await(t, "the refusal", hub.errors), ErrProtocol)
	})
	t.Run("an agent that breaks WebSocket framing loses its tunnel", func(t *testing.T) {
		p := overTLS(t, Config{}, http.HandlerFunc(answer))
		_, _ = p.conn.conn.Conn.(*wsConn).ws.NetConn().Write([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"))
		await(t, "the hub to notice", p.session.Done())
		wantError(t, p.session.Err(), ErrProtocol)
	})
	t.Run("the hub gives up an agent that sends nothing", func(t *testing.T) {
		hub := newTestServer(t, Config{HandshakeTimeout: 50 * time.Millisecond})
		dialer := websocket.Dialer{TLSClientConfig: &tls.Config{RootCAs: hub.roots}, Subprotocols: []string{Subprotocol}}
		ws, _, err := dialer.DialContext(t.Context(), hub.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = ws.Close() }()
		wantError(t, await(t, "the refusal", hub.errors), ErrPingTimeout)
	})
	t.Run("the agent gives up a hub that sends nothing", func(t *testing.T) {
		_, agentEnd := net.Pipe()
		err := NewConn(agentEnd, Config{HandshakeTimeout: 20 * time.Millisecond}).Serve(t.Context(), http.NotFoundHandler())
		wantError(t, err, ErrPeerClosed)
	})
	t.Run("an agent that stops leaves a hub that sends nothing", func(t *testing.T) {
		_, agentEnd := net.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wantError(t, NewConn(agentEnd, Config{}).Serve(ctx, http.NotFoundHandler()), ErrClosed)
	})
}

func TestThroughProxy(t *testing.T) {
	var connects atomic.Int32
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || r.Header.Get("Proxy-Authorization") == "" {
			http.Error(w, "CONNECT with a password only", http.StatusProxyAuthRequired)
			return
		}
		connects.Add(1)
		far, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", r.Host)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		near, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		_, _ = io.WriteString(near, "HTTP/1.1 200 OK\r\n\r\n")
		go func() {
			_, _ = io.Copy(far, buffered)
			_ = far.Close()
		}()
		_, _ = io.Copy(near, far)
		_ = near.Close()
	}))
	defer proxy.Close()
	cfg := quiet(Config{})
	hub := newTestServer(t, cfg)
	via := func(password string) *Dialer {
		dialer := hub.dialer(cfg)
		dialer.Proxy = func(r *http.Request) (*url.URL, error) {
			if r.URL.Scheme != "https" {
				t.Errorf("the proxy was chosen for %s, want an https URL", r.URL)
			}
			address, err := url.Parse(proxy.URL)
			if password != "" {
				address.User = url.UserPassword("agent", password)
			}
			return address, err
		}
		return dialer
	}
	t.Run("a tunnel passes through a proxy with CONNECT", func(t *testing.T) {
		conn, err := via("hunter2").Dial(t.Context(), hub.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		p := newPair(t, conn, http.HandlerFunc(answer))
		p.session = await(t, "a session at the hub", hub.sessions)
		if got := p.get(t, "/"); got != "ok" || connects.Load() != 1 {
			t.Errorf("got %q after %d CONNECT requests, want \"ok\" after 1", got, connects.Load())
		}
	})
	t.Run("a proxy that refuses is named as the cause, without the password", func(t *testing.T) {
		_, err := via("").Dial(t.Context(), hub.url, nil)
		if err == nil || !strings.Contains(err.Error(), "Proxy Authentication Required") ||
			strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got %v, want the proxy's refusal without the password", err)
		}
	})
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"": 0, "5": 5 * time.Second, "0": 0, "-3": 0, "soon": 0, "99999999999": 24 * time.Hour, "999999999999999999999": 0,
		"Sat, 21 Nov 2026 12:01:00 GMT": time.Minute, "Sat, 21 Nov 2026 11:00:00 GMT": 0,
		"Sat, 21 Nov 2099 11:00:00 GMT": 24 * time.Hour,
	} {
		if got := retryAfter(value, now); got != want {
			t.Errorf("got %[2]v for %[1]q, want %[3]v", value, got, want)
		}
	}
}

func TestGoodbye(t *testing.T) {
	t.Run("the end of a session is an orderly close of the WebSocket", func(t *testing.T) {
		hub := newTestServer(t, Config{})
		dialer := websocket.Dialer{TLSClientConfig: &tls.Config{RootCAs: hub.roots}, Subprotocols: []string{Subprotocol}}
		ws, _, err := dialer.DialContext(t.Context(), hub.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		end := &wsConn{ws: ws}
		go func() { served <- NewConn(end, Config{}).Serve(t.Context(), http.NotFoundHandler()) }()
		_ = await(t, "a session", hub.sessions).Close()
		err = await(t, "Serve to return", served)
		var closed *websocket.CloseError
		if !errors.As(err, &closed) || closed.Code != websocket.CloseNormalClosure {
			t.Errorf("got %v, want a normal closure", err)
		}
	})
	t.Run("an empty read reads nothing", func(t *testing.T) {
		if n, err := (&wsConn{}).Read(nil); n != 0 || err != nil {
			t.Errorf("got %d, %v, want 0, nil", n, err)
		}
	})
}
