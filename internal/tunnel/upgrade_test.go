// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// target is the HTTP/1.1 server behind the agent. It upgrades to "echo" and does what the path says.
func target(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/declines" || r.Header.Get("Upgrade") != "echo" {
		w.Header().Set("X-Target", "declined")
		w.Header().Set(headerUpgrade, "forged")
		http.Error(w, "no: "+r.Method, http.StatusForbidden)
		return
	}
	if r.URL.Path == "/ignores" {
		w.Header().Set(headerUpgrade, "forged")
		_, _ = io.WriteString(w, "an ordinary answer")
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(buffered, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n"+
		"X-Method: %s\r\nX-Uri: %s\r\nSec-Websocket-Protocol: v5\r\n\r\n", r.Method, r.RequestURI)
	_ = buffered.Flush()
	switch r.URL.Path {
	case "/echo":
		_, _ = io.Copy(conn, buffered)
	case "/speaks-first":
		_, _ = io.WriteString(conn, "last words")
		_ = conn.(*tls.Conn).CloseWrite()
		heard, _ := io.ReadAll(buffered)
		reported(r.Context(), heard)
	case "/listens":
		heard, _ := io.ReadAll(buffered)
		reported(r.Context(), heard)
	}
}

type reportKey struct{}

// reported sends the data that the target received to the test.
func reported(ctx context.Context, heard []byte) {
	ctx.Value(reportKey{}).(chan []byte) <- heard
}

// withTarget returns an agent that forwards to the target, and the data that the target receives.
func withTarget(t *testing.T) (agent http.Handler, heard <-chan []byte) {
	t.Helper()
	reports := make(chan []byte, 100)
	server := httptest.NewUnstartedServer(http.HandlerFunc(target))
	server.Config.BaseContext = func(net.Listener) context.Context {
		return context.WithValue(context.Background(), reportKey{}, reports)
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(address) },
		Transport: server.Client().Transport,
		ErrorLog:  log.New(io.Discard, "", 0),
	}, reports
}

// upgrade sends a request to upgrade to the protocol "echo".
func (p *pair) upgrade(t *testing.T, path string) *http.Response {
	t.Helper()
	r := request(t, http.MethodGet, path, nil)
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "echo")
	response, err := p.session.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

// duplex holds the methods of the body of a 101.
type duplex interface {
	io.ReadWriteCloser
	CloseWrite() error
}

func (p *pair) upgraded(t *testing.T, path string) duplex {
	t.Helper()
	response := p.upgrade(t, path)
	if response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("got %s, want 101", response.Status)
	}
	return response.Body.(duplex)
}

func TestUpgrade(t *testing.T) {
	agent, heard := withTarget(t)
	overEach(t, Config{}, agent, func(t *testing.T, p *pair) {
		t.Run("a 101 looks like the target's", func(t *testing.T) {
			response := p.upgrade(t, "/echo?a=%2Fb")
			got := fmt.Sprint(response.StatusCode, " ", response.Header.Get("Connection"), " ", response.Header.Get("Upgrade"),
				" ",
				response.Header.Get("X-Method"), " ", response.Header.Get("X-Uri"), " ",
				response.Header.Get("Sec-Websocket-Protocol"))
			if want := "101 Upgrade echo GET /echo?a=%2Fb v5"; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			for name := range response.Header {
				if isPrivate(name) {
					t.Errorf("the response has %s, which is private to the tunnel", name)
				}
			}
			_ = response.Body.Close()
		})
		t.Run("bytes come back one by one", func(t *testing.T) {
			stream := p.upgraded(t, "/echo")
			defer func() { _ = stream.Close() }()
			for i := range 100 {
				sent := []byte{byte(i)}
				if _, err := stream.Write(sent); err != nil {
					t.Fatal(err)
				}
				got := make([]byte, 1)
				if _, err := io.ReadFull(stream, got); err != nil || got[0] != sent[0] {
					t.Fatalf("got byte %d as %v, %v, want %v", i, got, err, sent)
				}
			}
		})
		t.Run("the hub ends writing and still reads all", func(t *testing.T) { echoAll(t, p.upgraded(t, "/echo"), 1<<20) })
		t.Run("the target ends writing and still reads all", func(t *testing.T) {
			stream := p.upgraded(t, "/speaks-first")
			if got, err := io.ReadAll(stream); err != nil || string(got) != "last words" {
				t.Fatalf("got %q, %v, want \"last words\"", got, err)
			}
			if _, err := io.WriteString(stream, "answer"); err != nil {
				t.Fatal(err)
			}
			_ = stream.CloseWrite()
			if got := await(t, "the target to have read all", heard); string(got) != "answer" {
				t.Errorf("the target received %q, want \"answer\"", got)
			}
			_ = stream.Close()
		})
		t.Run("data that is written just before Close arrives", func(t *testing.T) {
			stream := p.upgraded(t, "/listens")
			sent := strings.Repeat("x", 300_000)
			if _, err := io.WriteString(stream, sent); err != nil {
				t.Fatal(err)
			}
			_ = stream.Close()
			_ = stream.Close()
			if got := await(t, "the target to have read all", heard); string(got) != sent {
				t.Errorf("the target received %d bytes, want %d", len(got), len(sent))
			}
		})
		t.Run("the end of the request's context ends the target's connection", func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			r := request(t, http.MethodGet, "/listens", nil).WithContext(ctx)
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", "echo")
			response, err := p.session.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			await(t, "the target's connection to end", heard)
			_ = response.Body.Close()
		})
	})
}

