// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-dev/drover/test/testkit"
)

func TestStreams(t *testing.T) {
	t.Run("each event of a watch arrives when it happens", func(t *testing.T) {
		h := newHubSide(t)
		next := make(chan struct{})
		h.agent.answerWith(func(w http.ResponseWriter, r *http.Request) {
			for n := range 3 {
				fmt.Fprintf(w, "event %d\n", n)
				_ = http.NewResponseController(w).Flush()
				select {
				case <-next: // the client has received it
				case <-r.Context().Done():
					return
				}
			}
		})
		response, err := h.Client().Transport.RoundTrip(h.request(t, http.MethodGet, podsPath+"?watch=true", nil, nil))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		lines := bufio.NewScanner(response.Body)
		for n := range 3 {
			if !lines.Scan() || lines.Text() != fmt.Sprintf("event %d", n) {
				t.Fatalf("got %q, %v, want \"event %d\"", lines.Text(), lines.Err(), n)
			}
			next <- struct{}{}
		}
	})
	t.Run("a caller who disconnects ends the request at the member", func(t *testing.T) {
		h := newHubSide(t)
		started, ended := make(chan struct{}), make(chan struct{})
		h.agent.answerWith(func(w http.ResponseWriter, r *http.Request) {
			close(started)
			<-r.Context().Done()
			close(ended)
		})
		ctx, hangUp := context.WithCancel(t.Context())
		go func() {
			<-started
			hangUp()
		}()
		_, err := h.Client().Transport.RoundTrip(h.request(t, http.MethodGet, podsPath, nil, nil).WithContext(ctx))
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		<-ended
	})
	for name, tc := range map[string]struct{ path, heard string }{
		"a stream":  {podsPath + "/a/log", "half"},
		"an object": {podsPath + "/a", ""},
	} {
		t.Run("a tunnel that dies during "+name+" cuts it visibly, and logs no stack", func(t *testing.T) {
			h := newHubSide(t)
			h.agent.answerWith(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "half")
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			})
			var body []byte
			response, err := h.Client().Transport.RoundTrip(h.request(t, http.MethodGet, tc.path, nil, nil))
			if err == nil {
				defer response.Body.Close()
				body, err = io.ReadAll(response.Body)
			}
			if err == nil || string(body) != tc.heard {
				t.Errorf("got %q, %v, want %q and an error", body, err, tc.heard)
			}
			if text := h.log.text(); strings.Contains(text, "goroutine") || strings.Contains(text, "panic") {
				t.Errorf("got log %s, want no panic", text)
			}
		})
	}
}

// echo stands for an API server that upgrades. It answers 101, sends hello, and then returns everything it receives.
func echo(t *testing.T, protocol string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !strings.EqualFold(r.Header.Get("Upgrade"), protocol) ||
			!strings.EqualFold(r.Header.Get("Connection"), "upgrade") {
			t.Errorf("got header %v, want the upgrade", r.Header)
		}
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n"+
			"X-Stream-Protocol-Version: v4\r\nSet-Cookie: a=b\r\n\r\nhello", protocol)
		_, _ = io.Copy(conn, buffered)
	}
}

func upgradeRequest(path, protocol string, lines ...string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: hub.example\r\n"+
		"Authorization: Bearer t-alice\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%s\r\n",
		path, protocol, strings.Join(append(lines, ""), "\r\n"))
}

