// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package attempts slows down password guessing.
package attempts

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/lru"
)

// bound defines the number of failures that cause no delay, and the maximum delay after more failures.
type bound struct {
	free int
	max  time.Duration
}

// Bounds for one user at one address or device, for one user across all addresses, and for one address.
var bounds = [3]bound{{5, 15 * time.Minute}, {50, time.Minute}, {50, time.Minute}}

const (
	// first is the delay after the first failure beyond the bound. Each additional failure doubles the delay.
	first = time.Second
	// forget is the time since the last failure after which the count restarts.
	forget = time.Hour
	// remembered is the maximum number of counts that are kept. The counts with the oldest failures are dropped first.
	remembered = 16 << 10
)

// failures holds the number of failures and the time of the last failure.
type failures struct {
	count int
	last  time.Time
}

// Log counts failed attempts. Use New to create a Log. It is safe for concurrent use.
type Log struct {
	mu    sync.Mutex // guards the values in the cache
	known *lru.Cache
}

// New returns an empty Log.
func New() *Log { return &Log{known: lru.New(remembered)} }

// Attempt is an attempt to sign in.
type Attempt struct {
	User, Source string
	// Device is a browser that the user has signed in with before. Failures in other browsers do not delay this
	// attempt.
	Device string
}

type key struct {
	bound        int
	user, source string
}

func (a Attempt) keys() []key {
	if a.Device != "" {
		return []key{{0, a.User, "device " + a.Device}}
	}
	return []key{{0, a.User, a.Source}, {1, a.User, ""}, {2, "", a.Source}}
}

// Begin counts an attempt as failed before it is made, so that concurrent attempts cannot bypass the limit. Succeeded
// and Withdrawn undo this. If the attempt must not be made yet, Begin returns how long to wait.
func (l *Log) Begin(a Attempt, now time.Time) (wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := a.keys()
	for _, k := range all {
		f := l.get(k, now)
		if over := f.count - bounds[k.bound].free; over >= 0 && f.count > 0 {
			wait = max(wait, f.last.Add(delay(over, bounds[k.bound].max)).Sub(now))
		}
	}
	if wait > 0 {
		return wait
	}
	for _, k := range all {
		l.known.Add(k, failures{count: l.get(k, now).count + 1, last: now})
	}
	return 0
}

// Succeeded resets the count of the user's failures at this address or device, and removes the attempt from the other
// counts.
func (l *Log) Succeeded(a Attempt, now time.Time) { l.takeBack(a, now, true) }

// Withdrawn removes an attempt whose password was not checked.
func (l *Log) Withdrawn(a Attempt, now time.Time) { l.takeBack(a, now, false) }

func (l *Log) takeBack(a Attempt, now time.Time, succeeded bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range a.keys() {
		f := l.get(k, now)
		if f.count--; f.count <= 0 || succeeded && k.bound == 0 {
			l.known.Remove(k)
			continue
		}
		l.known.Add(k, f)
	}
}

func (l *Log) get(k key, now time.Time) failures {
	if f, ok := l.known.Get(k); ok {
		if f := f.(failures); now.Sub(f.last) < forget { // only values of type failures are added
			return f
		}
	}
	return failures{}
}

// delay returns the delay after the given number of failures beyond the bound.
func delay(over int, most time.Duration) time.Duration {
	wait := first
	for range over {
		if wait *= 2; wait >= most {
			return most
		}
	}
	return wait
}

// maxSources is the maximum number of addresses with a rate limiter.
const maxSources = 4096

// Rates holds a rate limiter for each address. It keeps only the limiters that were used most recently.
type Rates struct {
	perSecond rate.Limit
	atOnce    int
	known     *lru.Cache // *rate.Limiter by address
}

// NewRates returns Rates with the given rate per second and burst.
func NewRates(perSecond rate.Limit, atOnce int) Rates {
	return Rates{perSecond, atOnce, lru.New(maxSources)}
}

// Of returns the rate limiter for an address.
func (r Rates) Of(source string) *rate.Limiter {
	if known, ok := r.known.Get(source); ok {
		return known.(*rate.Limiter) // only values of this type are added
	}
	fresh := rate.NewLimiter(r.perSecond, r.atOnce)
	r.known.Add(source, fresh)
	return fresh
}
