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

// rates are rate limiters of addresses, of those that were used last.
type rates struct {
	perSecond rate.Limit
	atOnce    int
	known     *lru.Cache // of *rate.Limiter, by address
}

func newRates(perSecond rate.Limit, atOnce int) rates {
	return rates{perSecond, atOnce, lru.New(maxSources)}
}

// of returns the rate limiter of an address.
func (r rates) of(source string) *rate.Limiter {
	if known, ok := r.known.Get(source); ok {
		return known.(*rate.Limiter) // only these are ever added
	}
	fresh := rate.NewLimiter(r.perSecond, r.atOnce)
	r.known.Add(source, fresh)
	return fresh
}

// codes bounds what devices and typed codes may cost on one replica.
type codes struct {
	all     *rate.Limiter
	sources rates
	polls   *lru.Cache // of time.Time, by session
	wrong   *attempts.Log
}

func newCodes() codes {
	return codes{all: rate.NewLimiter(codesPerSecond, codesAtOnce), sources: newRates(codesPerSecondOfSource, codesOfOneAtOnce), polls: lru.New(maxPolls), wrong: attempts.New()}
}

// wait counts a code that a device at an address asks for. It returns how long the device has to wait, 0 if it gets one.
func (c codes) wait(source string, now time.Time) time.Duration {
	if !c.sources.of(source).AllowN(now, 1) {
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
