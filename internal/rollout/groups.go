// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

// Group counts the members of a fleet that belong together, for example the members of one workspace.
type Group struct {
	Members, Failed int
}

// HeldBack returns the groups in which no further member may start, and whether all groups are held back. The function
// allowed takes a number of members and returns how many of them may fail.
//
// A group is held back by its own failures. The whole fleet stops when too many members have failed even without the
// group that has the most failures, so that no single group can stop the others. A group contributes at most one
// failure more than it is allowed, because further failures provide no new information once the group is held back.
func HeldBack(groups map[string]Group, allowed func(members int) int) (held map[string]bool, all bool) {
	held = map[string]bool{}
	var members, failed, most int
	for name, g := range groups {
		limit := allowed(g.Members)
		if g.Failed > limit {
			held[name] = true
		}
		counted := min(g.Failed, limit+1)
		members, failed, most = members+g.Members, failed+counted, max(most, counted)
	}
	return held, failed-most > allowed(members)
}
