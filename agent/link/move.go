// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"errors"
	"time"

	"github.com/drover-dev/drover/internal/tunnel"
)

// These constants control moves to another tunnel.
const (
	// lifetime is how long a link uses one tunnel, plus or minus a quarter, before it moves to another one. These moves
	// rebalance agents among the hub's replicas after a replica was unavailable. They also replace tunnels before an
	// intermediary might close them because of their age.
	lifetime = 4 * time.Hour
	// keepOwn is how long the hub may use the old tunnel after a move that the hub did not request. It needs this time
	// mainly for open shells.
	keepOwn = time.Hour
	// takeover is how long the hub may take to start using a new tunnel. After that time, the tunnel counts as used,
	// even if the hub has not requested a report through it.
	takeover = 10 * time.Second
	// settle is how long both tunnels are kept after the hub has started to use the new one. In this time, the other
	// replicas of the hub are informed about the new tunnel.
	settle = time.Second
)

// errSurpassed is returned if a new tunnel ended before the agent had left the old tunnel.
var errSurpassed = errors.New("the new tunnel ended at once")

// keep keeps a tunnel and its replacements open. It returns the last tunnel when that tunnel ends or ctx is done.
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

// replace opens another tunnel while b stays open. It returns nil if b ends or ctx is done first. A failure to open the
// other tunnel is not a failure of the link.
func (l *Link) replace(ctx context.Context, b *branch) *branch {
	waits := l.backoff
	wait := waits.next(b.open(), nil) // a hub that keeps requesting moves must not be dialed constantly
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
			l.options.Log.Info("cannot move yet", "error", err.Error(), "reason", tunnel.Reason(err), "retryIn",
				wait.Round(time.Millisecond).String())
		}
	}
	return nil
}

// pause waits for the given time. It returns false if the tunnel no longer has to be replaced.
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

// settled waits until the hub uses the new tunnel and its other replicas know about the tunnel. It returns false if the
// tunnel ends or ctx is done first.
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
