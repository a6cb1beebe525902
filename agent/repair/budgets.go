// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"sync"
	"time"
)

// Budgets contains the budgets of objects, which R identifies. The zero value is ready to use, and all methods are safe
// for concurrent use.
type Budgets[R comparable] struct {
	mu  sync.Mutex
	all map[R]*Budget
}

// Spend records a repair of an object and returns 0. If the budget is used up, Spend returns the delay before the next
// repair. In both cases, it records the cause.
func (b *Budgets[R]) Spend(object R, now time.Time, cause string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	one := b.all[object]
	if one == nil {
		one = &Budget{}
		if b.all == nil {
			b.all = map[R]*Budget{}
		}
		b.all[object] = one
	}
	wait := one.Wait(now)
	if wait <= 0 {
		one.Spend(now)
	}
	one.Cause = cause
	return max(0, wait)
}

// Fight returns the time until the budget of an object is reset, or 0 if nothing remains to be reset. If another client
// keeps reverting the repairs, it also returns the cause of the last repair.
func (b *Budgets[R]) Fight(object R, now time.Time) (calm time.Duration, cause string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	one := b.all[object]
	if calm = one.Cooldown(now); calm <= 0 {
		delete(b.all, object)
		return 0, ""
	}
	if one.Fighting(now) {
		cause = one.Cause
	}
	return calm, cause
}

// Forget discards the budget of an object.
func (b *Budgets[R]) Forget(object R) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.all, object)
}
