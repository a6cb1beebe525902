// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"errors"
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
)

// Limits on the requests that this replica sends to the API server on behalf of clients that have not proved that they
// are agents.
const (
	// These constants limit the rate at which all clients combined can look up agents that are not in the cache. The
	// first lookup after a join does not count, because agents that join at the same time connect before the cache
	// contains them. When the limit is reached, agents are asked to retry a little later, when the cache has caught up.
	lookupsPerSecond = 20
	lookupBurst      = 100
	// These constants limit the join requests for one Cluster. All clients that have the Cluster's token share the limit,
	// even after the token has been used.
	joinsPerSecond = 1
	joinBurst      = 10
	// These constants limit the status updates of Clusters that a client has named without proof. Any client that can
	// reach the port can cause such an update.
	showsPerSecond = 1
	showBurst      = 20
	// maxIdleLimits is the number of limiters above which unused limiters are dropped. Each Cluster with a recent
	// join has a limiter.
	maxIdleLimits = 1000
	// joinedFor is the time after a join during which the first lookup does not count.
	joinedFor = time.Minute
)

// errBusy is returned when a request exceeds one of the limits.
var errBusy = errors.New("the hub receives too many requests at the moment; try again")

// limits enforces these limits. The zero value is ready to use.
type limits struct {
	mu      sync.Mutex // guards the fields below
	lookups *rate.Limiter
	shows   *rate.Limiter
	joins   map[types.NamespacedName]*rate.Limiter
	joined  map[types.NamespacedName]time.Time // when the agent joined; removed by the first lookup
}

// hasJoined records that a Cluster's agent has joined. The record is needed because the agent is not in the cache
// yet.
func (l *limits) hasJoined(name types.NamespacedName, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.joined == nil {
		l.joined = map[types.NamespacedName]time.Time{}
	}
	if len(l.joined) >= maxIdleLimits {
		maps.DeleteFunc(l.joined, func(_ types.NamespacedName, at time.Time) bool { return now.Sub(at) > joinedFor })
	}
	l.joined[name] = now
}

// lookup reports whether the API server may now be queried for a Cluster's agent.
func (l *limits) lookup(name types.NamespacedName, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, ok := l.joined[name]; ok {
		delete(l.joined, name)
		if now.Sub(at) <= joinedFor {
			return true
		}
	}
	if l.lookups == nil {
		l.lookups = rate.NewLimiter(lookupsPerSecond, lookupBurst)
	}
	return l.lookups.AllowN(now, 1)
}

// show reports whether the status of one more Cluster may be updated now, after a client named the Cluster without
// proof.
func (l *limits) show(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shows == nil {
		l.shows = rate.NewLimiter(showsPerSecond, showBurst)
	}
	return l.shows.AllowN(now, 1)
}

// join reports whether a client that has a Cluster's token may try to join now. It must be called only for Clusters
// that exist.
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

// forgetIdle drops unused limiters. A limiter is unused if it is full, as a new limiter is.
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
