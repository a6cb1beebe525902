// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/limit"
)

// These constants are the maximum numbers of bytes of a response that may be in flight to the hub. For members, the
// maximum is the stream window of a tunnel. For the hub's API server, it is the stream window of the net/http client.
const (
	memberWindow = 1 << 20
	hubWindow    = 4 << 20
)

// enter reserves a seat for a call, or refuses the call with 429. If a user impersonates another user, the call
// counts toward the original user's limit.
func (h *Handler) enter(ctx context.Context, c *call) (*limit.Seat, error) {
	requester := limit.Requester{User: c.identity.Sharer()}
	if !c.target.local {
		requester.Member = c.target.cluster.String()
	}
	seat, err := h.limiter.Enter(ctx, requester, c.info.Long)
	if full, ok := errors.AsType[*limit.FullError](err); ok {
		return nil, tooMany(c, full)
	}
	return seat, err
}

// tooMany returns a refusal that names the user or member with too many requests.
func tooMany(c *call, full *limit.FullError) error {
	kind := "requests"
	if c.info.Long {
		kind = "watches, followed logs and sessions"
	}
	var message string
	switch full.Scope {
	case limit.ScopeUser:
		message = fmt.Sprintf("you have too many %s open through the hub; end some of them, or try again", kind)
	case limit.ScopeMember:
		message = fmt.Sprintf("there are too many open %s in cluster %q; try again", kind, c.target.cluster)
	default:
		message = fmt.Sprintf("the hub has too many open %s; try again", kind)
	}
	// the delay is random, so that users who were refused at the same time do not all retry at the same time
	refused := refusal.TooManyRequests(message, wait.Jitter(time.Second, 3).Truncate(time.Second)).Because(full)
	if c.target.local {
		return refused
	}
	return refused.About(c.target.cluster)
}

// flow starts counting the bytes of a response that the user has not read yet.
func (h *Handler) flow(c *call, cut func()) *limit.Flow {
	from := limit.Origin{Window: hubWindow}
	if !c.target.local {
		from = limit.Origin{Workspace: c.target.cluster.Namespace, Member: c.target.cluster.String(), Window: memberWindow}
	}
	return h.limiter.Backlog.Flow(from, cut)
}

// clock calls a function when an operation has taken too long or a check is due. The zero value never calls a function.
type clock struct {
	limit time.Duration

	mu    sync.Mutex // guards the fields below
	timer *time.Timer
	ended bool
}

// start starts the clock. The clock calls late when it has run for the given limit without a pause. Each call to resume
// restarts the time from zero.
func (c *clock) start(limit time.Duration, late func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit, c.timer = limit, time.AfterFunc(limit, late)
}

// pause stops the clock while the proxy waits for the user. resume starts the clock again from zero.
func (c *clock) pause() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
}

func (c *clock) resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil && !c.ended {
		c.timer.Reset(c.limit)
	}
}

// end stops the clock permanently.
func (c *clock) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.timer != nil {
		c.timer.Stop()
	}
}
