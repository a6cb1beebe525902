// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/trust"
)

// port returns a server whose port accepts three connections from one address, or of one user. A client counts as an
// agent or as a user if the path of its request says so.
func port(t *testing.T) (address string, refused func() int) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ca, err := trust.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, err := trust.IssueServing(ca, []string{"127.0.0.1"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	turnedAway := make(chan struct{}, 1000)
	authenticate := heldByUser(func(r *http.Request) (identity.Identity, error) {
		if name, ok := strings.CutPrefix(r.URL.Path, "/user/"); ok {
			return identity.New(authenticationv1.UserInfo{Username: name})
		}
		return identity.Identity{}, errors.New("unknown")
	})
	server := &http.Server{
		ConnContext: withConnection, TLSConfig: &tls.Config{Certificates: []tls.Certificate{*cert}},
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/agent" {
				heldByAgent(r.Context())
			}
			_, _ = authenticate(r)
		}),
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.ServeTLS(newConnections(3, func() { turnedAway <- struct{}{} }).listener(listener), "", "")
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
	})
	return listener.Addr().String(), func() int { return len(turnedAway) }
}

// open opens a connection and requests a path on it, with HTTP/2 if h2. The connection stays open.
func open(t *testing.T, address, path string, h2 bool) error {
	t.Helper()
	var opened net.Conn
	transport := &http.Transport{
		ForceAttemptHTTP2: h2,
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			config := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}} // who is there does not matter
			if h2 {
				config.NextProtos = []string{"h2"}
			}
			conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, network, address)
			opened = conn
			return conn, err
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if opened == nil {
		t.Fatal("got no connection, want one")
	}
	return nil
}

func TestConnectionsFromOneAddressAreLimited(t *testing.T) {
	for name, h2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			address, refused := port(t)
			for range 20 { // behind a load balancer, all agents have the same address
				if err := open(t, address, "/agent", h2); err != nil {
					t.Fatalf("an agent: %v, want it accepted", err)
				}
			}
			for _, user := range []string{"alice", "bob"} {
				for range 3 {
					if err := open(t, address, "/user/"+user, h2); err != nil {
						t.Fatalf("%s: %v, want it accepted", user, err)
					}
				}
			}
			for _, user := range []string{"system:serviceaccount:ci:a", "system:serviceaccount:ci:b",
				"system:serviceaccount:ci:c"} {
				if err := open(t, address, "/user/"+user, h2); err != nil {
					t.Fatalf("%s: %v, want it accepted", user, err)
				}
			}
			for range 2 { // above alice's limit, her connections count for her address
				if err := open(t, address, "/user/alice", h2); err != nil {
					t.Fatalf("alice: %v, want it accepted", err)
				}
			}
			// all accounts of a namespace together may not have more than one user
			if err := open(t, address, "/user/system:serviceaccount:ci:d", h2); err != nil {
				t.Fatal(err)
			}
			if refused() > 0 {
				t.Errorf("%d connections were refused, want none", refused())
			}
			for _, path := range []string{"/", "/user/alice"} {
				if err := open(t, address, path, h2); err == nil {
					t.Errorf("%s: one more connection was accepted, want it refused", path)
				}
			}
			if refused() < 2 {
				t.Errorf("%d refused connections were counted, want at least 2", refused())
			}
		})
	}
}

func TestClosedConnectionNoLongerCounts(t *testing.T) {
	all := newConnections(1, func() {})
	for _, holder := range []string{"address a", "user alice", ""} {
		for range 3 {
			if !all.enter("address a") {
				t.Fatal("got no seat, want one")
			}
			near, far := net.Pipe()
			conn := &countedConn{Conn: near, all: all, holder: "address a"}
			conn.heldBy(holder)
			conn.heldBy(holder)
			_, _ = conn.Close(), conn.Close()
			_ = far.Close()
		}
	}
	if len(all.held) > 0 {
		t.Errorf("connections are still held: %v, want none", all.held)
	}
}