func TestUpgradeThatIsDeclined(t *testing.T) {
	agent, _ := withTarget(t)
	overEach(t, Config{}, agent, func(t *testing.T, p *pair) {
		for _, test := range []struct{ name, path, want string }{
			{"a 403 passes unchanged", "/declines", "403 declined no: GET\n"},
			{"a 200 passes unchanged", "/ignores", "200  an ordinary answer"},
		} {
			t.Run(test.name, func(t *testing.T) {
				response := p.upgrade(t, test.path)
				if got := response.Header.Get(headerUpgrade); got != "" {
					t.Errorf("the response has %q, which the target has forged", got)
				}
				got := fmt.Sprint(response.StatusCode, " ", response.Header.Get("X-Target"), " ", readAll(t, response))
				if got != test.want {
					t.Errorf("got %q, want %q", got, test.want)
				}
			})
		}
		t.Run("a request with a body is sent without the upgrade", func(t *testing.T) {
			r := request(t, http.MethodPost, "/echo", strings.NewReader("body"))
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", "echo")
			response, err := p.session.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			if got := readAll(t, response); got != "no: POST\n" {
				t.Errorf("got %q, want the handler's refusal", got)
			}
		})
		t.Run("no stream is left", func(t *testing.T) {
			if n := p.session.Streams(); n != 0 {
				t.Errorf("%d streams, want none left", n)
			}
		})
	})
}

func TestUpgradeFullDuplex(t *testing.T) {
	size := 64 << 20
	if testing.Short() {
		size = 4 << 20
	}
	agent, _ := withTarget(t)
	p := overTLS(t, Config{}, agent)
	echoAll(t, p.upgraded(t, "/echo"), size)
}

// echoAll writes size bytes while it reads them back. Then it ends writing and expects the end of reading.
func echoAll(t *testing.T, stream duplex, size int) {
	t.Helper()
	defer func() { _ = stream.Close() }()
	block := make([]byte, 1<<20)
	_, _ = rand.Read(block)
	wrote := make(chan error, 1)
	go func() {
		for sent := 0; sent < size; sent += len(block) {
			if _, err := stream.Write(block); err != nil {
				wrote <- err
				return
			}
		}
		wrote <- stream.CloseWrite()
	}()
	got := make([]byte, len(block))
	for read := 0; read < size; read += len(block) {
		if _, err := io.ReadFull(stream, got); err != nil {
			t.Fatalf("reading failed after %d bytes: %v", read, err)
		}
		if !bytes.Equal(got, block) {
			t.Fatalf("the echo differs after %d bytes", read)
		}
	}
	if err := await(t, "all to be written", wrote); err != nil {
		t.Fatal(err)
	}
	if n, err := stream.Read(got); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("got %d bytes and error %v after the end, want none", n, err)
	}
}

func TestUpgradeThroughTwoProxies(t *testing.T) {
	agent, _ := withTarget(t)
	p := overTLS(t, Config{}, agent)
	front := httptest.NewTLSServer(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.Out.URL.Host = "member" },
		Transport: p.session,
	})
	defer front.Close()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(front.URL, "https://"), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "GET /echo HTTP/1.1\r\nHost: member\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("got %v, %v, want 101", response, err)
	}
	if upgradeProtocol(response.Header) != "echo" {
		t.Errorf("got header %v, want the protocol \"echo\"", response.Header)
	}
	_ = response.Body.Close()
	_, _ = io.WriteString(conn, "through and back")
	_ = conn.CloseWrite()
	if got, err := io.ReadAll(reader); err != nil || string(got) != "through and back" {
		t.Errorf("got %q, %v, want \"through and back\"", got, err)
	}
}

