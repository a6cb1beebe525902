// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"slices"
	"testing"
)

func TestMemoryIsReturnedWhenTheProcessIsCalm(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for name, tt := range map[string]struct {
		live      uint64
		allocated []uint64 // since the start, at each check
		want      []bool
	}{
		"memory is returned after the work at the start": {0, []uint64{5 * mib, 5*mib + 1}, []bool{false, true}},
		"memory is not returned during work": {0, []uint64{5 * mib, 10 * mib, 15 * mib},
			[]bool{false, false, false}},
		"memory is returned once after each burst": {
			0, []uint64{5 * mib, 5 * mib, 5 * mib, 9 * mib, 9 * mib, 9 * mib}, []bool{false, true, false, false, true, false},
		},
		"an idle process rarely returns memory": {
			0, []uint64{mib / 4, mib / 2, mib * 3 / 4, mib, mib * 5 / 4, mib * 3 / 2, mib * 7 / 4, 2 * mib},
			[]bool{false, false, false, true, false, false, false, true},
		},
		"the limits are higher for a process that holds much memory": {
			160 * mib, []uint64{10 * mib, 20 * mib, 29 * mib, 38 * mib, 47 * mib, 58 * mib},
			[]bool{true, true, false, true, false, false},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var h heap
			var got []bool
			for _, n := range tt.allocated {
				got = append(got, h.calm(n, tt.live))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
	t.Run("allocations are counted", func(t *testing.T) {
		t.Parallel()
		before, _ := read()
		kept := make([]byte, 8*mib)
		after, _ := read()
		if grown := after - before; grown < uint64(len(kept)) {
			t.Errorf("got %d bytes, want at least %d", grown, len(kept))
		}
	})
}
