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

// Bounds on how often this replica asks the API server because of clients that have not proved to be an agent.
const (
	// Lookups of agents that the cache does not know, by all clients together. The first after a join does not count:
	// agents that join at the same time connect before the cache knows them. Beyond the limit, agents are told to retry in
	// a moment; by then the cache has caught up.
	lookupsPerSecond = 20
	lookupBurst      = 100
	// Joins of one Cluster, by all clients that have its token, also after it was used.
	joinsPerSecond = 1
	joinBurst      = 10
	// Clusters on which a client without proof is shown. Any client that can reach the port causes that write to the API
	// server.
	showsPerSecond = 1
	showBurst      = 20
	// maxIdleLimits is the number of Clusters from which on those without a recent join are forgotten.
	maxIdleLimits = 1000
	// joinedFor is how long the first lookup after a join does not count.
	joinedFor = time.Minute
)

// errBusy means that a request exceeds one of the limits.
var errBusy = errors.New("the hub is asked too often at the moment; try again")

// limits are the rate limiters behind these bounds. The zero value is ready.
type limits struct {
	mu      sync.Mutex // guards what follows
	lookups *rate.Limiter
	shows   *rate.Limiter
	joins   map[types.NamespacedName]*rate.Limiter
	joined  map[types.NamespacedName]time.Time // since then no lookup
}

// hasJoined records that the agent of a Cluster has joined. The cache does not know it yet.
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

// show reports whether one more Cluster may show that a client without proof named it.
func (l *limits) show(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shows == nil {
		l.shows = rate.NewLimiter(showsPerSecond, showBurst)
	}
	return l.shows.AllowN(now, 1)
}

// join reports whether a client with the token of a Cluster may try to join now. Only names of Clusters that exist
// belong here.
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

// forgetIdle drops the limiters that are as full as a new one.
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
