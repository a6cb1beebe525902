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

// Limits for the requests that this replica sends to the API server on behalf of clients that have not proved to be an
// agent.
const (
	// Lookups of agents that the cache does not know, for all clients together. The first lookup after a join does not
	// count, because agents that join at the same time connect before the cache knows them. Above the limit, agents are
	// told to retry in a moment. By then the cache has caught up.
	lookupsPerSecond = 20
	lookupBurst      = 100
	// Joins of one Cluster, for all clients that have its token, even after it was used.
	joinsPerSecond = 1
	joinBurst      = 10
	// Clusters that show that a client named them without proof. Any client that can reach the port causes this write to
	// the API server.
	showsPerSecond = 1
	showBurst      = 20
	// maxIdleLimits is the number of Clusters above which Clusters without a recent join are forgotten.
	maxIdleLimits = 1000
	// joinedFor is how long after a join the first lookup does not count.
	joinedFor = time.Minute
)

// errBusy means that a request exceeds one of the limits.
var errBusy = errors.New("the hub receives too many requests at the moment; try again")

// limits contains the rate limiters for these limits. The zero value is ready to use.
type limits struct {
	mu      sync.Mutex // guards the fields below
	lookups *rate.Limiter
	shows   *rate.Limiter
	joins   map[types.NamespacedName]*rate.Limiter
	joined  map[types.NamespacedName]time.Time // when the agent joined; there has been no lookup since
}

// hasJoined records that the agent of a Cluster has joined, because the cache does not know it yet.
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

// lookup reports whether the API server may be asked now about the agent of a Cluster.
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

// show reports whether one more Cluster may show that a client named it without proof.
func (l *limits) show(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shows == nil {
		l.shows = rate.NewLimiter(showsPerSecond, showBurst)
	}
	return l.shows.AllowN(now, 1)
}

// join reports whether a client with the token of a Cluster may try to join now. It must be called only for Clusters
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

// forgetIdle drops the limiters that are as full as a new limiter.
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
