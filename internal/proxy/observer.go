// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import "time"

// Side is the part of a request or session that a stalling user blocks.
type Side string

// Sides.
const (
	SideRequest Side = "request" // the announced body does not arrive
	SideAnswer  Side = "answer"  // the user does not read the response
	SideSession Side = "session" // the user does not read the data of an upgraded connection
)

// Observer contains functions that a Handler calls to update metrics. Each of them may be nil. They may be called
// concurrently and must not block.
type Observer struct {
	// Cut is called each time a stalling user is cut off.
	Cut func(Side)
}

// cutter returns a function that ends the blocked reads or writes with a past deadline, and notifies the observer.
func (o Observer) cutter(side Side, setDeadline func(time.Time) error) func() {
	return func() {
		if o.Cut != nil {
			o.Cut(side)
		}
		_ = setDeadline(pastDeadline())
	}
}
