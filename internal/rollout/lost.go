// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
)

// lostTime is how long a member in progress must be disconnected to count as lost. Most members reconnect sooner,
// because usually only the network or the hub was down.
const lostTime = 5 * time.Minute

// lost reports whether a member has been away for at least lostTime.
func (f *Fleet) lost(c *Cluster) bool {
	return c.Away != "" && !c.AwaySince.IsZero() && !f.now.Before(c.AwaySince.Add(lostTime))
}

// working returns the reason to wait while members are in progress. It names the first lost member that keeps its
// slot. Nodes of a lost member may be in the middle of an upgrade, so only a user can decide to continue the plan
// without that member.
func (f *Fleet) working() Wait {
	var away *Cluster
	lost := 0
	for i := range f.clusters {
		c := &f.clusters[i]
		if c.Away == "" || !f.takes(c) {
			continue
		}
		switch {
		case f.lost(c):
			if lost++; lost == 1 {
				away = c
			}
		case !c.AwaySince.IsZero():
			f.until = Sooner(f.until, c.AwaySince.Add(lostTime))
		}
		if away == nil {
			away = c
		}
	}
	w := Wait{Reason: v1.ReasonApplying, Message: Clusters(f.slots) + " at work"}
	if away != nil {
		w.Message += fmt.Sprintf("; cluster %s keeps its slot although %s: reconnect it, label it %s=%s to continue without it, or delete it if it is gone for good",
			away.Name, away.Away, v1.PlanLabel(f.plan.Name), v1.PlanDisabled)
	}
	if lost > 0 {
		w.Reason = v1.ReasonMemberLost
	}
	if lost > 1 {
		w.Message += fmt.Sprintf("; %d more lost in the same way", lost-1)
	}
	return w
}
