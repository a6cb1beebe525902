// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"
)

// echo is a server that sends back everything that it reads, and then ends its stream too.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return listener.Addr().String()
}

func start(t *testing.T, server string, options Options) *Relay {
	t.Helper()
	r, err := Start(t.Context(), server, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func dial(t *testing.T, r *Relay) *net.TCPConn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

// attempt connects to an address without a server. The reset may arrive before or after the connection is established.
func attempt(t *testing.T, r *Relay) error {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.Address())
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Read(make([]byte, 1))
	return err
}

// say sends a text and expects the same text in response.
func say(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	expectText(t, conn, text)
}

func expectText(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Fatalf("got %q, %v, want the echo", got, err)
	}
}

func TestRelayPassesBytesAndEndOfStream(t *testing.T) {
	r := start(t, echo(t), Options{})
	conn := dial(t, r)
	big := bytes.Repeat([]byte("0123456789"), 1<<17)
	go func() {
		_, _ = conn.Write(big)
		_ = conn.CloseWrite()
	}()
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(got, big) {
		t.Fatalf("%d bytes of %d, %v", len(got), len(big), err)
	}
}

func TestStallKeepsConnectionsAndData(t *testing.T) {
	r := start(t, echo(t), Options{})
	conn := dial(t, r)
	say(t, conn, "before")
	r.Stall()
	r.Stall()
	if _, err := io.WriteString(conn, "meanwhile"); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || !isTimeout(err) {
		t.Fatalf("%d bytes, %v", n, err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	r.Flow()
	r.Flow()
	expectText(t, conn, "meanwhile")
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

func TestCutAndRefusedConnectionsAreReset(t *testing.T) {
	r := start(t, echo(t), Options{})
	conn := dial(t, r)
	say(t, conn, "before")
	r.Refuse(true)
	r.Cut()
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a cut: %v", err)
	}
	if err := attempt(t, r); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("while refusing: %v", err)
	}
	if _, refused := r.Counts(); refused != 1 {
		t.Errorf("%d refused", refused)
	}
	r.Refuse(false)
	say(t, dial(t, r), "after")
}

func TestAnEndOfTheServerIsAnEndOfTheConnection(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, listener.Addr().String(), Options{})
	conn := dial(t, r)
	far, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	reset(far.(*net.TCPConn))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a reset: %v", err)
	}
	_ = listener.Close()
	if err := attempt(t, r); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("with no listener: %v", err)
	}
}

func TestSlowLinkKeepsItsLatencyAndRate(t *testing.T) {
	r := start(t, echo(t), Options{Seed: 1})
	conn := dial(t, r)
	r.Slow(Shape{Latency: 30 * time.Millisecond, Jitter: 5 * time.Millisecond})
	began := time.Now()
	say(t, conn, "latency")
	if took := time.Since(began); took < 60*time.Millisecond {
		t.Errorf("there and back in %s", took)
	}
	r.Slow(Shape{BytesPerSecond: 1 << 20})
	began = time.Now()
	go func() { _, _ = conn.Write(make([]byte, 200<<10)) }()
	if _, err := io.CopyN(io.Discard, conn, 200<<10); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 190*time.Millisecond {
		t.Errorf("200 KiB at 1 MiB/s in %s", took)
	}
	r.Slow(Shape{})
	say(t, conn, strings.Repeat("fast", 1000))
}

func TestAProxyLeadsToTheServerWhateverIsAskedFor(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Host) }))
	defer server.Close()
	r := start(t, server.Listener.Addr().String(), Options{Proxy: true})
	transport := server.Client().Transport.(*http.Transport)
	transport.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: r.Address()})
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://example.com/", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if host, err := bufio.NewReader(response.Body).ReadString(0); host != "example.com" || !errors.Is(err, io.EOF) {
		t.Errorf("got %q, %v, want example.com and the end", host, err)
	}
}
