// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-dev/drover/internal/protocol"
)

// movingAgent is an agent that can move. It ends its report after the hub has asked it to move and it has a new tunnel.
type movingAgent struct {
	asked  chan protocol.MoveRequest
	leave  chan struct{}
	answer int
}

func newMovingAgent(answer int) *movingAgent {
	return &movingAgent{asked: make(chan protocol.MoveRequest, 8), leave: make(chan struct{}), answer: answer}
}

func (n *movingAgent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case protocol.PathMove:
		var move protocol.MoveRequest
		if err := json.NewDecoder(r.Body).Decode(&move); err != nil || r.Method != http.MethodPost {
			http.Error(w, "malformed", http.StatusBadRequest)
			return
		}
		n.asked <- move
		w.WriteHeader(n.answer)
	case protocol.PathReport:
		_ = http.NewResponseController(w).Flush()
		select {
		case <-n.leave:
		case <-r.Context().Done():
		}
	default: // a watch
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "{}\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

func TestMove(t *testing.T) {
	for name, test := range map[string]func(*world){
		"it returns when all have moved or stayed, and counts both":    testMoved,
		"it waits 10 s for an agent that agreed but does not move":     testMovePromised,
		"it asks agents at a limited rate":                             testMovePaced,
		"a watch ends between two events when its agent disconnects":   testWatchLeave,
		"a watch ends between two events when its agent is killed":     testWatchKill,
		"a request that is already on its way to the tunnel is served": testLate,
	} {
		t.Run(name, func(t *testing.T) { inBubble(t, test) })
	}
}

// move runs Move concurrently with the test.
func (w *world) move(ctx context.Context) <-chan string {
	result := make(chan string, 1)
	go func() {
		moved, stayed := w.Move(ctx, 90*time.Second)
		result <- fmt.Sprintf("%d moved, %d stayed", moved, stayed)
	}()
	synctest.Wait()
	return result
}

func testMoved(w *world) {
	n, old := newMovingAgent(http.StatusAccepted), newMovingAgent(http.StatusNotFound)
	gone := newMovingAgent(http.StatusAccepted)
	w.serve("member", "key", n.ServeHTTP)
	w.serve("old", "key", old.ServeHTTP)
	lost := w.serve("gone", "key", gone.ServeHTTP)
	result := w.move(w.t.Context())
	if got := <-n.asked; got.Keep() != 90*time.Second {
		w.t.Errorf("the agent may keep the old tunnel for %s, want 90 s", got.Keep())
	}
	_ = lost.conn.Close()
	if synctest.Wait(); len(result) > 0 {
		w.t.Error("Move returned before the agent had moved, want it to wait")
	}
	close(n.leave)
	if got := <-result; got != "2 moved, 1 stayed" {
		w.t.Errorf("got %v, want 2 moved, 1 stayed", got)
	}
	if w.State(name("member")).Connected() || !w.State(name("old")).Connected() {
		w.t.Error("got the departed agent connected or the remaining one disconnected, want the opposite")
	}
}

func testMovePromised(w *world) {
	w.serve("member", "key", newMovingAgent(http.StatusAccepted).ServeHTTP)
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	start := time.Now()
	if got := <-w.move(ctx); got != "0 moved, 1 stayed" || time.Since(start) != 10*time.Second {
		w.t.Errorf("got %s after %s, want \"0 moved, 1 stayed\" after 10 s", got, time.Since(start))
	}
	late := newMovingAgent(http.StatusAccepted)
	w.serve("late", "key", late.ServeHTTP)
	start = time.Now()
	result := w.move(ctx)
	w.pass(9 * time.Second)
	close(late.leave)
	if got := <-result; got != "1 moved, 1 stayed" || time.Since(start) != 19*time.Second {
		w.t.Errorf("got %s after %s, want \"1 moved, 1 stayed\" after 19 s", got, time.Since(start))
	}
}

func testMovePaced(w *world) {
	const members = 300
	var asked atomic.Int32
	for i := range members {
		w.serve(fmt.Sprintf("member-%d", i), "key", func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == protocol.PathMove {
				asked.Add(1)
				http.NotFound(rw, r)
				return
			}
			_ = http.NewResponseController(rw).Flush()
			<-r.Context().Done()
		})
	}
	result := w.move(w.t.Context())
	if n := asked.Load(); n > 60 {
		w.t.Errorf("%d agents were asked at once, want at most 60", n)
	}
	if got := <-result; got != "0 moved, 300 stayed" || asked.Load() != members {
		w.t.Errorf("got %q and %d asked, want \"0 moved, 300 stayed\" and %d", got, asked.Load(), members)
	}
}

// watch starts a watch of a member and returns a channel that receives its result.
func (w *world) watch() <-chan string {
	ended := make(chan string, 1)
	go func() {
		text, err := w.get("member", protocol.PathKubernetes+"/api/v1/pods?watch=true")
		ended <- fmt.Sprintf("%q, %v", text, err)
	}()
	synctest.Wait()
	if len(ended) > 0 {
		w.t.Error("the watch has already ended, want it open")
	}
	return ended
}

func testWatchLeave(w *world) {
	n := newMovingAgent(http.StatusAccepted)
	w.serve("member", "key", n.ServeHTTP)
	ended := w.watch()
	close(n.leave)
	start := time.Now()
	if got := <-ended; got != `"{}\n", <nil>` || time.Since(start) > 0 {
		w.t.Errorf("the watch ended with %s after %s, want one event and no error at once", got, time.Since(start))
	}
}

func testWatchKill(w *world) {
	a := w.serve("member", "key", newMovingAgent(http.StatusAccepted).ServeHTTP)
	ended := w.watch()
	_ = a.conn.Close()
	if got := <-ended; got != `"{}\n", <nil>` {
		w.t.Errorf("the watch ended with %s, want one event and no error", got)
	}
}

func testLate(w *world) {
	n := newMovingAgent(http.StatusAccepted)
	w.serve("member", "key", n.ServeHTTP)
	late, err := w.Here(name("member"), "")
	if err != nil {
		w.t.Fatal(err)
	}
	close(n.leave)
	synctest.Wait()
	if _, err := w.Here(name("member"), ""); err == nil {
		w.t.Error("Here returns a tunnel that its agent has left, want an error")
	}
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, "http://agent/x", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	resp, err := late.RoundTrip(req)
	if err != nil {
		w.t.Fatalf("a request that had chosen the tunnel before: got %v, want it served", err)
	}
	_ = resp.Body.Close()
}
