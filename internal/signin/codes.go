// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/lru"

	"github.com/drover-dev/drover/internal/signin/attempts"
)

// How many codes devices may ask for at one replica: so many in a second, of all addresses and of one, and so many at once. Whoever holds many codes could hope that
// a user types one of them by chance.
const (
	codesPerSecond, codesAtOnce              = 20, 100
	codesPerSecondOfSource, codesOfOneAtOnce = 0.5, 10
	maxSources                               = 4096
)

// codes bounds what devices and typed codes may cost on one replica.
type codes struct {
	all     *rate.Limiter
	sources *lru.Cache // of *rate.Limiter, by address
	polls   *lru.Cache // of time.Time, by session
	wrong   *attempts.Log
}

func newCodes() codes {
	return codes{all: rate.NewLimiter(codesPerSecond, codesAtOnce), sources: lru.New(maxSources), polls: lru.New(maxPolls), wrong: attempts.New()}
}

// wait counts a code that a device at an address asks for. It returns how long the device has to wait, 0 if it gets one.
func (c codes) wait(source string, now time.Time) time.Duration {
	known, ok := c.sources.Get(source)
	if !ok {
		known = rate.NewLimiter(codesPerSecondOfSource, codesOfOneAtOnce)
		c.sources.Add(source, known)
	}
	if !known.(*rate.Limiter).AllowN(now, 1) { // only these are ever added
		return 2 * time.Second // one by codesPerSecondOfSource
	}
	if !c.all.AllowN(now, 1) {
		return time.Second
	}
	return 0
}

// tooSoon reports whether a device asks earlier than it was told to, and notes when it asked. A second is for networks that hold a question up.
func (c codes) tooSoon(session string, now time.Time) bool {
	last, known := c.polls.Get(session)
	c.polls.Add(session, now)
	if !known {
		return false
	}
	since := now.Sub(last.(time.Time)) // only times are ever added
	return since >= 0 && since < pollEvery-time.Second
}