// CVE-2026-42283: any page can open a WebSocket.
func TestUpgrades(t *testing.T) {
	const exec = "/k8s/clusters/team-a/prod/api/v1/namespaces/x/pods/y/exec?command=sh"
	for _, path := range []string{exec, "/k8s/local/api/v1/namespaces/x/pods/y/exec"} {
		for _, protocol := range []string{"SPDY/3.1", "websocket"} {
			t.Run(protocol+" to "+path+" carries bytes both ways and each end apart", func(t *testing.T) {
				h := newHubSide(t)
				h.agent.answerWith(echo(t, protocol))
				h.hub.answerWith(echo(t, protocol))
				conn, err := net.Dial("tcp", h.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				_, _ = io.WriteString(conn, upgradeRequest(path, protocol,
					"X-Stream-Protocol-Version: v4.channel.k8s.io", "Origin: https://hub.example"))
				reader := bufio.NewReader(conn)
				response, err := http.ReadResponse(reader, nil)
				if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
					t.Fatalf("got %+v, %v, want 101", response, err)
				}
				if response.Header.Get("X-Stream-Protocol-Version") != "v4" || response.Header.Get("Set-Cookie") != "" {
					t.Errorf("got header %v, want the member's protocol and no cookie", response.Header)
				}
				large := strings.Repeat("x", 1<<20)
				go func() {
					_, _ = io.WriteString(conn, large)
					_ = conn.(*net.TCPConn).CloseWrite()
				}()
				got, err := io.ReadAll(reader)
				if err != nil || string(got) != "hello"+large {
					t.Errorf("got %d bytes, %v, want all %d", len(got), err, len("hello"+large))
				}
			})
		}
	}
	t.Run("a connection that the member has closed is read to its end", func(t *testing.T) {
		testkit.ReadUpgradeToEnd(t, upgradeRequest(exec, "SPDY/3.1"), func(transport http.RoundTripper) string {
			h := newHubSide(t)
			h.members.transport = transport
			return h.Listener.Addr().String()
		})
	})
	t.Run("a response other than 101 passes unchanged, because kubectl's fallback depends on it", func(t *testing.T) {
		h := newHubSide(t)
		h.agent.answerWith(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "unable to upgrade", http.StatusBadRequest)
		})
		response, body := h.raw(t, upgradeRequest(exec, "websocket"))
		if response.StatusCode != http.StatusBadRequest || body != "unable to upgrade\n" {
			t.Errorf("got %d %q, want the member's refusal", response.StatusCode, body)
		}
	})
	t.Run("CVE-2018-1002105: after a refused upgrade, the connection carries nothing past the hub", func(t *testing.T) {
		for _, path := range []string{exec, "/k8s/local/api/v1/namespaces/x/pods/y/exec"} {
			h := newHubSide(t)
			refuse := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusBadRequest) }
			h.agent.answerWith(refuse)
			h.hub.answerWith(refuse)
			conn, err := net.Dial("tcp", h.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, upgradeRequest(path, "websocket")+
				"GET /v1/k8s/api/v1/secrets HTTP/1.1\r\nHost: hub.example\r\n"+
				"Impersonate-User: admin\r\nConnection: close\r\n\r\n")
			answers, err := io.ReadAll(conn)
			if err != nil {
				t.Fatal(err)
			}
			if arrived := len(h.agent.all()) + len(h.hub.all()); arrived != 1 ||
				strings.Contains(string(answers), "HTTP/1.1 200") {
				t.Errorf("%s: %d requests arrived and the responses are %q, want only the upgrade to arrive",
					path, arrived, answers)
			}
		}
	})
	t.Run("CVE-2020-8559, CVE-2022-3172: neither the hub nor its client redirects an upgrade", func(t *testing.T) {
		var elsewhere atomic.Int32
		other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
		defer other.Close()
		for _, path := range []string{exec, "/k8s/local/api/v1/namespaces/x/pods/y/exec"} {
			for _, code := range []int{http.StatusFound, http.StatusTemporaryRedirect} {
				h := newHubSide(t)
				h.agent.answerWith(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, code) })
				h.hub.answerWith(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, code) })
				response, body := h.raw(t, upgradeRequest(path, "websocket"))
				wantStatus(t, response, body, http.StatusBadGateway, "BadGateway", "redirect")
				if location := response.Header.Get("Location"); location != "" || elsewhere.Load() != 0 {
					t.Errorf("%s: redirected to %q, and the other server got %d requests, want neither",
						path, location, elsewhere.Load())
				}
			}
		}
	})
	t.Run("a switch to another protocol than requested is 502", func(t *testing.T) {
		h := newHubSide(t)
		h.agent.answerWith(func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
		})
		response, body := h.raw(t, upgradeRequest(exec, "websocket"))
		wantStatus(t, response, body, http.StatusBadGateway, "BadGateway")
	})
	const bearer = "Authorization: Bearer t-alice\r\n"
	for name, test := range map[string]struct{ credential, line string }{
		"a page of another host": {"", "Origin: https://evil.example"},
		"a page without a host":  {"", "Origin: null"},
		"a page of another port": {"", "Origin: https://hub.example:8443"},
		"a page without TLS":     {"", "Origin: http://hub.example:443"},
		"a page of another host, whose cookie a proxy may have turned into the token": {
			bearer, "Origin: https://evil.example\r\nCookie: a=b",
		},
		"a page of another host, whose password a browser adds": {
			"Authorization: Basic YTpi\r\n", "Origin: https://evil.example",
		},
		"two pages": {"", "Origin: https://hub.example\r\nOrigin: https://evil.example"},
	} {
		t.Run("CVE-2019-13209: "+name+" cannot open a WebSocket", func(t *testing.T) {
			for _, path := range []string{exec, "/k8s/local/api"} {
				h := newHubSide(t)
				response, body := h.raw(t, strings.Replace(upgradeRequest(path, "websocket", test.line), bearer,
					test.credential, 1))
				wantStatus(t, response, body, http.StatusForbidden, "Forbidden")
				if len(h.agent.all())+len(h.hub.all()) > 0 {
					t.Error("the request was forwarded, want it refused")
				}
			}
		})
	}
	for name, asked := range map[string]string{
		"h2c":               "h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__",
		"several protocols": "websocket, h2c", "two headers": "websocket\r\nUpgrade: h2c",
	} {
		t.Run("an upgrade to "+name+" is ignored, as in API servers", func(t *testing.T) {
			for _, path := range []string{podsPath, "/k8s/local/api"} {
				h := newHubSide(t)
				response, body := h.raw(t, upgradeRequest(path, asked))
				if response.StatusCode != http.StatusOK {
					t.Errorf("%s: got %d %s, want 200", path, response.StatusCode, body)
				}
				for _, r := range append(h.agent.all(), h.hub.all()...) {
					if r.Header["Upgrade"] != nil || r.Header["Http2-Settings"] != nil {
						t.Errorf("%s: got header %v, want no upgrade", path, r.Header)
					}
				}
			}
		})
	}
	t.Run("CVE-2019-13209: a cookie cannot open a WebSocket", func(t *testing.T) {
		h := newHubSide(t)
		response, body := h.raw(t, strings.Replace(
			upgradeRequest(exec, "websocket", "Origin: https://hub.example", "Cookie: R_SESS=t-alice"),
			"Authorization: Bearer t-alice\r\n", "", 1))
		wantStatus(t, response, body, http.StatusUnauthorized, "Unauthorized")
	})
}

