// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
)

// Bounds on how often this replica asks the API server because of clients that have not proved to be an agent.
const (
	// Lookups of agents that the cache does not know. All share them, so whoever comes too late is sent away for a moment, by the
	// end of which the cache has caught up with an agent that has just joined.
	lookupsPerSecond = 20
	lookupBurst      = 100
	// Joins of one Cluster, by whoever has its token, also after it was used.
	joinsPerSecond = 1
	joinBurst      = 10
	// Clusters on which a client without proof is shown. Any client that can reach the port causes that write to the API server.
	showsPerSecond = 1
	showBurst      = 20
	// maxIdleLimits is the number of Clusters from which on those without a recent join are forgotten.
	maxIdleLimits = 1000
)

// errBusy says that the hub is asked too often and was not asked this time.
var errBusy = errors.New("the hub is asked too often at the moment; try again")

// limits are the bounds and what was used of them. The zero value is ready.
type limits struct {
	mu      sync.Mutex // guards what follows
	lookups *rate.Limiter
	shows   *rate.Limiter
	joins   map[types.NamespacedName]*rate.Limiter
}

// lookup reports whether the API server may be asked about an agent now.
func (l *limits) lookup(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lookups == nil {
		l.lookups = rate.NewLimiter(lookupsPerSecond, lookupBurst)
	}
	return l.lookups.AllowN(now, 1)
}

// show reports whether one more Cluster may show that a client without proof named it.
func (l *limits) show(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shows == nil {
		l.shows = rate.NewLimiter(showsPerSecond, showBurst)
	}
	return l.shows.AllowN(now, 1)
}

// join reports whether a client with the token of a Cluster may try to join now. Only names of Clusters that exist belong here.
func (l *limits) join(name types.NamespacedName, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.joins == nil {
		l.joins = map[types.NamespacedName]*rate.Limiter{}
	}
	limiter := l.joins[name]
	if limiter == nil {
		l.forgetIdle(now)
		limiter = rate.NewLimiter(joinsPerSecond, joinBurst)
		l.joins[name] = limiter
	}
	return limiter.AllowN(now, 1)
}

// forgetIdle drops what says no more than a new limiter would.
func (l *limits) forgetIdle(now time.Time) {
	if len(l.joins) < maxIdleLimits {
		return
	}
	for name, limiter := range l.joins {
		if limiter.TokensAt(now) >= joinBurst {
			delete(l.joins, name)
		}
	}
}
