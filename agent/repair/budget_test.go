// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"testing"
	"time"
)

func TestBudget(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	// fight repairs as often as the budget allows for a while, against another client that is always faster.
	fight := func(during time.Duration) (b Budget, repairs int, end time.Time) {
		now := start
		for now.Sub(start) < during {
			if wait := b.Wait(now); wait > 0 {
				now = now.Add(wait)
				continue
			}
			b.Spend(now)
			repairs++
			now = now.Add(100 * time.Millisecond)
		}
		return b, repairs, now
	}
	t.Run("a few repairs do not wait and are not a fight", func(t *testing.T) {
		var b Budget
		for range fightRepairs - 1 {
			b.Spend(start)
		}
		if b.Wait(start) != 0 || b.Fighting(start) {
			t.Errorf("got the budget %v, want a repair at once, and no fight", b)
		}
	})
	t.Run("three repairs in a minute are a fight, until repairs stop", func(t *testing.T) {
		var b Budget
		for i := range fightRepairs {
			b.Spend(start.Add(time.Duration(i) * time.Second))
		}
		if !b.Fighting(start.Add(3*time.Second)) || b.Fighting(start.Add(2*time.Minute)) {
			t.Errorf("got the budget %v, want a fight that ends within two minutes", b)
		}
	})
	t.Run("a fight of an hour costs few repairs, which end up five minutes apart", func(t *testing.T) {
		b, repairs, end := fight(time.Hour)
		if repairs < 15 || repairs > 30 || b.penalty != maxPenalty || !b.Fighting(end) {
			t.Errorf("%d repairs, penalty %s", repairs, b.penalty)
		}
	})
	t.Run("the budget resets after a time without repairs", func(t *testing.T) {
		b, _, end := fight(time.Hour)
		later := end.Add(b.Cooldown(end))
		if b.Fighting(later) || b.Wait(later) != 0 {
			t.Errorf("got the budget %v, want a full one", b)
		}
		if b.Spend(later); len(b.repairs) != 1 || b.penalty != 0 {
			t.Errorf("got the budget %v, want one repair and no penalty", b)
		}
	})
}
