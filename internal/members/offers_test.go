// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestCompleteReportsOfAMemberAreBoundedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const whole = maxSets + maxPlans
		o := newOffers()
		if !o.take(whole) {
			t.Error("one stream was refused a complete report, want it accepted")
		}
		if !o.take(whole) {
			t.Error("a second stream was refused a complete report, want it accepted, because an agent that moves sends two")
		}
		time.Sleep(time.Hour)
		if o.take(1) {
			t.Error("a third stream was accepted, want no more held than two complete reports")
		}
		o.give(2 * whole)
		if !o.take(2 * whole) {
			t.Error("released bytes are still held, want them free")
		}
		o.give(2 * whole)
		if o.take(whole) {
			t.Error("repeated complete reports were accepted, want at most one in 10 s")
		}
		time.Sleep(10 * time.Second)
		if !o.take(whole) {
			t.Error("a complete report was refused after 10 s, want it accepted")
		}
	})
}
