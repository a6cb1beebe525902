// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/status"
)

// Policy returns the policy for this hub. The clusters reader must be a cache.
func (r *Recorder) Policy(clusters client.Reader, rules map[string]Rule) Policy {
	lost := func(ctx context.Context, member types.NamespacedName, has string) string {
		cluster := &v1.Cluster{}
		_ = clusters.Get(ctx, member, cluster, client.UnsafeDisableDeepCopy) // a missing Cluster has no confirmation
		if lost, confirmed := Lost(cluster, cluster.Status.Restore, has, r.Forgot); !confirmed {
			return lost
		}
		return ""
	}
	return Policy{Current: r.Current, Rules: rules, Lost: lost}
}

// Lost returns the checkpoint of a Cluster's or Host's agent if the hub has no record of this checkpoint. Otherwise, it
// returns an empty string. confirmed reports whether an administrator has confirmed the hub's changes in that member or
// host. The waits argument comes from the object's status. The checkpoint that the agent reports is passed as has. An
// object that is waiting for confirmation continues to wait if the agent loses the checkpoint, or if the checkpoint is
// older than the history.
func Lost(
	object metav1.Object, waits *v1.RestoreStatus, has string, forgot func(string) bool,
) (lost string, confirmed bool) {
	switch {
	case waits != nil && (has == "" || has == waits.Checkpoint):
		lost = waits.Checkpoint
	case has != "" && forgot(has):
		lost = has
	}
	return lost, lost != "" && object.GetAnnotations()[v1.AnnotationRestored] == lost
}

// Status is the part of a Cluster's or Host's status that shows the changes that are waiting for confirmation.
type Status struct {
	Restore    **v1.RestoreStatus
	Conditions *[]metav1.Condition
	Generation int64
	// Now is the transition time to set if the condition changes. It defaults to the current time.
	Now metav1.Time
}

// Write records the changes that are waiting for confirmation, or clears them if held is nil. It emits an event when
// the object starts waiting for confirmation. message says how to confirm the changes, and action is the action of the
// event.
func (s Status) Write(held *v1.RestoreStatus, action, message string, update *status.Update) {
	*s.Restore = held
	if held == nil {
		meta.RemoveStatusCondition(s.Conditions, v1.ConditionRestoreConfirmed)
		return
	}
	if meta.FindStatusCondition(*s.Conditions, v1.ConditionRestoreConfirmed) == nil {
		update.Event(status.Event{Warning: true, Reason: v1.ReasonHubRestored, Action: action, Message: message})
	}
	meta.SetStatusCondition(s.Conditions, metav1.Condition{
		Type: v1.ConditionRestoreConfirmed, Status: metav1.ConditionFalse, Reason: v1.ReasonHubRestored, Message: message,
		ObservedGeneration: s.Generation, LastTransitionTime: s.Now,
	})
}
