// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package peer_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/peer"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/testkit"
)

var member = types.NamespacedName{Namespace: "team-a", Name: "prod"}

// authority returns a new CA of a hub.
func authority(t testing.TB) trust.State {
	t.Helper()
	pair, err := trust.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return trust.State{Active: pair}
}

// holder returns the certificates with which a hub with this CA serves.
func holder(t testing.TB, state trust.State) *trust.Holder {
	t.Helper()
	h, err := trust.New([]string{"https://hub.example.com"}, []string{"127.0.0.1"}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{}
	trust.WriteSecret(secret, state)
	if err := h.LoadAuthority(secret); err != nil {
		t.Fatal(err)
	}
	return h
}

// replica is a replica with a port.
type replica struct {
	*peer.Network
	fleet   *members.Registry
	address string
	results atomic.Pointer[string] // the result of the last hop
	kill    context.CancelFunc
}

// hubs returns n replicas that are linked with each other.
func hubs(t testing.TB, n int, change ...func(*peer.Options)) []*replica {
	t.Helper()
	state := authority(t)
	var listeners []net.Listener
	var addresses []string
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners, addresses = append(listeners, listener), append(addresses, listener.Addr().String())
	}
	all := make([]*replica, n)
	for i, listener := range listeners {
		all[i] = serve(t, listener, holder(t, state).ReplicaTLS, addresses, change...)
	}
	for _, h := range all {
		until(t, "the replicas are linked", func() bool {
			heard, hearing := h.Links()
			return heard == n-1 && hearing == n-1 && h.Synced()
		})
	}
	return all
}

func serve(t testing.TB, listener net.Listener, config func() (*tls.Config, error), addresses []string,
	change ...func(*peer.Options)) *replica {
	h := &replica{fleet: members.New(logr.Discard(), time.Now), address: listener.Addr().String()}
	options := peer.Options{
		Members: h.fleet.Replicas, Transports: h.fleet.Transports, TLS: config,
		Find: peer.Static(addresses), Log: logr.Discard(),
		Forwarded: func(result string) { h.results.Store(&result) },
	}
	for _, c := range change {
		c(&options)
	}
	h.Network = peer.New(options)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = h.Serve(ctx, listener)
	}()
	h.kill = func() {
		cancel()
		<-served
		h.fleet.Close()
	}
	t.Cleanup(h.kill)
	return h
}

// until waits until a condition holds.
func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(testkit.Patience * 30 * time.Second)
	for !is() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not in time: %s", what)
		}
	}
}

// connect connects an agent with this instance name that answers with handler. The returned function cuts its tunnel.
func (h *replica) connect(t testing.TB, instance string, handler http.Handler) (cut func()) {
	t.Helper()
	opened := testkit.OpenTunnel(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != protocol.PathReport {
			handler.ServeHTTP(w, r)
			return
		}
		_, _ = io.WriteString(w, `{"agentVersion":"`+instance+`"}`+"\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	h.fleet.Add(members.Peer{
		Cluster: protocol.ClusterRef{Namespace: member.Namespace, Name: member.Name,
			UID: "uid"}, Key: "key", Instance: instance,
	}, opened.Session)
	return opened.Cut
}

// knows waits until the replica has a route to the member.
func (h *replica) knows(t testing.TB) {
	t.Helper()
	until(t, "the member is known", func() bool { return h.fleet.State(member).Report != nil })
}

// send sends a request to the member.
func (h *replica) send(t testing.TB, method, target string, body io.Reader, header http.Header) *http.Response {
	t.Helper()
	transport, err := h.fleet.Transport(member)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://member"+target, body)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func text(t testing.TB, resp *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestRequestsByHop(t *testing.T) {
	all := hubs(t, 2)
	here, there := all[0], all[1]
	there.connect(t, "one", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if handler, ok := handlers()[strings.TrimPrefix(r.URL.Path, "/v1/k8s/")]; ok {
			handler(w, r)
			return
		}
		w.Header().Set("Seen", fmt.Sprint(r.Method, " ", r.URL.RequestURI(), " ", r.Header["X-One"], " ",
			r.Header["Impersonate-User"], " ", r.Host))
		w.WriteHeader(http.StatusTeapot)
	}))
	here.knows(t)
	idle := there.fleet.Streams()
	for name, test := range map[string]func(*testing.T, *replica){
		"keep their path, query and headers":                 testAsItCame,
		"stream each event at once":                          testStream,
		"upgrade, and either end can close its writing side": testUpgrade,
		"carry a body of 16 MiB in both directions":          testBulk,
		"return the member's own 421":                        testOwn421,
		"return a refusal to upgrade":                        testNoUpgrade,
		"cannot forge the headers of replicas":               testForgedMark,
		"are cut where the response was cut":                 testCut,
		"may have a header that is almost too large":         testLargeHeader,
		"return the member's trailer":                        testTrailer,
	} {
		t.Run(name, func(t *testing.T) { test(t, here) })
	}
	t.Run("end at the member when their user is gone", func(t *testing.T) {
		until(t, "the earlier requests have ended", func() bool { return there.fleet.Streams() == idle })
		resp := here.send(t, http.MethodGet, "/v1/k8s/events", nil, nil)
		until(t, "the request has arrived", func() bool { return there.fleet.Streams() > idle })
		_ = resp.Body.Close()
		until(t, "the request ends", func() bool { return there.fleet.Streams() == idle })
	})
}

