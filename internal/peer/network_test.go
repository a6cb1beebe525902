// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package peer_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/peer"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/internal/tunnel"
	"github.com/drover-dev/drover/test/testkit"
)

// name returns a handler that answers with a text.
func name(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
}

func TestThreeReplicas(t *testing.T) {
	all := hubs(t, 3)
	t.Run("each replica reaches a member of any other", func(t *testing.T) {
		cut := all[0].connect(t, "one", name("one"))
		for i, h := range all {
			h.knows(t)
			if got := text(t, h.send(t, http.MethodGet, "/v1/k8s/", nil, nil)); got != "one" {
				t.Errorf("replica %d got %q, want \"one\"", i, got)
			}
		}
		cut()
		for _, h := range all {
			until(t, "the loss is known", func() bool { return !h.fleet.State(member).Connected() })
		}
	})
	t.Run("the newest tunnel of a process counts, and otherwise the one that ends here", func(t *testing.T) {
		all[0].connect(t, "one", name("old"))
		all[0].knows(t)
		cut := all[1].connect(t, "one", name("new"))
		until(t, "both are known", func() bool { return len(all[0].fleet.State(member).Peers) == 2 })
		if got := text(t, all[0].send(t, http.MethodGet, "/v1/k8s/", nil, nil)); got != "new" {
			t.Errorf("got %q, want \"new\"", got)
		}
		all[0].connect(t, "two", name("two"))
		if got := text(t, all[0].send(t, http.MethodGet, "/v1/k8s/", nil, nil)); got != "two" {
			t.Errorf("got %q, want \"two\"", got)
		}
		until(t, "all are known", func() bool {
			return all[2].fleet.State(member).Agents() == 2 && len(all[2].fleet.State(member).Peers) == 3
		})
		cut()
	})
	t.Run("after a replica has stopped, requests use the tunnels at others", func(t *testing.T) {
		all[1].connect(t, "three", name("three"))
		all[0].connect(t, "four", name("four"))
		until(t, "both are known", func() bool { return all[2].fleet.State(member).Agents() == 2 })
		all[0].kill()
		if got := text(t, all[2].send(t, http.MethodGet, "/v1/k8s/", nil, nil)); got != "three" {
			t.Errorf("got %q, want \"three\"", got)
		}
	})
}

func TestRequestsForTheLeaderIgnoreNewerTunnelsOfOtherAgents(t *testing.T) {
	all := hubs(t, 2)
	all[1].connect(t, "leads", name("led"))
	all[1].connect(t, "follows", http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		w.WriteHeader(http.StatusMisdirectedRequest)
	}))
	until(t, "both are known", func() bool { return all[0].fleet.State(member).Agents() == 2 })
	transport, err := all[0].fleet.Leading(member)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://member/v1/sets/a", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatalf("send to the leader: %v", err)
	}
	if got := text(t, resp); got != "led" {
		t.Errorf("%q answered, want the agent that leads", got)
	}
}

func TestStaleRouteIsLookedUpOnlyOnce(t *testing.T) {
	all := hubs(t, 2)
	var asked atomic.Int32
	leave := make(chan struct{})
	all[1].connect(t, "one", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		<-leave
	}))
	all[0].knows(t)
	transport, err := all[0].fleet.Transport(member)
	if err != nil {
		t.Fatal(err)
	}
	all[1].fleet.Disconnect(member, func(members.Peer) bool { return false })
	body := &closer{Reader: strings.NewReader("body")}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://member/v1/k8s/", body)
	if err != nil {
		t.Fatal(err)
	}
	watch := testkit.StartStopwatch()
	_, err = transport.RoundTrip(req)
	if took := watch.Took(); !errors.Is(err, members.ErrNotConnected) || took > 4*time.Second {
		t.Errorf("got %v after %s, want %v within 4 s", err, took, members.ErrNotConnected)
	}
	if !body.closed.Load() {
		t.Error("the body is open, want it closed")
	}
	close(leave)
	if asked.Load() != 0 {
		t.Error("an agent saw the request, want that none did")
	}
}

type closer struct {
	io.Reader
	closed atomic.Bool
}

func (c *closer) Close() error {
	c.closed.Store(true)
	return nil
}

