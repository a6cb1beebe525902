// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/balancer"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// pair is two linked replicas of a hub behind a load balancer.
type pair struct {
	first, second *world
	front         *balancer.Balancer
	stopFirst     func() error
}

func newPair(t *testing.T) *pair {
	t.Helper()
	env := testkit.Shared(t)
	ca, err := trust.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	namespace, peers := env.Workspace(t), []string{freeAddress(t), freeAddress(t)}
	more := func(i int) string {
		return fmt.Sprintf("drain: {delay: 2s, sessions: 6s}, peers: {listen: %q, addresses: [%q, %q]}", peers[i], peers[0],
			peers[1])
	}
	p := &pair{first: newReplica(t, env, namespace, ca, more(0)), second: newReplica(t, env, namespace, ca, more(1))}
	p.stopFirst = p.first.listen() // it is ready only when both are linked
	p.second.listen()
	backends := []string{p.first.base, p.second.base}
	client := p.first.client(false)
	client.Transport.(*http.Transport).DisableKeepAlives = true
	p.front, err = balancer.Start(t.Context(), backends, func(ctx context.Context, backend string) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+backend+"/readyz", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.front.Close() })
	testkit.Eventually(t, 20*time.Second, func(context.Context) error {
		if p.first.server.Stop.Others() != 1 || p.second.server.Stop.Others() != 1 {
			return errors.New("the replicas are not linked")
		}
		return nil
	})
	for _, backend := range backends {
		if err := p.front.Await(t.Context(), backend, true); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := lab.FreeAddress("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// load simulates users: it sends requests at a fixed rate, and resumes watches when they end. All failures are counted
// and reported.
type load struct {
	t            *testing.T
	w            *world
	path, bearer string
	sent, failed atomic.Int32
	resumed      atomic.Int32
	working      sync.WaitGroup
}

func (l *load) fail(format string, args ...any) {
	l.failed.Add(1)
	l.t.Errorf(format, args...)
}

func (l *load) start(ctx context.Context, clients []*http.Client, perSecond float64, watches int) {
	pace := rate.NewLimiter(rate.Limit(perSecond), 1)
	for _, c := range clients {
		for range 4 {
			l.working.Go(func() {
				for pace.Wait(ctx) == nil {
					l.request(c)
				}
			})
		}
	}
	for i := range watches {
		l.working.Go(func() {
			for ctx.Err() == nil {
				l.watch(ctx, clients[i%len(clients)])
			}
		})
	}
}

// request sends one request. Every second request is a write with a body.
func (l *load) request(c *http.Client) {
	method, body := http.MethodGet, io.Reader(nil)
	if n := l.sent.Add(1); n%2 == 0 {
		method, body = http.MethodPost, strings.NewReader(`{"kind":"Pod"}`)
	}
	req, err := http.NewRequestWithContext(context.Background(), method, "https://"+l.w.base+l.path+"/api/v1/pods", body)
	if err != nil {
		l.fail("%v", err)
		return
	}
	req.Header.Set("Authorization", "Bearer "+l.bearer)
	var got httptrace.GotConnInfo
	req = req.WithContext(httptrace.WithClientTrace(req.Context(),
		&httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { got = i }}))
	resp, err := c.Do(req)
	if err != nil {
		l.fail("%s: %v (connection reused %t, idle for %s; %s)", method, err, got.Reused, got.IdleTime,
			time.Now().Format("05.000"))
		return
	}
	defer resp.Body.Close()
	if raw, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK || string(raw) != "answer" {
		l.fail("%s: %d %s %v", method, resp.StatusCode, raw, err)
	}
}

func (l *load) watch(ctx context.Context, c *http.Client) {
	select {
	case err := <-l.w.watch(l.t, c, l.path, l.bearer):
		if err != nil && ctx.Err() == nil {
			l.fail("a watch ended %v", err)
		}
		l.resumed.Add(1)
	case <-ctx.Done():
	}
}

// TestRollingStop stops one of two replicas under load. The agent's tunnel is at that replica.
func TestRollingStop(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	w := p.first
	m, user := w.moves(t, "member"), w.reader("rolling-user")
	m.mu.Lock()
	w.base = p.front.Address()
	m.server = "https://" + w.base // where its next tunnel goes
	m.mu.Unlock()
	testkit.Eventually(t, 10*time.Second, func(context.Context) error {
		if !p.second.server.Members.State(m.name).Connected() {
			return errors.New("the second replica does not know the member")
		}
		return nil
	})
	shells := []*shell{w.shell(t, m.path, user), w.shell(t, m.path, user)}
	l := &load{t: t, w: w, path: m.path, bearer: user}
	ctx, cancel := context.WithCancel(t.Context())
	l.start(ctx, []*http.Client{w.client(true), w.client(false)}, 200, 20)
	defer l.working.Wait()
	defer cancel()
	testkit.Eventually(t, 20*time.Second, func(context.Context) error {
		if l.sent.Load() < 200 {
			return errors.New("there is no load yet")
		}
		return nil
	})
	begun, ended, words := time.Now(), make(chan error, 1), newWords()
	t.Logf("stopping at %s", begun.Format("05.000"))
	go func() { ended <- p.stopFirst() }()
	for n := 0; len(ended) == 0 && time.Since(begun) < 7*time.Second; n++ { // 2 s of delay and most of 6 s
		for i, sh := range shells {
			if err := sh.says(fmt.Sprintf("word %d", n)); err != nil && time.Since(begun) < 8*time.Second {
				t.Fatalf("shell %d after %s: %v", i, time.Since(begun), err)
			}
		}
		_ = words.Wait(t.Context())
	}
	if err := <-ended; err != nil {
		t.Errorf("the replica stopped with %v, want no error", err)
	}
	if _, tunnels := p.second.server.Members.LocalSize(); tunnels != 1 {
		t.Errorf("%d tunnels at the second replica, want 1", tunnels)
	}
	t.Logf("stopped in %s; %d requests, %d watches ended, %d failures", time.Since(begun), l.sent.Load(), l.resumed.Load(),
		l.failed.Load())
}
