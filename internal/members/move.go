// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/request"
)

// Timing of moves.
const (
	movesPerCore = 200 // a second: each brings the handshake of a new tunnel to another replica, which takes no more at once
	moveBurst    = 50
	moveTimeout  = 10 * time.Second // for an agent to say that it will; it has nothing to do before

	// lateRequests is for how long a tunnel still takes requests after its agent took leave: of those who had looked it up
	// before.
	lateRequests = time.Second

	// moveSilence is how long it is waited for agents that have said that they will move, after the last one that did. An
	// agent dials within seconds; one that cannot has stayed, and has nothing from being waited for.
	moveSilence = 10 * time.Second
)

// Move asks the agents at the far end of all tunnels here to open another one, wherever the hub's address leads them,
// and to leave the one here, which they may use for keep from now on. It asks no faster than other replicas can take
// them. It returns how many have moved and how many have not: who did not answer, does not know how, or had not moved
// when ctx ended, or none had for 10 s.
func (t *Tunnels) Move(ctx context.Context, keep time.Duration) (moved, stayed int) {
	sessions := t.open()
	limiter := rate.NewLimiter(rate.Limit(movesPerCore*runtime.GOMAXPROCS(0)), moveBurst)
	ctx, give := context.WithCancel(ctx)
	defer give()
	silence := time.AfterFunc(moveSilence, give)
	defer silence.Stop()
	var asking sync.WaitGroup
	for _, s := range sessions {
		if limiter.Wait(ctx) != nil {
			break
		}
		silence.Reset(moveSilence) // it is asked now, and may take as long
		asking.Go(func() {
			if err := s.askToMove(ctx, keep); err != nil {
				t.table.log.V(1).Info("agent does not move", "cluster", s.peer.Name(), "cause", err.Error())
				return
			}
			if l, ok := s.Session.(*leaving); ok {
				if l.await(ctx); l.left() {
					silence.Reset(moveSilence)
				}
			}
		})
	}
	asking.Wait()
	left := 0
	for _, s := range sessions {
		if l, ok := s.Session.(*leaving); ok && l.left() {
			left++
		}
	}
	return left, len(sessions) - left
}

// open returns the tunnels that end here and carry new requests.
func (t *Tunnels) open() []*session {
	t.table.mu.Lock()
	defer t.table.mu.Unlock()
	var open []*session
	for _, m := range t.table.members {
		open = append(open, m.sessions...)
	}
	return open
}

// askToMove returns nil when the agent has said that it will move.
func (s *session) askToMove(ctx context.Context, keep time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, moveTimeout)
	defer cancel()
	body, err := json.Marshal(protocol.MoveRequest{Seconds: int64(keep / time.Second)})
	if err != nil {
		return err
	}
	resp, err := Ask(ctx, s, http.MethodPost, protocol.PathMove, body)
	if err != nil {
		return fmt.Errorf("ask to move: %w", err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, protocol.MaxBody)) // an answer that breaks off has said enough
	return nil
}

// leaving is a tunnel whose agent can disconnect without an effect for users: watches through it then end between two
// events, as they do when it breaks; requests that are on their way to it are still accepted.
type leaving struct {
	Session
	going context.Context // ends when the agent takes leave
	leave context.CancelFunc
}

func newLeaving(tunnel Session) *leaving {
	l := &leaving{Session: tunnel}
	l.going, l.leave = context.WithCancel(context.Background())
	return l
}

// RoundTrip implements http.RoundTripper.
func (l *leaving) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := l.Session.RoundTrip(r)
	if err == nil && request.IsWatch(r) && strings.HasPrefix(r.URL.Path, protocol.PathKubernetes+"/") {
		request.EndWatchOrFailure(l.going, response, func(error) bool { return l.broken() })
	}
	return response, err // a transport's errors stay as they are
}

// broken reports whether the tunnel has ended. A watch between two events then ends as if its API server had ended it:
// its user continues through another tunnel.
func (l *leaving) broken() bool {
	select {
	case <-l.Done():
		return true
	default:
		return false
	}
}

// Drain ends watches, lets in what is just on its way, and then does what Session.Drain does.
func (l *leaving) Drain(ctx context.Context) error {
	l.leave()
	late := time.NewTimer(lateRequests)
	defer late.Stop()
	select {
	case <-late.C:
	case <-l.Done():
	}
	return l.Session.Drain(ctx)
}

// await returns when the agent has taken leave or the tunnel has ended, or with ctx.
func (l *leaving) await(ctx context.Context) {
	select {
	case <-l.going.Done():
	case <-l.Done():
	case <-ctx.Done():
	}
}

// left reports whether the agent has disconnected or is gone.
func (l *leaving) left() bool { return l.going.Err() != nil || l.broken() }

// Streams is how many requests are under way, 0 for a tunnel that does not count.
func (l *leaving) Streams() int {
	if counting, ok := l.Session.(interface{ Streams() int }); ok {
		return counting.Streams()
	}
	return 0
}
