// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
)

// awaitConfirmation returns the reason why a plan cannot start in a member, or the zero value if it can.
//
// After the hub was restored, other members of the plan may be waiting for confirmation. Until the restore is
// confirmed, it is unknown whether a plan from a backup should run at all. The plan therefore does not start, even in
// members that are not waiting. The plan can start in a member that is itself waiting, because nothing is sent to that
// member until its changes, including the plan, have been confirmed.
func (r *Reconciler) awaitConfirmation(s *scope, begins string) rollout.Wait {
	if r.Unconfirmed == nil {
		return rollout.Wait{}
	}
	soon := rollout.Wait{Reason: v1.ReasonApplying, Message: "asking members whether they know more than the hub", Until: r.Now().Add(listenAgain)}
	asking := r.Returned != nil && !r.Returned() && s.misses()
	var waiting []string
	for _, m := range s.members {
		difference, known := r.Unconfirmed(client.ObjectKeyFromObject(m.object))
		switch {
		case difference != nil && m.object.Name == begins:
			return rollout.Wait{}
		case difference != nil || !known && m.object.Status.Restore != nil: // a disconnected member is still waiting
			waiting = append(waiting, m.object.Name)
		case !known && (m.state.Reported || !m.state.Silent.IsZero() && r.Now().Sub(m.state.Silent) <= silence):
			asking = true
		}
	}
	switch {
	case len(waiting) > 0:
		return rollout.Wait{Reason: v1.ReasonHubRestored, Message: "the hub was restored from a backup, and no administrator has confirmed yet what would change in " + rollout.Clusters(len(waiting)) + ": " +
			strings.Join(waiting[:min(len(waiting), maxWaiting)], ", ") + ". The plan begins in no other member meanwhile: run \"kubectl drover restored\", or delete the plan"}
	case asking:
		return soon
	}
	return rollout.Wait{}
}

// maxWaiting is the maximum number of members that a message lists.
const maxWaiting = 5