// pipeListener accepts the far ends of net.Pipe, whose deadlines obey the clock of synctest.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{} }

// dialProxy serves a proxy in the synctest bubble with the given transport to its member, and connects to the proxy.
func dialProxy(t *testing.T, transport http.RoundTripper) net.Conn {
	t.Helper()
	lines := &logLines{}
	handler, err := New(testOptions((&fakeMembers{transport: transport}).Transport, lines.logger()))
	if err != nil {
		t.Fatal(err)
	}
	listener := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{Handler: handler, ErrorLog: log.New(lines, "", 0)}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
	})
	near, far := net.Pipe()
	t.Cleanup(func() { _ = near.Close() })
	listener.conns <- far
	return near
}

// body is the body of a response. It reports when it is closed.
type body struct {
	io.Reader
	closed chan struct{}
	once   sync.Once
}

func newBody(r io.Reader) *body { return &body{Reader: r, closed: make(chan struct{})} }

func (b *body) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

func answering(b *body, length int64) http.RoundTripper {
	return roundTripperFunc(func(r *http.Request) (*http.Response, error) {
		return &http.Response{
			StatusCode: http.StatusOK, Header: http.Header{}, ContentLength: length, Body: b, Request: r,
		}, nil
	})
}

// zeros is an endless reader.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestStalledUsers(t *testing.T) {
	t.Run("a user who reads nothing is cut off after three minutes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			answer := newBody(zeros{})
			conn := dialProxy(t, answering(answer, 1<<30))
			start := time.Now()
			_, _ = io.WriteString(conn, rawGet(podsPath))
			<-answer.closed
			if took := time.Since(start); took != 3*time.Minute {
				t.Errorf("cut off after %s, want three minutes", took)
			}
		})
	})
	t.Run("a user who reads nothing of a stream is cut off", func(t *testing.T) {
		// httputil waits for a lock here, and synctest's clock stands still meanwhile. So the test uses a short limit
		// in real time.
		h := newHubSide(t, func(o *Options) { o.Limits.Stall = 20 * time.Millisecond })
		answer := newBody(zeros{})
		h.members.transport = answering(answer, -1)
		conn, err := net.Dial("tcp", h.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, rawGet(podsPath))
		<-answer.closed
	})
	t.Run("a user who reads nothing of an HTTP/2 stream loses only this stream", func(t *testing.T) {
		h := newHubSide(t, func(o *Options) { o.Limits.Stall = 20 * time.Millisecond })
		plain := h.members.transport
		endless := newBody(zeros{})
		h.members.transport = roundTripperFunc(func(r *http.Request) (*http.Response, error) {
			if r.URL.RawQuery == "watch" {
				return answering(endless, -1).RoundTrip(r)
			}
			return plain.RoundTrip(r)
		})
		front := startHTTP2(h.handler)
		defer front.Close()
		h.URL = front.URL
		get := func(path string) *http.Response {
			response, err := front.Client().Transport.RoundTrip(h.request(t, http.MethodGet, path, nil, nil))
			if err != nil || response.StatusCode != http.StatusOK || response.ProtoMajor != 2 {
				t.Fatalf("got %+v, %v, want 200 over HTTP/2", response, err)
			}
			t.Cleanup(func() { _ = response.Body.Close() })
			return response
		}
		stalled := get(podsPath + "?watch")
		<-endless.closed
		if _, err := io.Copy(io.Discard, stalled.Body); err == nil {
			t.Error("the stream looks complete, want an error")
		}
		get(podsPath)
	})
	t.Run("a user who reads a little every minute is not cut off", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			conn := dialProxy(t, answering(newBody(io.LimitReader(zeros{}, 400<<10)), 400<<10))
			_, _ = io.WriteString(conn, rawGet(podsPath))
			chunk, total := make([]byte, 64<<10), 0
			for {
				time.Sleep(time.Minute) // the clock of synctest, not a real wait
				n, err := conn.Read(chunk)
				if total += n; err != nil {
					break
				}
			}
			if total < 400<<10 {
				t.Errorf("got %d bytes, want at least 400 KiB", total)
			}
		})
	})
	t.Run("a watch without events does not stall", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			events, member := io.Pipe()
			go func() {
				time.Sleep(time.Hour) // the clock of synctest, not a real wait
				_, _ = io.WriteString(member, "event")
				_ = member.Close()
			}()
			conn := dialProxy(t, answering(newBody(events), -1))
			_, _ = io.WriteString(conn, rawGet(podsPath))
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(response.Body); err != nil || string(got) != "event" {
				t.Errorf("got %q, %v, want \"event\"", got, err)
			}
		})
	})
	t.Run("a user who does not read the end of a small response is cut off after three minutes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			conn := dialProxy(t, answering(newBody(strings.NewReader("small")), 5))
			start := time.Now()
			_, _ = io.WriteString(conn, rawGet(podsPath))
			time.Sleep(3*time.Minute - time.Second) // the clock of synctest, not a real wait
			synctest.Wait()
			time.Sleep(2 * time.Second)
			if got, err := io.ReadAll(conn); err != nil || len(got) > 0 {
				t.Errorf("got %[2]q, %[3]v after %[1]s, want the end of the connection", time.Since(start), got, err)
			}
		})
	})
	t.Run("a user who does not send the announced body is cut off after three minutes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			conn := dialProxy(t, roundTripperFunc(func(r *http.Request) (*http.Response, error) {
				_, err := io.Copy(io.Discard, r.Body)
				return nil, err
			}))
			start := time.Now()
			_, _ = io.WriteString(conn, "POST "+podsPath+" HTTP/1.1\r\nHost: hub\r\n"+
				"Authorization: Bearer t-alice\r\nContent-Length: 10\r\n\r\nabc")
			if got, err := io.ReadAll(conn); err != nil || len(got) > 0 || time.Since(start) != 3*time.Minute {
				t.Errorf("got %[2]q, %[3]v after %[1]s, want the end of the connection", time.Since(start), got, err)
			}
		})
	})
	t.Run("an upgraded user who reads nothing is cut off, but a silent one is not", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			member, proxyEnd := net.Pipe()
			conn := dialProxy(t, roundTripperFunc(func(r *http.Request) (*http.Response, error) {
				if r.URL.Path == pathAccessReview { // the check whether the session may continue
					return nil, errors.New("not here")
				}
				return &http.Response{
					StatusCode: http.StatusSwitchingProtocols, ProtoMajor: 1, ProtoMinor: 1, Body: proxyEnd, Request: r,
					Header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}},
				}, nil
			}))
			_, _ = io.WriteString(conn, upgradeRequest(podsPath, "SPDY/3.1"))
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
				t.Fatalf("got %+v, %v, want 101", response, err)
			}
			time.Sleep(time.Hour) // the clock of synctest, not a real wait
			start := time.Now()
			_, err = io.Copy(member, zeros{})
			if err == nil || time.Since(start) != 3*time.Minute {
				t.Errorf("got %[2]v after %[1]s, want an error after three minutes", time.Since(start), err)
			}
		})
	})
}
