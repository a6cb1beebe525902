// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/status"
)

// maxDifference is the number of sets of each kind of change that the status names.
const maxDifference = 50

// writeRestored writes what the hub, which was restored, does not change in the member before that is confirmed, and an event when that begins.
func (r *Reconciler) writeRestored(in *input, update *status.Update) {
	if r.Unconfirmed == nil {
		return
	}
	difference, known := r.Unconfirmed(in.name)
	if !known {
		return
	}
	state, conditions := &in.cluster.Status, &in.cluster.Status.Conditions
	state.Restore = restoreStatus(difference)
	if difference == nil {
		meta.RemoveStatusCondition(conditions, v1.ConditionRestoreConfirmed)
		return
	}
	waiting := conditionValue{reason: v1.ReasonHubRestored, message: fmt.Sprintf("The hub's etcd was restored from a backup that is older than what the member has. "+
		"Nothing is changed there before an administrator confirms it: %s. See status.restore, and run \"kubectl drover restored %s -w %s\"",
		state.Restore.Summary, in.name.Name, in.name.Namespace)}
	if meta.FindStatusCondition(*conditions, v1.ConditionRestoreConfirmed) == nil {
		update.Event(status.Event{Warning: true, Reason: waiting.reason, Action: "Deliver", Message: waiting.message})
	}
	set(in, v1.ConditionRestoreConfirmed, waiting)
}

// digestOf returns the digest of all that would change, by names.
func digestOf(d *delivery.Difference) string {
	hash := sha256.New()
	for _, ids := range [][]string{d.Add, d.Change, d.Remove} {
		fmt.Fprintf(hash, "%q\n", ids)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// restoreStatus returns a difference as the status has it. It is pure.
func restoreStatus(d *delivery.Difference) *v1.RestoreStatus {
	if d == nil {
		return nil
	}
	first := func(ids []string) []string { return ids[:min(len(ids), maxDifference)] }
	return &v1.RestoreStatus{
		Checkpoint: d.Checkpoint, Digest: digestOf(d), Summary: fmt.Sprintf("%d to add, %d to change, %d to remove", len(d.Add), len(d.Change), len(d.Remove)),
		Add: first(d.Add), Change: first(d.Change), Remove: first(d.Remove),
	}
}