// CVE-2026-73842, CVE-2026-39429: a port that is meant only for parts of a system does not authenticate its callers.
func TestOnlyReplicasOfTheSameHubCanLink(t *testing.T) {
	state := authority(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := serve(t, listener, holder(t, state).ReplicaTLS, nil)
	rotating, err := trust.Apply(state, trust.StepChange, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	revoked, err := trust.Apply(rotating, trust.StepRevoke, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	replicaOf := func(s trust.State) *tls.Config {
		config, err := holder(t, s).ReplicaTLS()
		if err != nil {
			t.Fatal(err)
		}
		return config
	}
	with := func(config *tls.Config, cert *tls.Certificate) *tls.Config {
		config.Certificates, config.VerifyConnection = nil, nil
		if cert != nil {
			config.Certificates = []tls.Certificate{*cert}
		}
		return config
	}
	for title, tt := range map[string]struct {
		config *tls.Config
		good   bool
	}{
		"a replica of the same hub":      {replicaOf(state), true},
		"a client without a certificate": {with(replicaOf(state), nil), false},
		"the serving certificate of the hub's own port": {
			with(replicaOf(state), serving(t, state, "hub.example.com")), false,
		},
		"a serving certificate with the replicas' name": {
			with(replicaOf(state), serving(t, state, trust.ReplicaName)), false,
		},
		"a certificate of another hub's CA":             {with(replicaOf(authority(t)), replicaCert(t, authority(t))), false},
		"a self-signed certificate with the right name": {with(replicaOf(state), selfSigned(t)), false},
		"a replica that has already loaded the next CA": {replicaOf(rotating), true},
		"a replica whose CA is not trusted":             {replicaOf(revoked), false},
		"a replica that does not trust the hub":         {replicaOf(authority(t)), false},
	} {
		t.Run(title, func(t *testing.T) {
			dialer := tunnel.Dialer{TLS: tt.config, Proxy: func(*http.Request) (*url.URL, error) { return nil, nil }}
			conn, err := dialer.Dial(t.Context(), "wss://"+h.address+peer.PathLink, http.Header{"Drover-Replica": {"other"}})
			if (err == nil) != tt.good {
				t.Errorf("linked %t, %v, want it linked: %t", err == nil, err, tt.good)
			}
			if err == nil {
				_ = conn.Close()
			}
		})
	}
	t.Run("a replica does not link with a server without a replica's certificate", func(t *testing.T) {
		config := replicaOf(state)
		config.Certificates = []tls.Certificate{*serving(t, state, "127.0.0.1", "hub.example.com")}
		config.ClientAuth = tls.NoClientCert
		impostor, err := tls.Listen("tcp", "127.0.0.1:0", config)
		if err != nil {
			t.Fatal(err)
		}
		defer impostor.Close()
		handshake := make(chan error, 1)
		go func() {
			conn, err := impostor.Accept()
			if err == nil {
				err = conn.(*tls.Conn).HandshakeContext(context.Background())
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}
			handshake <- err
		}()
		if _, err := tls.Dial("tcp", impostor.Addr().String(), replicaOf(state)); err == nil {
			t.Error("the replica trusts the impostor, want an error")
		}
		if err := <-handshake; err == nil {
			t.Error("the handshake of the impostor succeeded, want an error")
		}
	})
}

func serving(t testing.TB, s trust.State, hosts ...string) *tls.Certificate {
	t.Helper()
	cert, err := trust.IssueServing(s.Active, hosts, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func replicaCert(t testing.TB, s trust.State) *tls.Certificate {
	t.Helper()
	cert, err := trust.IssueReplica(s.Active, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// selfSigned returns a replica's certificate whose chain contains a CA of its own.
func selfSigned(t testing.TB) *tls.Certificate {
	t.Helper()
	own := authority(t)
	cert := replicaCert(t, own)
	pair, err := tls.X509KeyPair(own.Active.Cert, own.Active.Key)
	if err != nil {
		t.Fatal(err)
	}
	cert.Certificate = append(cert.Certificate, pair.Certificate...)
	if _, err := x509.ParseCertificate(cert.Certificate[1]); err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestReplicaThatFindsOnlyItselfIsSynced(t *testing.T) {
	h := hubs(t, 1)[0] // its own address is the only one
	if heard, hearing := h.Links(); heard+hearing != 0 || !h.Synced() {
		t.Errorf("hears %d, is heard by %d, synced %t, want 0, 0 and true", heard, hearing, h.Synced())
	}
}

// CVE-2026-73842: the port does not forward plain requests.
func TestPortRefusesPlainRequests(t *testing.T) {
	state := authority(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := serve(t, listener, holder(t, state).ReplicaTLS, nil)
	config, err := holder(t, state).ReplicaTLS()
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
	defer client.CloseIdleConnections()
	for path, want := range map[string]int{
		"/": http.StatusNotFound, "/v1/members": http.StatusNotFound, "/v1/members/team-a/prod/v1/k8s/": http.StatusNotFound,
		peer.PathLink: http.StatusBadRequest,
	} {
		t.Run(fmt.Sprintf("a plain request to %s is answered with %d", path, want), func(t *testing.T) {
			resp, err := client.Get("https://" + h.address + path)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("got %d, want %d", resp.StatusCode, want)
			}
		})
	}
}

// BenchmarkGet measures the cost of a hop compared with a tunnel that ends here.
func BenchmarkGet(b *testing.B) {
	all := hubs(b, 2)
	all[0].connect(b, "one", name(strings.Repeat("x", 1<<10)))
	all[1].knows(b)
	for where, h := range map[string]*replica{"local": all[0], "hop": all[1]} {
		b.Run(where, func(b *testing.B) {
			transport, err := h.fleet.Transport(member)
			if err != nil {
				b.Fatal(err)
			}
			var took []time.Duration
			for b.Loop() {
				start := time.Now()
				req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://member/v1/k8s/api/v1/configmaps", nil)
				if err != nil {
					b.Fatal(err)
				}
				resp, err := transport.RoundTrip(req)
				if err != nil {
					b.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
		})
	}
}
