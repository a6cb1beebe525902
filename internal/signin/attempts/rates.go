// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package attempts

import (
	"golang.org/x/time/rate"
	"k8s.io/utils/lru"
)

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
