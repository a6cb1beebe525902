// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"slices"
	"testing"
)

func TestHeap(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for name, tt := range map[string]struct {
		allocated []uint64 // since the start, at each look
		want      []bool
	}{
		"memory is returned once the work of the start is done": {[]uint64{5 * mib, 5*mib + 1}, []bool{false, true}},
		"not while there is work":                               {[]uint64{5 * mib, 10 * mib, 15 * mib}, []bool{false, false, false}},
		"once after each burst": {
			[]uint64{5 * mib, 5 * mib, 5 * mib, 9 * mib, 9 * mib, 9 * mib}, []bool{false, true, false, false, true, false},
		},
		"an idle agent returns little, and seldom": {
			[]uint64{mib / 4, mib / 2, mib * 3 / 4, mib, mib * 5 / 4, mib * 3 / 2, mib * 7 / 4, 2 * mib}, []bool{false, false, false, true, false, false, false, true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var h heap
			var got []bool
			for _, n := range tt.allocated {
				got = append(got, h.calm(n))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("memory was returned %v, want %v", got, tt.want)
			}
		})
	}
	t.Run("what is allocated is counted", func(t *testing.T) {
		t.Parallel()
		before := allocated()
		kept := make([]byte, 8*mib)
		if grown := allocated() - before; grown < uint64(len(kept)) {
			t.Errorf("counted %d bytes of %d", grown, len(kept))
		}
	})
}
