// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-dev/drover/internal/protocol"
)

// branch is one open tunnel of a Link. It serves the requests that the hub sends through the tunnel. While a Link moves
// to another tunnel, it briefly has several branches.
type branch struct {
	handler http.Handler
	server  string
	started time.Time

	used  chan struct{} // closed by the first request, because a request shows that the hub uses the tunnel
	first sync.Once
	asked chan struct{} // signals that the hub wants the agent to move; has room for one message
	keep  atomic.Int64  // how long, in nanoseconds, the hub may use the tunnel after the agent has left it

	left  context.Context // done when the agent leaves the tunnel
	leave context.CancelFunc

	ended chan struct{} // closed when the tunnel has ended, after err was set
	err   error
}

func newBranch(handler http.Handler, server string) *branch {
	b := &branch{
		handler: handler, server: server, started: time.Now(),
		used: make(chan struct{}), asked: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	b.keep.Store(int64(keepOwn))
	b.left, b.leave = context.WithCancel(context.Background())
	return b
}

// open returns how long the tunnel has been open. The result is never 0.
func (b *branch) open() time.Duration { return max(time.Since(b.started), 1) }

// ServeHTTP implements http.Handler. When the agent leaves the tunnel, ServeHTTP ends requests to protocol.PathReport
// to signal this to the hub. Other requests continue.
func (b *branch) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.first.Do(func() { close(b.used) })
	switch r.URL.Path {
	case protocol.PathMove:
		b.serveMove(w, r)
	case protocol.PathReport:
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		stay := context.AfterFunc(b.left, cancel)
		defer stay()
		b.handler.ServeHTTP(w, r.WithContext(ctx))
	default:
		b.handler.ServeHTTP(w, r)
	}
}

// serveMove records that the hub has asked the agent to move. Another request only changes how long the hub may use the
// tunnel, even while the agent is moving.
func (b *branch) serveMove(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "a move is requested with POST", http.StatusMethodNotAllowed)
		return
	}
	var move protocol.MoveRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, protocol.MaxBody)).Decode(&move); err != nil {
		http.Error(w, "read the request to move: "+err.Error(), http.StatusBadRequest)
		return
	}
	b.keep.Store(int64(move.Keep()))
	select {
	case b.asked <- struct{}{}:
	default:
	}
	w.WriteHeader(http.StatusAccepted)
}

// serve serves requests until the hub closes the tunnel. After the agent has left the tunnel, the hub may use it for
// the time in b.keep. Once stopping is done, the remaining time is limited to stop. If the tunnel is still open after
// this time, the agent closes it.
func (b *branch) serve(stopping context.Context, tunnel Serve, stop time.Duration) {
	ctx, cut := context.WithCancel(context.WithoutCancel(stopping))
	defer cut()
	served, idle := make(chan struct{}), make(chan struct{})
	forget := context.AfterFunc(b.left, func() {
		defer close(idle)
		if overstayed(stopping, served, stop, time.Duration(b.keep.Load())) {
			cut()
		}
	})
	b.err = tunnel(ctx, b)
	close(served)
	if !forget() {
		<-idle
	}
	close(b.ended)
}

// overstayed waits until a tunnel that the agent has left is closed, and returns false. It returns true if the tunnel
// is still open when the hub is no longer allowed to use it.
func overstayed(stopping context.Context, served <-chan struct{}, stop, keep time.Duration) bool {
	select {
	case <-served:
		return false
	case <-time.After(keep):
		return true
	case <-stopping.Done():
	}
	select {
	case <-served:
		return false
	case <-time.After(min(stop, keep)):
		return true
	}
}