func TestHandlerThatUpgradesItself(t *testing.T) {
	upgrader := websocket.Upgrader{}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := upgrader.Upgrade(w, r, http.Header{"X-Extra": {"1"}})
		if err != nil {
			return
		}
		defer func() { _ = ws.Close() }()
		kind, message, err := ws.ReadMessage()
		if err == nil {
			_ = ws.WriteMessage(kind, append([]byte("heard "), message...))
		}
	})
	p := overTLS(t, Config{}, handler)
	front := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.Out.URL.Host = "member" },
		Transport: p.session,
		ErrorLog:  log.New(io.Discard, "", 0),
	})
	defer front.Close()
	ws, response, err := websocket.DefaultDialer.DialContext(t.Context(), "ws"+strings.TrimPrefix(front.URL, "http"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ws.Close() }()
	if response.Header.Get("X-Extra") != "1" {
		t.Error("the response lacks the handler's header")
	}
	_ = ws.WriteMessage(websocket.TextMessage, []byte("hello"))
	if _, got, err := ws.ReadMessage(); err != nil || string(got) != "heard hello" {
		t.Errorf("got %q, %v, want \"heard hello\"", got, err)
	}
}

func TestHijackedConnectionThatMisbehaves(t *testing.T) {
	hijack := func(then func(net.Conn)) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			then(conn)
			_ = conn.Close()
		})
	}
	for _, test := range []struct {
		name string
		h    http.Handler
	}{
		{"writes nothing", hijack(func(net.Conn) {})},
		{"writes something other than HTTP", hijack(func(c net.Conn) { _, _ = io.WriteString(c, "hello\r\n\r\n") })},
		{"answers with a status other than 101", hijack(func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		})},
		{"names no protocol", hijack(func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 101 x\r\nX: y\r\n\r\n") })},
		{"ends in the middle", hijack(func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 101 x\r\nX: y\r\n") })},
		{"never ends its header", hijack(func(c net.Conn) { _, _ = c.Write(bytes.Repeat([]byte("x"), 1<<20)) })},
		{"writes too large a header", hijack(func(c net.Conn) {
			_, _ = io.WriteString(c,
				"HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: x\r\n"+strings.Repeat("a: b\r\n", 5000)+"\r\n")
		})},
	} {
		t.Run("a handler that "+test.name+" gives 502", func(t *testing.T) {
			p := overPipe(t, Config{}, test.h)
			response := p.upgrade(t, "/")
			readAll(t, response)
			if response.StatusCode != http.StatusBadGateway {
				t.Errorf("got %s, want 502", response.Status)
			}
		})
	}
	t.Run("use after the handler has returned gives an error", func(t *testing.T) {
		kept := make(chan net.Conn, 1)
		p := overPipe(t, Config{}, hijack(func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
			kept <- c
		}))
		stream := p.upgraded(t, "/")
		if got, err := io.ReadAll(stream); err != nil || len(got) > 0 {
			t.Fatalf("got %q, %v, want the end without more bytes", got, err)
		}
		conn := await(t, "the connection", kept)
		p.settled(t)
		if _, err := conn.Write([]byte("x")); err == nil {
			t.Error("Write succeeds, want an error")
		}
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("Read succeeds, want an error")
		}
		wantError(t, conn.SetDeadline(time.Now()), net.ErrClosed)
	})
	t.Run("a handler that writes without a reader is released by Close", func(t *testing.T) {
		returned := make(chan struct{})
		h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
			go func() {
				_, _ = conn.Write(make([]byte, 8<<20))
				close(returned)
			}()
			_, _ = conn.Read(make([]byte, 1))
			_ = conn.Close()
		})
		p := overPipe(t, Config{}, h)
		stream := p.upgraded(t, "/")
		_, _ = stream.Write([]byte("x"))
		await(t, "the write to end", returned)
		_ = stream.Close()
	})
}

// settled stops the agent and returns when its last handler has returned.
func (p *pair) settled(t *testing.T) {
	t.Helper()
	p.stop()
	await(t, "the agent to stop", p.session.Done())
}
