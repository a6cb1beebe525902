// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
)

// stop says where the rollout of agent upgrades has stopped because too many upgrades failed.
type stop struct {
	workspace string   // empty if the rollout has stopped in all workspaces
	failed    []string // Clusters whose agents failed to upgrade
	allowed   int      // number of upgrades that may fail
}

// holdBack returns the agents that take part in the rollout: all agents in workspaces in which the rollout has not
// stopped, and agents in stopped workspaces whose upgrade is in progress. It also returns where the rollout has
// stopped. If it has stopped in all workspaces, the first stop has no workspace. Workspaces are separate, because a
// member's administrator can make the upgrade of the member's agent fail, but must not be able to stop upgrades in
// other workspaces.
func (u *Upgrades) holdBack(all []rollout.Cluster) (going []rollout.Cluster, stops []stop) {
	groups, failed := map[string]rollout.Group{}, map[string][]string{}
	for _, c := range all {
		workspace, _, _ := strings.Cut(c.Name, "/")
		g := groups[workspace]
		g.Members++
		if c.Claim != nil && c.Claim.Revision == u.revision && c.Claim.Failed != nil {
			g.Failed++
			failed[workspace] = append(failed[workspace], c.Name)
		}
		groups[workspace] = g
	}
	allowed := func(members int) int { return u.Pace(members).MaxFailed }
	held, stopped := rollout.HeldBack(groups, allowed)
	for workspace := range held {
		stops = append(stops, stop{workspace, failed[workspace], allowed(groups[workspace].Members)})
	}
	slices.SortFunc(stops, func(a, b stop) int { return cmp.Compare(a.workspace, b.workspace) })
	if stopped {
		whole := stop{allowed: allowed(len(all))}
		for _, names := range failed {
			whole.failed = append(whole.failed, names...)
		}
		slices.Sort(whole.failed)
		return nil, slices.Insert(stops, 0, whole)
	}
	for _, c := range all {
		workspace, _, _ := strings.Cut(c.Name, "/")
		if !held[workspace] {
			going = append(going, c)
			// the upgrade occupies a slot until it ends
		} else if c.Claim != nil && c.Claim.Complete == nil && c.Claim.Failed == nil {
			c.Selected = false
			going = append(going, c)
		}
	}
	return going, stops
}

// report reports each stop of the rollout once. It writes a log entry, and emits an event on the first Cluster in the
// affected workspace whose upgrade failed.
func (u *Upgrades) report(ctx context.Context, clusters []v1.Cluster, stops []stop) {
	u.mu.Lock()
	before := u.stopped
	u.stopped = map[string]bool{}
	for _, s := range stops {
		u.stopped[s.workspace] = true
	}
	u.mu.Unlock()
	for _, s := range stops {
		i := slices.IndexFunc(clusters, func(c v1.Cluster) bool { return client.ObjectKeyFromObject(&c).String() == s.failed[0] })
		if before[s.workspace] || i < 0 {
			continue
		}
		message := s.message()
		ctrl.LoggerFrom(ctx).Info("upgrade of agents stopped", "message", message)
		u.Recorder.Eventf(&clusters[i], nil, corev1.EventTypeWarning, v1.ReasonAgentRolloutStopped, "UpdateAgent", "%s", message)
	}
}

// message describes what happened and what to do. An event in one workspace must not name a Cluster in another
// workspace.
func (s stop) message() string {
	where, named := "of agents has stopped in all workspaces", ""
	if s.workspace != "" {
		where = "of agents has stopped in workspace " + s.workspace
		named = " (" + strings.Join(s.failed[:min(len(s.failed), maxFailedNamed)], ", ")
		if more := len(s.failed) - maxFailedNamed; more > 0 {
			named += fmt.Sprintf(" and %d more", more)
		}
		named += ")"
	}
	return fmt.Sprintf("The upgrade %s: %s failed%s, and agent.rollout.maxFailedClusters of the hub's configuration allows %d there. "+
		"See the condition AgentUpToDate of these Clusters; change agent.image, or raise maxFailedClusters to go on without them",
		where, rollout.Clusters(len(s.failed)), named, s.allowed)
}
