// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import "time"

// Side is what a user who stalls holds up.
type Side string

// Sides.
const (
	SideRequest Side = "request" // the body that he announced does not come
	SideAnswer  Side = "answer"  // he does not take the answer
	SideSession Side = "session" // he does not take what an upgraded connection brings
)

// Observer has functions that a Handler calls, for metrics. Each may be nil, is called by several goroutines at once and must not block.
type Observer struct {
	// Cut is told each time a user is cut off because he stalls.
	Cut func(Side)
}

// cutter ends what a user holds up, by a deadline that has passed, and tells the observer.
func (o Observer) cutter(side Side, setDeadline func(time.Time) error) func() {
	return func() {
		if o.Cut != nil {
			o.Cut(side)
		}
		_ = setDeadline(aLongTimeAgo())
	}
}
