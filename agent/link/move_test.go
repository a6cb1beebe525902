// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tunnel"
)

// fakeTunnel is the hub's end of a tunnel in memory.
type fakeTunnel struct {
	at      time.Duration // when it was opened
	handler chan http.Handler
	close   chan struct{} // closed by the hub
	ended   chan struct{} // closed when it has ended
	cut     bool          // whether the agent ended it
}

// Serve ends when the hub closes the tunnel or ctx ends.
func (f *fakeTunnel) Serve(ctx context.Context, h http.Handler) error {
	defer close(f.ended)
	f.handler <- h
	select {
	case <-f.close:
		return tunnel.ErrPeerClosed
	case <-ctx.Done():
		f.cut = true
		return tunnel.ErrClosed
	}
}

// replicas is a fake hub that accepts every tunnel unless refuse is set, with the link to it.
type replicas struct {
	t     *testing.T
	link  *Link
	pass  func(time.Duration) // advances the bubble's time
	start time.Time
	stop  context.CancelFunc
	done  chan struct{}

	mu     sync.Mutex // guards the fields below
	opened []*fakeTunnel
	refuse []error // errors of the next attempts
}

// tunnels returns all tunnels that were opened so far.
func (h *replicas) tunnels() []*fakeTunnel {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.opened)
}

// refuseNext makes the next attempts fail.
func (h *replicas) refuseNext(errs ...error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refuse = errs
}

// Target returns the fake hub.
func (h *replicas) Target(context.Context, error) (*Target, error) {
	return &Target{Servers: []string{"https://hub"}, Dial: h.dial, Token: func() (string, error) { return "token", nil }},
		nil
}

// Changed waits for ctx, because there is no new token.
func (h *replicas) Changed(ctx context.Context) { <-ctx.Done() }

func (h *replicas) dial(context.Context, string, http.Header) (Serve, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.refuse) > 0 {
		err := h.refuse[0]
		h.refuse = h.refuse[1:]
		return nil, err
	}
	f := &fakeTunnel{at: time.Since(h.start), handler: make(chan http.Handler, 1), close: make(chan struct{}),
		ended: make(chan struct{})}
	h.opened = append(h.opened, f)
	return f.Serve, nil
}

// ServeHTTP is the agent. A report lasts as long as its context.
func (h *replicas) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == protocol.PathReport {
		<-r.Context().Done()
	}
	w.WriteHeader(http.StatusNoContent)
}

// inBubble runs a test with a link whose waits are the longest, or none at all.
func inBubble(t *testing.T, drain time.Duration, test func(h *replicas)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &replicas{t: t, start: time.Now(), done: make(chan struct{})}
		h.pass = func(d time.Duration) { time.Sleep(d) }
		var ctx context.Context
		ctx, h.stop = context.WithCancel(t.Context())
		h.link = New(Options{Target: h.Target, Changed: h.Changed, Handler: h, Log: logr.Discard(), Drain: drain,
			Jitter: func(n time.Duration) time.Duration { return n }})
		go func() { defer close(h.done); h.link.Run(ctx) }()
		synctest.Wait()
		test(h)
		h.stop()
		synctest.Wait()
		for _, f := range h.tunnels() {
			f.hangUp()
		}
		<-h.done
	})
}

// hangUp closes the tunnel at the hub's end, unless it has ended.
func (f *fakeTunnel) hangUp() {
	select {
	case <-f.close:
	default:
		close(f.close)
	}
	<-f.ended
}

func (f *fakeTunnel) alive() bool {
	select {
	case <-f.ended:
		return false
	default:
		return true
	}
}

// take uses a new tunnel as the hub does: it requests the report. The returned channel is closed when the report has
// ended.
func (h *replicas) take(f *fakeTunnel) (reported <-chan struct{}) {
	handler := <-f.handler
	f.handler <- handler
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		<-f.ended
	}()
	go func() {
		defer close(ended)
		handler.ServeHTTP(httptest.NewRecorder(),
			httptest.NewRequestWithContext(ctx, http.MethodGet, protocol.PathReport, nil))
	}()
	synctest.Wait()
	return ended
}

// ask sends one request through a tunnel.
func (h *replicas) ask(f *fakeTunnel, method, path, body string) int {
	handler := <-f.handler
	f.handler <- handler
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), method, path, strings.NewReader(body)))
	synctest.Wait()
	return w.Code
}

