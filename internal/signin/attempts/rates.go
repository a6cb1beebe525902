// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package attempts

import (
	"golang.org/x/time/rate"
	"k8s.io/utils/lru"
)

// maxSources bounds the addresses whose rate limiters are remembered.
const maxSources = 4096

// Rates are rate limiters, one for each address. The addresses that were used last are remembered.
type Rates struct {
	perSecond rate.Limit
	atOnce    int
	known     *lru.Cache // of *rate.Limiter, by address
}

// NewRates returns Rates that allow so many events per second, and so many at once.
func NewRates(perSecond rate.Limit, atOnce int) Rates {
	return Rates{perSecond, atOnce, lru.New(maxSources)}
}

// Of returns the rate limiter of an address.
func (r Rates) Of(source string) *rate.Limiter {
	if known, ok := r.known.Get(source); ok {
		return known.(*rate.Limiter) // only these are ever added
	}
	fresh := rate.NewLimiter(r.perSecond, r.atOnce)
	r.known.Add(source, fresh)
	return fresh
}
