// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"hash/fnv"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

// assign assigns each selected member to the first wave that selects it and has room.
func (f *Fleet) assign(selectors []labels.Selector) {
	room := f.room(selectors)
	for i := range f.clusters {
		f.of[i] = -1
		if !f.counts(&f.clusters[i]) {
			continue
		}
		at := 0
		for at < len(selectors) &&
			(room[at] != nil && !room[at][i] || !selectors[at].Matches(labels.Set(f.clusters[i].Labels))) {
			at++
		}
		f.of[i] = at
	}
}

// room returns, for each wave with a share, the set of members that the wave has room for. The entry for a wave without
// a share is nil.
func (f *Fleet) room(selectors []labels.Selector) []map[int]bool {
	room := make([]map[int]bool, len(selectors))
	if !slices.ContainsFunc(f.plan.Pace.Waves, func(w Wave) bool { return w.Share > 0 }) {
		return room
	}
	left := f.scattered()
	for at, w := range f.plan.Pace.Waves {
		selects := func(i int) bool { return selectors[at].Matches(labels.Set(f.clusters[i].Labels)) }
		total := 0
		for _, i := range left {
			if selects(i) {
				total++
			}
		}
		if w.Share > 0 {
			room[at], total = map[int]bool{}, (total*w.Share+99)/100
		}
		left = slices.DeleteFunc(left, func(i int) bool {
			if total == 0 || !selects(i) {
				return false
			}
			if total--; w.Share > 0 {
				room[at][i] = true
			}
			return true
		})
	}
	return room
}

// scattered returns the indexes of the selected members in a pseudorandom order that depends only on their names.
func (f *Fleet) scattered() []int {
	var all []int
	sums := make([]uint64, len(f.clusters))
	for i := range f.clusters {
		if f.counts(&f.clusters[i]) {
			sum := fnv.New64a()
			_, _ = sum.Write([]byte(f.clusters[i].Name)) // Write never fails
			all, sums[i] = append(all, i), sum.Sum64()
		}
	}
	slices.SortFunc(all, func(a, b int) int {
		return cmp.Or(cmp.Compare(sums[a], sums[b]), cmp.Compare(f.clusters[a].Name, f.clusters[b].Name))
	})
	return all
}

// Begin records that a member starts a step, and returns the member's index. It modifies the members that were passed
// to NewFleet, so that the result is the same as calling NewFleet again later.
func (f *Fleet) Begin(step *ClusterStep) int {
	i := slices.IndexFunc(f.clusters, func(c Cluster) bool { return c.Name == step.Cluster })
	f.clusters[i].Claim = step.Claim
	f.waves[f.of[i]].active++
	f.slots++
	f.opened = max(f.opened, f.of[i])
	return i
}
