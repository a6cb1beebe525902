// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

// dialFrom connects from an address of the loopback interface.
func dialFrom(t *testing.T, from, to string) (net.Conn, error) {
	t.Helper()
	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)},
		Timeout: testkit.Patience * 10 * time.Second}).DialContext(t.Context(), "tcp", to)
	if err == nil {
		t.Cleanup(func() { _ = conn.Close() })
	}
	return conn, err
}

// closed returns nil if the other side closes a connection without sending anything.
func closed(conn net.Conn) error {
	if err := conn.SetReadDeadline(time.Now().Add(testkit.Patience * 10 * time.Second)); err != nil {
		return err
	}
	if n, err := conn.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the connection stays open (%d bytes, %w), want it closed", n, err)
	}
	return nil
}

// TestOneClientCannotHoldAllConnections covers CVE-2024-58259: an unlimited number of connections.
func TestOneClientCannotHoldAllConnections(t *testing.T) {
	m := newMember(t)
	m.api.Put(t, secretPath+protocol.DirectSecret, m.delivery(unchanged))
	r := run(t, m)
	client := r.client(t)
	address := (*r.address.Load()).String()
	var held []net.Conn
	for range maxClient {
		conn, err := dialFrom(t, "127.0.0.2", address)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
	}
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if n := m.metrics.connections.Load(); n != maxClient {
			return fmt.Errorf("%d connections are open, want another number", n)
		}
		return nil
	})
	shake := func(conn net.Conn) error { // only a client within the limit gets this far
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM([]byte(r.Authority()))
		return tls.Client(conn,
			&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: "127.0.0.1"}).HandshakeContext(t.Context())
	}
	if conn, err := dialFrom(t, "127.0.0.2", address); err == nil && shake(conn) == nil {
		t.Errorf("a client got more than %d connections, want the rest closed", maxClient)
	}
	get := func() error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url()+"/api", nil)
		if err != nil {
			return err
		}
		req.Header = bearer(m.sign(m.claims()))
		resp, err := client.Do(req) // from 127.0.0.1
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("got %s, want 401", resp.Status)
		}
		return nil
	}
	if err := get(); err != nil {
		t.Errorf("another client: got the error %v, want it served", err)
	}
	if m.metrics.tooManyOfClient.Load() == 0 {
		t.Error("the closed connection is not counted, want it in the metrics")
	}
	for _, conn := range held {
		_ = conn.Close()
	}
	testkit.Eventually(t, time.Minute, func(context.Context) error { // a closed connection no longer counts
		if n := m.metrics.connections.Load(); n > 1 {
			return fmt.Errorf("%d connections are open", n)
		}
		return nil
	})
	conn, err := dialFrom(t, "127.0.0.2", address)
	if err != nil {
		t.Fatal(err)
	}
	if err := shake(conn); err != nil {
		t.Errorf("after a connection was closed: got the error %v, want a place", err)
	}
}

func TestAllClientsTogetherAreLimited(t *testing.T) {
	l := &connections{all: 3, ofClient: 2, metrics: &metrics{}}
	a, b := clientOf(&net.TCPAddr{IP: net.ParseIP("10.0.0.1")}), clientOf(&net.TCPAddr{IP: net.ParseIP("10.0.0.2")})
	if got := []bool{l.enter(a), l.enter(a), l.enter(a), l.enter(b), l.enter(b)}; !slices.Equal(got,
		[]bool{true, true, false, true, false}) {
		t.Error("want two places for each client and three in all")
	}
	if l.leave(a); !l.enter(b) || l.enter(a) {
		t.Error("want the place of a closed connection to be free for all")
	}
	for range 2 {
		l.leave(b)
	}
	if l.leave(a); len(l.clients) != 0 || l.open != 0 || l.metrics.connections.Load() != 0 {
		t.Errorf("got %d open connections and the clients %v, want none", l.open, l.clients)
	}
	if l.metrics.tooMany.Load() != 2 || l.metrics.tooManyOfClient.Load() != 1 {
		t.Errorf("got the counts %d and %d, want others", l.metrics.tooMany.Load(), l.metrics.tooManyOfClient.Load())
	}
}

func TestAddressesOfOneIPv6NetworkAreOneClient(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		same bool
	}{
		{"10.0.0.1", "10.0.0.1", true},
		{"10.0.0.1", "10.0.0.2", false},
		{"::ffff:10.0.0.1", "10.0.0.1", true},
		{"2001:db8::1", "2001:db8::ffff:1", true},
		{"2001:db8::1", "2001:db8:0:1::1", false},
	} {
		a, b := clientOf(&net.TCPAddr{IP: net.ParseIP(tt.a), Port: 1}), clientOf(&net.TCPAddr{IP: net.ParseIP(tt.b), Port: 2})
		if (a == b) != tt.same {
			t.Errorf("got %s and %s as %v and %v, want another result", tt.a, tt.b, a, b)
		}
	}
	if zoned := clientOf(&net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0"}); !zoned.IsValid() {
		t.Error("an address with a zone counts as invalid, want a client")
	}
}

