// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package attempts slows down the guessing of passwords.
package attempts

import (
	"sync"
	"time"

	"k8s.io/utils/lru"
)

// bound says how many failures are free, and how long the wait after the others may become.
type bound struct {
	free int
	max  time.Duration
}

// Of one user at one address or device, of one user at all addresses, and of one address.
var bounds = [3]bound{{5, 15 * time.Minute}, {50, time.Minute}, {50, time.Minute}}

const (
	// first is the wait after the first failure that is not free. It doubles with each that follows.
	first = time.Second
	// forget is how long after the last failure it begins anew.
	forget = time.Hour
	// remembered is how many users and addresses are remembered, those that failed last.
	remembered = 16 << 10
)

// failures are those of one key.
type failures struct {
	count int
	last  time.Time
}

// Log remembers attempts that failed. New makes it. It may be used concurrently.
type Log struct {
	mu    sync.Mutex // guards what the cache holds
	known *lru.Cache
}

// New makes an empty Log.
func New() *Log { return &Log{known: lru.New(remembered)} }

// Attempt is one to sign in.
type Attempt struct {
	User, Source string
	// Device is one on which the user has signed in before. What others do does not slow it down.
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

// Begin counts an attempt as failed before it is made, so that many at once do not pass together. Succeeded and
// Withdrawn take that back. If the attempt must not be made yet, it returns how long to wait.
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

// Succeeded forgets the failures of a user at an address or device, and takes back the attempt from the other counts.
func (l *Log) Succeeded(a Attempt, now time.Time) { l.takeBack(a, now, true) }

// Withdrawn takes back an attempt whose password was not checked.
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
		if f := f.(failures); now.Sub(f.last) < forget { // only failures are ever added
			return f
		}
	}
	return failures{}
}

// delay is the wait after so many failures that were not free.
func delay(over int, most time.Duration) time.Duration {
	wait := first
	for range over {
		if wait *= 2; wait >= most {
			return most
		}
	}
	return wait
}
