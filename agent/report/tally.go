// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"sync"

	"github.com/drover-dev/drover/agent/watch"
)

// tally stores a few numbers for each object and the sums of these numbers, but not the objects themselves.
type tally[O watch.Object, N any] struct {
	*watch.Store[O, N]
	count func(n N, sign int64) // adds to the sum; called under mu

	mu sync.Mutex // guards the data that count writes
}

// begin creates the store. The function read returns the numbers of an object, and seen is called after each event and
// each list.
func (t *tally[O, N]) begin(read func(O) N, seen func()) {
	t.Store = watch.NewStore(watch.Options[O, N]{
		Read: func(o O) (N, bool) { return read(o), true }, Changed: t.changed, Seen: seen,
	})
}

func (t *tally[O, N]) changed(_ watch.Name, before, now *N) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if before != nil {
		t.count(*before, -1)
	}
	if now != nil {
		t.count(*now, 1)
	}
}