// TestConnectionStaysOpenOnlyWithAnAcceptedToken checks that a connection without an accepted token is closed, and that
// a connection with an accepted token stays open.
func TestConnectionStaysOpenOnlyWithAnAcceptedToken(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	counted := &metrics{}
	server := &http.Server{ReadHeaderTimeout: time.Minute, ConnContext: withConnection,
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" {
				proven(r)
			}
		})}
	go func() {
		_ = server.Serve(&connections{Listener: listener, all: 9, ofClient: 9, within: 500 * time.Millisecond,
			metrics: counted})
	}()
	defer server.Close()
	ask := func(conn net.Conn, header string) error {
		if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: a\r\n%s\r\n", header); err != nil {
			return err
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err == nil {
			_ = resp.Body.Close()
		}
		return err
	}
	user, err := dialFrom(t, "127.0.0.1", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := ask(user, "Authorization: Bearer a\r\n"); err != nil {
		t.Fatal(err)
	}
	idle, err := dialFrom(t, "127.0.0.1", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := dialFrom(t, "127.0.0.1", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(ask(other, ""), closed(idle), closed(other)); err != nil {
		t.Errorf("without a token: got %v, want the connection closed", err)
	}
	if err := ask(user, ""); err != nil {
		t.Errorf("with a token that was accepted before: got %v, want the connection open", err)
	}
	if n := counted.unproven.Load(); n != 2 {
		t.Errorf("got %d counted connections, want another number", n)
	}
}

func TestRefusalEndsTheConnection(t *testing.T) {
	m := newMember(t)
	m.api.Put(t, secretPath+protocol.DirectSecret, m.delivery(unchanged))
	r := run(t, m)
	client := r.client(t)
	ask := func(raw string) (code int, reused bool) {
		t.Helper()
		ctx := httptrace.WithClientTrace(t.Context(),
			&httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }})
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url()+"/api", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = bearer(raw)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, reused
	}
	if code, _ := ask(m.sign(m.claims())); code != http.StatusOK {
		t.Fatalf("got the code %d, want another one", code)
	}
	if code, reused := ask(m.sign(m.claims())); code != http.StatusOK || !reused {
		t.Errorf("with an accepted token: got %d, on the same connection: %t, want 200 on the same connection", code, reused)
	}
	if code, _ := ask("x"); code != http.StatusUnauthorized {
		t.Errorf("got the code %d, want another one", code)
	}
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if n := m.metrics.connections.Load(); n != 0 {
			return fmt.Errorf("%d connections are open, want none", n)
		}
		return nil
	})
}

func TestMetricsAreDocumentedAndNameNoUser(t *testing.T) {
	m := newMember(t)
	m.set(m.delivery(unchanged))
	good := m.sign(m.claims())
	impersonating := bearer(good)
	impersonating.Set("Impersonate-User", "root")
	for _, header := range []http.Header{bearer(good), bearer("x"), impersonating, {}} {
		m.get(header)
	}
	m.set(m.delivery(func(a *protocol.DirectAccess) { a.DenyAll = true }))
	m.get(bearer(good))
	m.set(m.delivery(func(a *protocol.DirectAccess) { a.Denied = []string{"s-1"} }))
	m.ask(http.MethodPost, pathReview, reviewOf("v1", good))
	w := httptest.NewRecorder()
	m.Metrics().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	text := w.Body.String()
	for _, want := range []string{
		"drover_direct_requests_total 1\n", "drover_direct_requests_in_progress 0\n",
		`drover_direct_refused_total{reason="token"} 2`, `drover_direct_refused_total{reason="unavailable"} 1`,
		`drover_direct_refused_total{reason="request"} 1`, `drover_direct_reviews_total{result="refused"} 1`,
		`drover_direct_reviews_total{result="accepted"} 0`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("want %s in\n%s", want, text)
		}
	}
	if strings.Contains(text, "alice") || strings.Contains(text, good) {
		t.Errorf("got a user's name in the metrics, want none:\n%s", text)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations", "monitoring.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range m.families() {
		if !strings.Contains(string(page), "`"+family.name) {
			t.Errorf("%s is not in docs/operations/monitoring.md", family.name)
		}
	}
}
