// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package repair limits how often the agent repairs an object that another client keeps changing.
package repair

import "time"

// These limits apply to the repairs of each object. Once the budget is used up, the delay grows with each repair, so
// that a fight with another controller causes little load.
const (
	budgetSpan    = time.Minute
	budgetRepairs = 10
	fightRepairs  = 3 // number of repairs within budgetSpan that count as a fight
	firstPenalty  = 10 * time.Second
	maxPenalty    = 5 * time.Minute
)

// Budget limits the rate at which an object is repaired. The zero value is ready to use.
type Budget struct {
	repairs []time.Time // times of the most recent repairs, at most budgetRepairs
	penalty time.Duration
	// Cause is the reason for the last repair. The repaired object no longer shows it.
	Cause string
}

// Wait returns the delay before the next repair.
func (b *Budget) Wait(now time.Time) time.Duration {
	if b.Cooldown(now) <= 0 {
		return 0
	}
	last := b.repairs[len(b.repairs)-1]
	if b.penalty > 0 {
		return max(0, last.Add(b.penalty).Sub(now))
	}
	if len(b.repairs) < budgetRepairs || now.Sub(b.repairs[0]) >= budgetSpan {
		return 0
	}
	return max(0, last.Add(firstPenalty).Sub(now))
}

// Spend records a repair.
func (b *Budget) Spend(now time.Time) {
	if b.Cooldown(now) <= 0 {
		*b = Budget{}
	}
	switch full := len(b.repairs) == budgetRepairs && now.Sub(b.repairs[0]) < budgetSpan; {
	case b.penalty > 0:
		b.penalty = min(2*b.penalty, maxPenalty)
	case full:
		b.penalty = 2 * firstPenalty
	}
	b.repairs = append(b.repairs, now)
	if len(b.repairs) > budgetRepairs {
		b.repairs = append(b.repairs[:0], b.repairs[len(b.repairs)-budgetRepairs:]...)
	}
}

// Fighting reports whether another client keeps reverting the agent's repairs.
func (b *Budget) Fighting(now time.Time) bool {
	if b.Cooldown(now) <= 0 {
		return false
	}
	if b.penalty > 0 {
		return true
	}
	n := len(b.repairs)
	return n >= fightRepairs && b.repairs[n-1].Sub(b.repairs[n-fightRepairs]) < budgetSpan
}

// Cooldown returns the time until the budget can be reset if the object needs no further repair. The result is 0 or
// negative once the budget can be reset.
func (b *Budget) Cooldown(now time.Time) time.Duration {
	if b == nil || len(b.repairs) == 0 {
		return 0
	}
	return b.repairs[len(b.repairs)-1].Add(max(budgetSpan, 2*b.penalty)).Sub(now)
}
