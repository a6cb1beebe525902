// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package peer_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/peer"
)

// window is the window of one response, in bytes.
const window = 1 << 20

// bounded returns the first of two replicas with these bounds for hops, and the limiter of the second. A member of the
// second answers with handler.
func bounded(t *testing.T, s limit.Settings, o limit.Observers, handler http.HandlerFunc) (here *replica,
	there *limit.Limiter) {
	t.Helper()
	var limits []*limit.Limiter
	all := hubs(t, 2, func(options *peer.Options) {
		options.Limiter = limit.New(s, o)
		limits = append(limits, options.Limiter)
	})
	all[1].connect(t, "one", handler)
	all[0].knows(t)
	return all[0], limits[1]
}

// flood answers endlessly, and upgrades the connection if requested.
func flood(w http.ResponseWriter, r *http.Request) {
	to := io.Writer(w)
	if r.Header.Get("Upgrade") != "" {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
		to = conn
	}
	for {
		if _, err := to.Write(make([]byte, 32<<10)); err != nil {
			return
		}
	}
}

func TestWaitingResponsesCountWhereTheTunnelEnds(t *testing.T) {
	for name, header := range map[string]http.Header{
		"responses": nil,
		"sessions":  {"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			cut := make(chan limit.Scope, 1)
			backlog := limit.BacklogBounds{Member: window, Grace: 200 * time.Millisecond}
			here, there := bounded(t, limit.Settings{Backlog: backlog}, limit.Observers{Cut: func(s limit.Scope) { cut <- s }},
				flood)
			stalled := here.send(t, http.MethodGet, "/v1/k8s/flood", nil, header)
			until(t, "the response counts", func() bool { return there.Backlog.Held() == window })
			other := here.send(t, http.MethodGet, "/v1/k8s/flood", nil, header)
			if _, err := io.CopyN(io.Discard, other.Body, 4*window); err != nil {
				t.Errorf("read of another response: got %v, want no error", err)
			}
			if scope := <-cut; scope != limit.ScopeMember {
				t.Errorf("a response was cut because of the bound %s, want %s", scope, limit.ScopeMember)
			}
			if _, err := io.CopyN(io.Discard, other.Body, 4*window); err != nil {
				t.Errorf("second read of the other response: got %v, want no error", err)
			}
			if n, err := io.Copy(io.Discard, io.LimitReader(stalled.Body, 4*window)); err == nil {
				t.Errorf("read %d bytes of the response that exceeded the bound, want an error", n)
			}
			_ = other.Body.Close()
			_ = stalled.Body.Close()
			until(t, "nothing is held", func() bool {
				short, long, _ := there.Load()
				return there.Backlog.Held() == 0 && short+long == 0
			})
		})
	}
}

func TestHopsAreBoundedWhereTheTunnelEnds(t *testing.T) {
	bounds := limit.Bounds{Member: 1}
	here, there := bounded(t, limit.Settings{Short: bounds, Long: bounds}, limit.Observers{},
		func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, "/pods") {
				return
			}
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
	const pods = "/v1/k8s/api/v1/pods"
	ask := func(target string) error {
		t.Helper()
		transport, err := here.fleet.Transport(member)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://member"+target, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		return err
	}
	watch := here.send(t, http.MethodGet, pods+"?watch=1", nil, nil)
	list := here.send(t, http.MethodGet, pods, nil, nil)
	for _, target := range []string{pods, pods + "?watch=1"} {
		var full *limit.FullError
		if err := ask(target); !errors.As(err, &full) || full.Scope != limit.ScopeMember {
			t.Errorf("another %s: got %v, want the member's bound reached", target, err)
		}
		if result := here.results.Load(); result == nil || *result != "refused" {
			t.Errorf("another %s is counted as %v, want refused", target, result)
		}
	}
	if err := ask("/v1/settings"); err != nil {
		t.Errorf("the hub's own request to the agent: got %v, want no error", err)
	}
	_ = list.Body.Close()
	_ = watch.Body.Close()
	until(t, "the seats are free", func() bool { short, long, _ := there.Load(); return short+long == 0 })
	if err := errors.Join(ask("/v1/k8s/version"), ask(pods)); err != nil {
		t.Error(err)
	}
}
