// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/lru"

	"github.com/drover-dev/drover/internal/signin/attempts"
)

// Limits on the codes that devices may request from one replica. They are the rate per second and the burst, for all
// addresses together and for one address. An attacker with many codes could wait for a user to type one of them by
// chance.
const (
	codesPerSecond, codesAtOnce              = 20, 100
	codesPerSecondOfSource, codesOfOneAtOnce = 0.5, 10
)

// maxPolls is the maximum number of devices whose last poll is remembered.
const maxPolls = 8192

// deviceLimits limits the load that devices cause on one replica.
type deviceLimits struct {
	all     *rate.Limiter
	sources attempts.Rates
	polls   *lru.Cache // time.Time by session
}

func newDeviceLimits() deviceLimits {
	return deviceLimits{
		all:     rate.NewLimiter(codesPerSecond, codesAtOnce),
		sources: attempts.NewRates(codesPerSecondOfSource, codesOfOneAtOnce),
		polls:   lru.New(maxPolls),
	}
}

// wait counts a request for a code by a device at an address. It returns how long the device has to wait, or 0 if it
// gets a code.
func (d deviceLimits) wait(source string, now time.Time) time.Duration {
	if !d.sources.Of(source).AllowN(now, 1) {
		return 2 * time.Second // until codesPerSecondOfSource allows one code
	}
	if !d.all.AllowN(now, 1) {
		return time.Second
	}
	return 0
}

// tooSoon reports whether a device is polling before the end of its interval, and remembers the poll. It allows for one
// second of network delay.
func (d deviceLimits) tooSoon(session string, now time.Time) bool {
	last, known := d.polls.Get(session)
	d.polls.Add(session, now)
	if !known {
		return false
	}
	since := now.Sub(last.(time.Time)) // only values of this type are added
	return since >= 0 && since < pollEvery-time.Second
}
