// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Policy holds back what a restored hub would change in its members. The zero value holds nothing back.
type Policy struct {
	// Current returns the checkpoint that is sent with each set, empty for none. Nil means always empty.
	Current func() string
	// Lost returns the checkpoint that the hub does not remember and that no administrator has confirmed for a member. Its
	// argument is the checkpoint that the member's agent has, empty for none. The result is empty if the member does not
	// wait. Nil means that no member waits. It must not call an API server.
	Lost func(ctx context.Context, member types.NamespacedName, has string) string
	// Rules are the rules for sets, by their kinds.
	Rules map[string]Rule
}

// Rule says what happens to the sets of one kind while a member waits. With the zero value all changes wait for the
// confirmation.
type Rule struct {
	// CountsAsWithdrawn means that a set is removed at once when its owner withdraws it after the restore. A user has
	// asked for that, so it is not a consequence of the restore.
	CountsAsWithdrawn bool
	// RevokedAtOnce means that a set is removed at once if it differs from what the hub wants, and sent again after the
	// confirmation. An older version of it may grant what has ended since.
	RevokedAtOnce bool
	// OfMember means that the set belongs to the member itself, and that its owner is notified when the member begins or
	// ends to wait.
	OfMember bool
}

// Checkpoint returns the present checkpoint, empty for none.
func (p *Policy) Checkpoint() string {
	if p.Current == nil {
		return ""
	}
	return p.Current()
}

// Rule returns the rule for a set.
func (p *Policy) Rule(id string) Rule {
	kind, _, _ := strings.Cut(id, "/")
	return p.Rules[kind]
}

// Examine decides whether a member waits, and reports whether that changed. settled reports whether the agent reports
// each change: then withdrawn sets need no record while the member does not wait.
func (p *Policy) Examine(ctx context.Context, member types.NamespacedName, h *Hold, settled bool) (changed bool) {
	was := h.Waits()
	h.lost = ""
	if p.Lost != nil {
		h.lost = p.Lost(ctx, member, h.reached)
	}
	if !h.Waits() {
		h.difference = nil
		if settled {
			h.withdrawn = nil
		}
	}
	return was != h.Waits()
}

// Hold is the state of one member after a restore of the hub's etcd. Only one goroutine may use it at a time.
type Hold struct {
	reached    string              // the checkpoint that the agent reported, empty for none
	lost       string              // the checkpoint for whose confirmation the member waits, empty if it does not wait
	difference *Difference         // nil while it is not known
	withdrawn  map[string]struct{} // IDs of sets that their owners withdrew after the restore
}

// Reach notes the checkpoint that the agent reported, empty for none.
func (h *Hold) Reach(checkpoint string) { h.reached = checkpoint }

// Waits reports whether changes in the member wait for a confirmation.
func (h *Hold) Waits() bool { return h.lost != "" }

// Holds reports whether a set is neither sent nor removed. wanted reports whether it has an owner.
func (h *Hold) Holds(id string, wanted bool) bool {
	_, withdrawn := h.withdrawn[id]
	return h.Waits() && (wanted || !withdrawn)
}

// Withdraw notes that the owner of a set withdrew it after the restore.
func (h *Hold) Withdraw(id string) {
	if h.withdrawn == nil {
		h.withdrawn = map[string]struct{}{}
	}
	h.withdrawn[id] = struct{}{}
}

// Settle notes that a set has an owner again, or was removed.
func (h *Hold) Settle(id string) { delete(h.withdrawn, id) }

// Compared notes what differs in the member, nil if that is not known, and reports whether that changed.
func (h *Hold) Compared(now *Difference) (changed bool) {
	if now != nil {
		now.Checkpoint = h.lost
	}
	changed = now != nil && !reflect.DeepEqual(h.difference, now)
	h.difference = now
	return changed
}

// Agrees reports whether it is known that nothing differs: then there is nothing to confirm.
func (h *Hold) Agrees() bool { return h.difference != nil && h.difference.empty() }

// Difference returns what waits for a confirmation, nil if nothing does, and whether that is known. settled is as for
// Examine.
func (h *Hold) Difference(settled bool) (difference *Difference, known bool) {
	switch {
	case !h.Waits():
		return nil, true
	case h.difference == nil, settled && h.difference.empty(): // the agent is about to get the present checkpoint instead
		return nil, false
	}
	return h.difference, true
}

// End ends the wait of a member whose agent has got a checkpoint. The agent is about to report it.
func (h *Hold) End(checkpoint string) { *h = Hold{reached: checkpoint} }
