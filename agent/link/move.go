// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"errors"
	"time"

	"github.com/drover-dev/drover/internal/tunnel"
)

// Timing of moves.
const (
	// lifetime is after how long a link moves by itself, give or take a quarter: so agents spread over the hub's replicas
	// again after one was away, and no tunnel reaches the age at which something on the way cuts it.
	lifetime = 4 * time.Hour
	// keepOwn is how long the hub may use the old tunnel after such a move, for the sake of shells.
	keepOwn = time.Hour
	// takeover is how long the hub may take to use a new tunnel. One of a hub that does not even ask for a report is then
	// as good.
	takeover = 10 * time.Second
	// settle is how long both tunnels are kept after that: the other replicas of the hub hear of the new one meanwhile.
	settle = time.Second
)

// errSurpassed says that a new tunnel ended before the old one was left.
var errSurpassed = errors.New("the new tunnel ended at once")

// keep holds a tunnel, and those that it is replaced with. It returns the last one when that has ended, or when ctx
// ends.
func (l *Link) keep(ctx context.Context, b *branch) *branch {
	for {
		move := true
		select {
		case <-ctx.Done():
			move = false
		case <-b.ended:
			move = false
		case <-b.asked:
			l.options.Log.Info("moving: the hub asks for it", "server", b.server)
		case <-time.After(lifetime*3/4 + l.backoff.jitter(lifetime/2)):
			l.options.Log.V(1).Info("moving: the tunnel is old", "server", b.server)
		}
		if !move {
			return b
		}
		next := l.replace(ctx, b)
		if next == nil {
			return b
		}
		if b.open() >= healthy {
			l.backoff.limit = firstLimit(l.backoff.first)
		}
		l.options.Log.Info("moved", "from", b.server, "to", next.server)
		b.leave()
		b = next
	}
}

// replace opens another tunnel while b is kept. It returns nil if b, or ctx, ends before there is one. Nothing that
// fails here is a failure of the link.
func (l *Link) replace(ctx context.Context, b *branch) *branch {
	waits := l.backoff
	wait := waits.next(b.open(), nil) // a hub that asks again and again is not dialled again and again
	var last error
	for l.pause(ctx, b, wait) {
		next, err := l.attempt(ctx, last)
		last = err
		var opened time.Duration
		if err == nil {
			if l.settled(ctx, next) {
				return next
			}
			next.leave()
			opened, err = next.open(), errSurpassed
		}
		wait = waits.next(opened, err)
		if ctx.Err() == nil {
			l.options.Log.Info("not moved yet", "error", err.Error(), "reason", tunnel.Reason(err), "retryIn",
				wait.Round(time.Millisecond).String())
		}
	}
	return nil
}

// pause waits. It returns false if there is nothing left to replace.
func (l *Link) pause(ctx context.Context, b *branch, wait time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-b.ended:
		return false
	case <-time.After(wait):
		return true
	}
}

// settled waits until the hub uses a new tunnel and the hub's other replicas know of it. It returns false if the
// tunnel, or ctx, ends before.
func (l *Link) settled(ctx context.Context, next *branch) bool {
	timer := time.NewTimer(takeover)
	defer timer.Stop()
	used := next.used
	for {
		select {
		case <-ctx.Done():
			return false
		case <-next.ended:
			return false
		case <-used:
			used = nil
			timer.Reset(settle)
		case <-timer.C:
			return true
		}
	}
}
