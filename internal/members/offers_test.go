// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestOffersOfAMemberAreBoundedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const whole = maxSets + maxPlans
		o := newOffers()
		if !o.take(whole) {
			t.Error("one stream cannot report everything at once")
		}
		if !o.take(whole) {
			t.Error("two streams cannot report everything at once: an agent that moves could not")
		}
		time.Sleep(time.Hour)
		if o.take(1) {
			t.Error("a third stream may be held beside the two, want that no more is held than two report")
		}
		o.give(2 * whole)
		if !o.take(2 * whole) {
			t.Error("what was given back is not free")
		}
		o.give(2 * whole)
		if o.take(whole) {
			t.Error("a member that reports everything again and again at once is read, want one whole report in 10 s")
		}
		time.Sleep(10 * time.Second)
		if !o.take(whole) {
			t.Error("after 10 s a whole report is not read")
		}
	})
}