// handlers returns the handlers with which the member answers.
func handlers() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"events": func(w http.ResponseWriter, r *http.Request) {
			control := http.NewResponseController(w)
			for i := range 3 {
				_, _ = fmt.Fprintf(w, "event %d\n", i)
				_ = control.Flush()
			}
			<-r.Context().Done()
		},
		"echo": func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) },
		"421": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Drover-Hop", "misdirected")
			http.Error(w, "mine", http.StatusMisdirectedRequest)
		},
		"forbidden": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) },
		"cut": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
		"trailer": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "Sum")
			_, _ = io.WriteString(w, "body")
			w.Header().Set("Sum", "42")
		},
		"shell": func(w http.ResponseWriter, r *http.Request) {
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			defer conn.Close()
			_, _ = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\nhello ",
				r.Header.Get("Upgrade"))
			all, _ := io.ReadAll(rw) // until the client closes its writing side
			_, _ = fmt.Fprintf(conn, "%s, and more after that", all)
		},
	}
}

func testAsItCame(t *testing.T, h *replica) {
	raw := "/v1/k8s/show//a%2Fb/../%E2%82%AC?watch=1;x=%zz&y"
	transport, err := h.fleet.Transport(member)
	if err != nil {
		t.Fatal(err)
	}
	path, query, _ := strings.Cut(raw, "?")
	plain, err := url.PathUnescape(path)
	if err != nil {
		t.Fatal(err)
	}
	req := (&http.Request{Method: "PATCH",
		URL: &url.URL{Scheme: "http", Host: "member", Path: plain, RawPath: path, RawQuery: query},
		Header: http.Header{"X-One": {"a", "b"}, "Impersonate-User": {"alice"},
			"Connection": {"Impersonate-User"}}}).WithContext(t.Context())
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := resp.Header.Get("Seen"); resp.StatusCode != http.StatusTeapot ||
		got != "PATCH "+raw+" [a b] [alice] member" {
		t.Errorf("got %d %s, want the request's method, path, query, user and member", resp.StatusCode, got)
	}
}

func testStream(t *testing.T, h *replica) {
	resp := h.send(t, http.MethodGet, "/v1/k8s/events", nil, nil)
	lines := bufio.NewReader(resp.Body)
	for i := range 3 {
		if line, err := lines.ReadString('\n'); err != nil || line != fmt.Sprintf("event %d\n", i) {
			t.Fatalf("got %q, %v, want the event as soon as it was sent", line, err)
		}
	}
}

func testUpgrade(t *testing.T, h *replica) {
	resp := h.send(t, http.MethodGet, "/v1/k8s/shell", nil,
		http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}})
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != "SPDY/3.1" {
		t.Fatalf("got %d %v, want 101 with SPDY/3.1", resp.StatusCode, resp.Header)
	}
	stream, ok := resp.Body.(interface {
		io.ReadWriteCloser
		CloseWrite() error
	})
	if !ok {
		t.Fatalf("got a body of type %T, want one with CloseWrite", resp.Body)
	}
	if _, err := io.WriteString(stream, "world"); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got := text(t, resp); got != "hello world, and more after that" {
		t.Errorf("got %q, want \"hello world, and more after that\"", got)
	}
}

func testBulk(t *testing.T, h *replica) {
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	resp := h.send(t, http.MethodPut, "/v1/k8s/echo", io.NopCloser(bytes.NewReader(sent)), nil)
	sum := sha256.New()
	if n, err := io.Copy(sum, resp.Body); err != nil || n != int64(len(sent)) || !bytes.Equal(sum.Sum(nil), sumOf(sent)) {
		t.Errorf("%d bytes, %v, want all %d unchanged", n, err, len(sent))
	}
}

func sumOf(p []byte) []byte {
	sum := sha256.Sum256(p)
	return sum[:]
}

func testOwn421(t *testing.T, h *replica) {
	resp := h.send(t, http.MethodGet, "/v1/k8s/421", nil, nil)
	if got := text(t, resp); resp.StatusCode != http.StatusMisdirectedRequest || got != "mine\n" ||
		resp.Header.Get("Drover-Hop") != "" {
		t.Errorf("got %d %q %v, want the member's own 421, without the header of the hop", resp.StatusCode, got, resp.Header)
	}
}

func testNoUpgrade(t *testing.T, h *replica) {
	resp := h.send(t, http.MethodGet, "/v1/k8s/forbidden", nil,
		http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}})
	if got := text(t, resp); resp.StatusCode != http.StatusForbidden || got != "no\n" {
		t.Errorf("got %d %q, want the member's 403", resp.StatusCode, got)
	}
}

func testForgedMark(t *testing.T, h *replica) {
	resp := h.send(t, http.MethodPost, "/v1/k8s/echo", strings.NewReader("x"),
		http.Header{"Drover-Hop": {"failed"}, "Drover-Replica": {"me"}})
	if got := text(t, resp); resp.StatusCode != http.StatusOK || got != "x" {
		t.Errorf("got %d %q, want 200 with the body", resp.StatusCode, got)
	}
}

func testCut(t *testing.T, h *replica) {
	resp := h.send(t, http.MethodGet, "/v1/k8s/cut", nil, nil)
	if body, err := io.ReadAll(resp.Body); err == nil || string(body) != "half" {
		t.Errorf("got %q, %v, want a part of the body and an error", body, err)
	}
}

func testLargeHeader(t *testing.T, h *replica) {
	resp := h.send(t, http.MethodGet, "/v1/k8s/echo", nil, http.Header{"X-Large": {strings.Repeat("x", 63<<10)}})
	if resp.StatusCode != http.StatusOK {
		t.Errorf("got %d, want 200", resp.StatusCode)
	}
}

func testTrailer(t *testing.T, h *replica) {
	resp := h.send(t, http.MethodGet, "/v1/k8s/trailer", nil, nil)
	if got := text(t, resp); got != "body" || resp.Trailer.Get("Sum") != "42" {
		t.Errorf("got %q %v, want the body with its trailer", got, resp.Trailer)
	}
}