// newest waits until there are n tunnels, and returns the last.
func (h *replicas) newest(n int) *fakeTunnel {
	h.t.Helper()
	for range 1000 {
		if tunnels := h.tunnels(); len(tunnels) >= n {
			return tunnels[n-1]
		}
		h.pass(time.Second)
	}
	h.t.Fatalf("there are %d tunnels", len(h.tunnels()))
	return nil
}

func over(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestMove(t *testing.T) {
	t.Parallel()
	t.Run("the report on the old tunnel ends once the new one serves, and the hub closes it", func(t *testing.T) {
		inBubble(t, 0, func(h *replicas) {
			old := h.newest(1)
			reported := h.take(old)
			h.pass(2 * time.Minute)
			if code := h.ask(old, http.MethodPost, protocol.PathMove, `{"seconds":60}`); code != http.StatusAccepted {
				t.Fatalf("answer %d", code)
			}
			next := h.newest(2)
			h.pass(takeover / 2)
			if over(reported) || !h.link.Connected() {
				t.Error("the old tunnel is left before the hub uses the new one")
			}
			h.take(next)
			h.pass(settle)
			synctest.Wait()
			if !over(reported) || !old.alive() || !h.link.Connected() {
				t.Errorf("report ended %t, old alive %t, connected %t", over(reported), old.alive(), h.link.Connected())
			}
			if code := h.ask(old, http.MethodGet, "/v1/k8s/x", ""); code != http.StatusNoContent {
				t.Errorf("the old tunnel answers %d", code)
			}
			old.hangUp()
			h.pass(time.Hour)
			if len(h.tunnels()) != 2 || !h.link.Connected() {
				t.Errorf("%d tunnels, connected %t", len(h.tunnels()), h.link.Connected())
			}
		})
	})
	t.Run("an old tunnel that the hub does not close is cut when its time is over", func(t *testing.T) {
		inBubble(t, 0, func(h *replicas) {
			old := h.newest(1)
			h.take(old)
			h.ask(old, http.MethodPost, protocol.PathMove, `{"seconds":60}`)
			h.take(h.newest(2))
			h.pass(settle)
			left := time.Now()
			<-old.ended
			if took := time.Since(left); !old.cut || took != time.Minute {
				t.Errorf("it ended after %s, cut %t", took, old.cut)
			}
		})
	})
	t.Run("a replica that refuses is asked again as it says, and the old tunnel stays", func(t *testing.T) {
		inBubble(t, 0, func(h *replicas) {
			old := h.newest(1)
			reported := h.take(old)
			h.pass(2 * time.Minute)
			h.refuseNext(refused(503, 3*time.Second), errors.New("connection refused"))
			asked := time.Since(h.start)
			h.ask(old, http.MethodPost, protocol.PathMove, `{"seconds":600}`)
			next := h.newest(2)
			// Half a second of jitter, twice the 3 s of Retry-After, and the wait after a third failure.
			if took := next.at - asked; took != 7500*time.Millisecond {
				t.Errorf("it moved after %s", took)
			}
			if over(reported) || !h.link.Connected() {
				t.Error("the old tunnel was left meanwhile")
			}
		})
	})
	t.Run("to be asked while it moves changes nothing", func(t *testing.T) {
		inBubble(t, 0, func(h *replicas) {
			old := h.newest(1)
			h.take(old)
			for range 3 {
				h.ask(old, http.MethodPost, protocol.PathMove, `{"seconds":600}`)
			}
			next := h.newest(2)
			h.ask(old, http.MethodPost, protocol.PathMove, `{"seconds":600}`)
			h.take(next)
			h.pass(time.Minute)
			if len(h.tunnels()) != 2 {
				t.Errorf("%d tunnels", len(h.tunnels()))
			}
		})
	})
	t.Run("a new tunnel that ends at once is not moved to", func(t *testing.T) {
		inBubble(t, 0, func(h *replicas) {
			old := h.newest(1)
			reported := h.take(old)
			h.ask(old, http.MethodPost, protocol.PathMove, `{"seconds":600}`)
			h.newest(2).hangUp()
			synctest.Wait()
			if over(reported) || !h.link.Connected() {
				t.Error("the old tunnel is left")
			}
			h.take(h.newest(3))
			h.pass(settle)
			synctest.Wait()
			if !over(reported) {
				t.Error("it did not move after all")
			}
		})
	})
	t.Run("when the old tunnel ends meanwhile, the link connects as after any loss", func(t *testing.T) {
		inBubble(t, 0, func(h *replicas) {
			old := h.newest(1)
			h.take(old)
			h.pass(2 * time.Minute)
			h.refuseNext(refused(503, time.Hour))
			h.ask(old, http.MethodPost, protocol.PathMove, `{"seconds":600}`)
			h.pass(time.Minute)
			lost := time.Since(h.start)
			old.hangUp()
			if took := h.newest(2).at - lost; took > firstWait {
				t.Errorf("connected after %s", took)
			}
		})
	})
	t.Run("it moves by itself before a tunnel is five hours old", func(t *testing.T) {
		inBubble(t, 0, func(h *replicas) {
			h.take(h.newest(1))
			h.pass(5*time.Hour + time.Minute)
			synctest.Wait()
			if len(h.tunnels()) != 2 || h.tunnels()[1].at < 3*time.Hour {
				t.Errorf("%d tunnels", len(h.tunnels()))
			}
			next := h.newest(2)
			reported := h.take(next)
			h.pass(time.Hour)
			if over(reported) || !h.link.Connected() {
				t.Error("it does not stay on the new tunnel")
			}
		})
	})
	t.Run("a hub that asks each new tunnel to move is dialled ever more slowly", func(t *testing.T) {
		inBubble(t, 0, func(h *replicas) {
			for n := range 5 {
				f := h.newest(n + 1)
				h.take(f)
				h.ask(f, http.MethodPost, protocol.PathMove, `{"seconds":1}`)
			}
			var gaps []time.Duration
			for i := range 4 {
				gaps = append(gaps, h.tunnels()[i+1].at-h.tunnels()[i].at)
			}
			if !slices.IsSorted(gaps) || gaps[3] < 4*gaps[0] {
				t.Errorf("gaps %v", gaps)
			}
		})
	})
	t.Run("what is no request to move is refused", func(t *testing.T) {
		inBubble(t, 0, func(h *replicas) {
			old := h.newest(1)
			if code := h.ask(old, http.MethodGet, protocol.PathMove, ""); code != http.StatusMethodNotAllowed {
				t.Errorf("GET: %d", code)
			}
			if code := h.ask(old, http.MethodPost, protocol.PathMove, "{"); code != http.StatusBadRequest {
				t.Errorf("no JSON: %d", code)
			}
			h.pass(time.Minute)
			if len(h.tunnels()) != 1 {
				t.Error("it moves")
			}
		})
	})
}

func TestStop(t *testing.T) {
	t.Parallel()
	t.Run("it ends reports, is not ready and serves until the hub closes", func(t *testing.T) {
		inBubble(t, time.Minute, func(h *replicas) {
			f := h.newest(1)
			reported := h.take(f)
			h.stop()
			synctest.Wait()
			if !over(reported) || h.link.Connected() || !h.link.Alive() || !f.alive() {
				t.Errorf("report ended %t, ready %t, alive %t, tunnel %t", over(reported), h.link.Connected(), h.link.Alive(),
					f.alive())
			}
			h.pass(30 * time.Second)
			if code := h.ask(f, http.MethodGet, "/v1/k8s/x", ""); code != http.StatusNoContent {
				t.Errorf("a late request: %d", code)
			}
			f.hangUp()
			<-h.done
			if took := time.Since(h.start); took != 30*time.Second {
				t.Errorf("it ended after %s", took)
			}
		})
	})
	t.Run("it goes when its time is over, old tunnels included", func(t *testing.T) {
		inBubble(t, time.Minute, func(h *replicas) {
			old := h.newest(1)
			h.take(old)
			h.ask(old, http.MethodPost, protocol.PathMove, `{"seconds":3600}`)
			h.take(h.newest(2))
			h.pass(settle)
			h.stop()
			stopped := time.Now()
			<-h.done
			if took := time.Since(stopped); took != time.Minute || !h.tunnels()[0].cut || !h.tunnels()[1].cut {
				t.Errorf("it ended after %s", took)
			}
		})
	})
	t.Run("it does not connect any more", func(t *testing.T) {
		inBubble(t, time.Minute, func(h *replicas) {
			f := h.newest(1)
			h.stop()
			synctest.Wait()
			f.hangUp()
			<-h.done
			if len(h.tunnels()) != 1 {
				t.Errorf("%d tunnels", len(h.tunnels()))
			}
		})
	})
}
