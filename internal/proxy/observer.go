// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import "time"

// Side is the part of a request or session that is blocked by a stalling user.
type Side string

// Possible sides.
const (
	SideRequest Side = "request" // the announced body does not arrive in time
	SideAnswer  Side = "answer"  // the user does not read the response
	SideSession Side = "session" // the user does not read the data of an upgraded connection
)

// Observer contains functions that a Handler calls to update metrics. A nil function is not called. The functions may
// be called concurrently and must not block.
type Observer struct {
	// Cut is called each time a stalling user is disconnected.
	Cut func(Side)
}

// cutter returns a function that ends blocked reads or writes by setting a deadline in the past. The function also
// notifies the observer.
func (o Observer) cutter(side Side, setDeadline func(time.Time) error) func() {
	return func() {
		if o.Cut != nil {
			o.Cut(side)
		}
		_ = setDeadline(pastDeadline())
	}
}
