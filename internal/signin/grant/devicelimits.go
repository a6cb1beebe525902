// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/lru"

	"github.com/drover-dev/drover/internal/signin/attempts"
)

// Limits on the device codes that one replica issues. Each limit consists of a rate per second and a burst. The first
// pair applies to all addresses together, and the second pair to each address. Without limits, an attacker could
// request many codes and wait for a user to enter one of them by mistake.
const (
	codesPerSecond, codesAtOnce              = 20, 100
	codesPerSecondOfSource, codesOfOneAtOnce = 0.5, 10
)

// maxPolls is the maximum number of devices whose last poll is remembered.
const maxPolls = 8192

// deviceLimits limits the load from devices on one replica.
type deviceLimits struct {
	all     *rate.Limiter
	sources attempts.Rates
	polls   *lru.Cache // the time of the last poll (time.Time), by session ID
}

func newDeviceLimits() deviceLimits {
	return deviceLimits{
		all:     rate.NewLimiter(codesPerSecond, codesAtOnce),
		sources: attempts.NewRates(codesPerSecondOfSource, codesOfOneAtOnce),
		polls:   lru.New(maxPolls),
	}
}

// wait counts a device's request for a code. It returns how long the device must wait, or 0 if the request is allowed.
func (d deviceLimits) wait(source string, now time.Time) time.Duration {
	if !d.sources.Of(source).AllowN(now, 1) {
		return 2 * time.Second // until codesPerSecondOfSource allows one code
	}
	if !d.all.AllowN(now, 1) {
		return time.Second
	}
	return 0
}

// tooSoon records a poll, and reports whether the device polled before the end of its interval. It allows one second
// for network delay.
func (d deviceLimits) tooSoon(session string, now time.Time) bool {
	last, known := d.polls.Get(session)
	d.polls.Add(session, now)
	if !known {
		return false
	}
	since := now.Sub(last.(time.Time)) // only values of this type are added
	return since >= 0 && since < pollEvery-time.Second
}
