// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Policy holds back the changes that a restored hub would make in its members. The zero value holds back no changes.
type Policy struct {
	// Current returns the checkpoint to send with each set, or an empty string if there is none. If Current is nil,
	// there is never a checkpoint.
	Current func() string
	// Lost returns a member's checkpoint if the hub has no record of it and no administrator has confirmed it.
	// Otherwise, the member is not waiting for confirmation, and Lost returns an empty string. The checkpoint that the
	// member's agent reported is passed as has, and is empty if there is none. If Lost is nil, no member is waiting.
	// Lost must not call an API server.
	Lost func(ctx context.Context, member types.NamespacedName, has string) string
	// Rules contains the rule for each kind of set.
	Rules map[string]Rule
}

// Rule determines what happens to the sets of one kind while a member is waiting for confirmation. With the zero value,
// all changes wait for confirmation.
type Rule struct {
	// CountsAsWithdrawn means that a set is removed immediately if its owner withdraws it after the restore. Such a
	// removal does not need confirmation, because a user requested it.
	CountsAsWithdrawn bool
	// RevokedAtOnce means that a set is removed immediately if it differs from the desired version, and is sent again
	// after the confirmation. The outdated version may grant access that was revoked after the backup.
	RevokedAtOnce bool
	// OfMember means that the set belongs to the member itself. The set's owner is notified when the member starts or
	// stops waiting for confirmation.
	OfMember bool
}

// Checkpoint returns the current checkpoint, or an empty string if there is none.
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

// Examine determines whether a member is waiting for confirmation, and reports whether this has changed. The settled
// argument is true if the agent reports each change. In that case, the records of withdrawn sets are dropped unless the
// member is waiting.
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

// Hold is the state of one member after the hub's etcd was restored. It is not safe for concurrent use.
type Hold struct {
	reached    string              // the checkpoint that the agent reported, empty if there is none
	lost       string              // the checkpoint that needs confirmation, empty if the member is not waiting
	difference *Difference         // nil while the difference is unknown
	withdrawn  map[string]struct{} // IDs of the sets that their owners withdrew after the restore
}

// Reach records the checkpoint that the agent reported. It is empty if the agent has none.
func (h *Hold) Reach(checkpoint string) { h.reached = checkpoint }

// Waits reports whether changes to the member are waiting for confirmation.
func (h *Hold) Waits() bool { return h.lost != "" }

// Holds reports whether a set must be neither sent nor removed. The wanted argument is true if the set has an owner.
func (h *Hold) Holds(id string, wanted bool) bool {
	_, withdrawn := h.withdrawn[id]
	return h.Waits() && (wanted || !withdrawn)
}

// Withdraw records that the owner of a set withdrew it after the restore.
func (h *Hold) Withdraw(id string) {
	if h.withdrawn == nil {
		h.withdrawn = map[string]struct{}{}
	}
	h.withdrawn[id] = struct{}{}
}

// Settle records that a set has an owner again, or that the set was removed.
func (h *Hold) Settle(id string) { delete(h.withdrawn, id) }

// Compared records the result of a comparison, or nil if the difference is unknown. It reports whether a known
// difference has changed.
func (h *Hold) Compared(now *Difference) (changed bool) {
	if now != nil {
		now.Checkpoint = h.lost
	}
	changed = now != nil && !reflect.DeepEqual(h.difference, now)
	h.difference = now
	return changed
}

// Agrees reports whether the difference is known to be empty, so that there is nothing to confirm.
func (h *Hold) Agrees() bool { return h.difference != nil && h.difference.empty() }

// Difference returns the changes that are waiting for confirmation, or nil if there are none. The known result is false
// if they have not been computed yet. The settled argument has the same meaning as for Examine.
func (h *Hold) Difference(settled bool) (difference *Difference, known bool) {
	switch {
	case !h.Waits():
		return nil, true
	case h.difference == nil, settled && h.difference.empty(): // the agent will soon receive the current checkpoint
		return nil, false
	}
	return h.difference, true
}

// End records that a member no longer waits for confirmation, because its agent has received the given checkpoint.
func (h *Hold) End(checkpoint string) { *h = Hold{reached: checkpoint} }

// maxNamed is the maximum number of sets that a status lists for each kind of change.
const maxNamed = 50

// Difference lists the changes that a restored hub would make in a member. The sets are listed by ID, in sorted order.
type Difference struct {
	// Checkpoint is the checkpoint that the agent last reported. The hub has no record of it.
	Checkpoint string
	// Add lists the sets that the member lacks. Change lists the sets with different content. Remove lists the sets that
	// no object on the hub requires.
	Add, Change, Remove []string
}

func (d *Difference) empty() bool { return len(d.Add)+len(d.Change)+len(d.Remove) == 0 }

// digest returns a digest of all set IDs in d.
func (d *Difference) digest() string {
	hash := sha256.New()
	for _, ids := range [][]string{d.Add, d.Change, d.Remove} {
		fmt.Fprintf(hash, "%q\n", ids)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// Status converts the difference to the type used in a Cluster's status. It returns nil for a nil difference.
func (d *Difference) Status() *v1.RestoreStatus {
	if d == nil {
		return nil
	}
	first := func(ids []string) []string { return ids[:min(len(ids), maxNamed)] }
	return &v1.RestoreStatus{
		Checkpoint: d.Checkpoint, Digest: d.digest(), Summary: Summary(d.Add, d.Change, d.Remove),
		Add: first(d.Add), Change: first(d.Change), Remove: first(d.Remove),
	}
}

// Summary returns the number of changes of each kind, as text.
func Summary(add, change, remove []string) string {
	return fmt.Sprintf("%d to add, %d to change, %d to remove", len(add), len(change), len(remove))
}
