// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import "time"

// Side is what a user who stalls holds up.
type Side string

// Sides.
const (
	SideRequest Side = "request" // the announced body does not come
	SideAnswer  Side = "answer"  // the user does not take the response
	SideSession Side = "session" // the user does not take what an upgraded connection brings
)

// Observer has functions that a Handler calls, for metrics. Each may be nil, is called by several goroutines at once
// and must not block.
type Observer struct {
	// Cut is called each time a user who stalls is cut off.
	Cut func(Side)
}

// cutter ends what a user holds up, by a deadline that has passed, and tells the observer.
func (o Observer) cutter(side Side, setDeadline func(time.Time) error) func() {
	return func() {
		if o.Cut != nil {
			o.Cut(side)
		}
		_ = setDeadline(pastDeadline())
	}
}
