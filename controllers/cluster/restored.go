// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/internal/checkpoint"
	"github.com/drover-dev/drover/internal/status"
)

// writeUnconfirmed writes to the status which changes to the member are waiting for confirmation after a restore of the
// hub. If these changes are unknown, it leaves the status unchanged.
func (r *Reconciler) writeUnconfirmed(in *input, update *status.Update) {
	if r.Unconfirmed == nil {
		return
	}
	difference, known := r.Unconfirmed(in.name)
	if !known {
		return
	}
	message, held := "", difference.Status()
	if held != nil {
		message = fmt.Sprintf("The hub's etcd was restored from a backup that is older than what the member has. Nothing is changed there before an "+
			"administrator confirms it: %s. See status.restore, and run \"kubectl drover restored %s -w %s\"", held.Summary, in.name.Name, in.name.Namespace)
	}
	shown := &in.cluster.Status
	checkpoint.Status{Restore: &shown.Restore, Conditions: &shown.Conditions, Generation: in.cluster.Generation, Now: metav1.NewTime(in.now)}.
		Write(held, "Deliver", message, update)
}
