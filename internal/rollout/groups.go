// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

// Group counts members of a fleet that belong together, for example the members of one workspace.
type Group struct {
	Members, Failed int
}

// HeldBack returns the groups in which no more members may start. The result all is true if no more members may start
// in any group. The function allowed returns how many of the given number of members may fail.
//
// A group is held back if too many of its own members have failed. All groups are held back if too many members have
// failed even without counting the group with the most failures, so no single group can hold back the others. For each
// group, at most one more failure than allowed is counted, because further failures of a group that is already held
// back provide no new information.
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
