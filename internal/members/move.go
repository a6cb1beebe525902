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
	// movesPerCore is the number of agents that are asked to move per second per core. Each move causes a TLS handshake
	// with another replica, and a replica performs only a limited number of handshakes at a time.
	movesPerCore = 200
	moveBurst    = 50
	// moveTimeout is how long an agent may take to respond. It responds before it opens another tunnel.
	moveTimeout = 10 * time.Second

	// lateRequests is how long a tunnel still accepts requests after its agent has announced that it is disconnecting.
	// Such requests come from callers that had already selected the tunnel.
	lateRequests = time.Second

	// moveSilence is how long Move waits after the last agent has moved. Agents dial within seconds, so any agent that
	// has not moved by then is unable to move.
	moveSilence = 10 * time.Second
)

// Move asks the agents of all tunnels to this replica to open a new tunnel through the hub's address and then close the
// current tunnel. The agents may continue to use the current tunnel for the duration keep. Move does not ask agents
// faster than the other replicas can accept them. It returns how many agents have moved and how many have stayed.
//
// An agent has stayed if it did not respond, does not support the request, or had not moved when Move returned. Move
// returns when ctx is done or when no agent has moved for 10 s.
func (t *Tunnels) Move(ctx context.Context, keep time.Duration) (moved, stayed int) {
	sessions := t.open()
	limiter := rate.NewLimiter(rate.Limit(movesPerCore*runtime.GOMAXPROCS(0)), moveBurst)
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	silence := time.AfterFunc(moveSilence, giveUp)
	defer silence.Stop()
	var asking sync.WaitGroup
	for _, s := range sessions {
		if limiter.Wait(ctx) != nil {
			break
		}
		silence.Reset(moveSilence) // the period starts when the agent is asked
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

// open returns the tunnels to this replica that accept new requests.
func (t *Tunnels) open() []*session {
	t.table.mu.Lock()
	defer t.table.mu.Unlock()
	var open []*session
	for _, m := range t.table.members {
		open = append(open, m.sessions...)
	}
	return open
}

// askToMove returns nil when the agent has agreed to move.
func (s *session) askToMove(ctx context.Context, keep time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, moveTimeout)
	defer cancel()
	body, err := json.Marshal(protocol.MoveRequest{Seconds: int64(keep / time.Second)})
	if err != nil {
		return err
	}
	resp, err := Ask(ctx, s, http.MethodPost, protocol.PathMove, body)
	if err != nil {
		return fmt.Errorf("ask the agent to move: %w", err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, protocol.MaxBody)) // an incomplete body does not matter
	return nil
}

// leaving is a tunnel whose agent can disconnect without interrupting users. When the agent disconnects or the tunnel
// breaks, each watch ends between two events. Requests that have already selected the tunnel are still accepted.
type leaving struct {
	Session
	going context.Context // ends when the agent announces that it is disconnecting
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
	return response, err // a transport's errors are returned unwrapped
}

// broken reports whether the tunnel has ended. If so, a watch that is between two events ends as if the API server had
// ended it. The client then continues through another tunnel.
func (l *leaving) broken() bool {
	select {
	case <-l.Done():
		return true
	default:
		return false
	}
}

// Drain ends watches, waits for requests that have already selected the tunnel, and then calls Session.Drain.
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

// await returns when the agent has announced that it is disconnecting, or when the tunnel or ctx is done.
func (l *leaving) await(ctx context.Context) {
	select {
	case <-l.going.Done():
	case <-l.Done():
	case <-ctx.Done():
	}
}

// left reports whether the agent has announced that it is disconnecting, or is gone.
func (l *leaving) left() bool { return l.going.Err() != nil || l.broken() }

// Streams returns the number of requests in progress, or 0 if the tunnel does not count requests.
func (l *leaving) Streams() int {
	if counting, ok := l.Session.(interface{ Streams() int }); ok {
		return counting.Streams()
	}
	return 0
}
