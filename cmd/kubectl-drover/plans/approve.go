// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plans

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/rollout"
)

func newApprove(o *cli.Options) *cobra.Command {
	c := &cobra.Command{
		Use: "approve NAME", Short: "Approve a wave of a plan",
		Long: `Approve a wave of a plan whose spec.rollout requires approval. It adds the approval to
spec.approvals. You need the rights to update and to approve the Plan.

The approval counts only for the plan as it is now. Any change except to paused, approvals and overrides
makes it expire.

To approve through Git, print the Plan with --dry-run=client -o yaml, and use --approved-by for the
user that applies it.`,
		Example: `  kubectl drover plan approve k3s-server -w team-a
  kubectl drover plan approve k3s-server --wave prod --dry-run=client -o yaml \
    --approved-by system:serviceaccount:flux-system:kustomize-controller`,
		ValidArgsFunction: completePlans(o, cobra.ShellCompDirectiveNoFileComp),
	}
	return cli.Approving(o, c, cli.Approvable[*v1.Plan]{
		Kind: "plan", Resource: "dplan", Read: readPlan, Gated: gatedOf,
		Describe: func(p *v1.Plan) string { return workOf(&p.Spec.NodeWork) + " with version " + p.Status.LatestVersion },
	})
}

// gatedOf returns the parts of a plan that an approval depends on.
func gatedOf(p *v1.Plan) cli.Gated {
	_, message := stateOf(p)
	fleet := rollout.FleetPlan{Name: p.Name, Pace: rollout.PaceOf(&p.Spec)}
	return cli.Gated{
		Observed: p.Status.ObservedGeneration, Message: message, Waves: p.Status.Waves, Names: fleet.WaveNames(),
		InWave: func(clusters []v1.Cluster, wave string) ([]string, error) {
			return fleet.InWave(p.Target(), clusters, wave)
		},
		Approvals: &p.Spec.Approvals,
	}
}

// workOf describes the programs that a plan runs on a node.
func workOf(work *v1.NodeWork) string {
	program := func(c *v1.PlanContainer) string {
		if words := slices.Concat(c.Command, c.Args); len(words) > 0 {
			return fmt.Sprintf("run image %s (%q)", c.Image, words)
		}
		return "run image " + c.Image
	}
	var steps []string
	if work.Prepare != nil {
		steps = append(steps, program(work.Prepare))
	}
	if work.Drain != nil {
		steps = append(steps, "drain the node")
	}
	return strings.Join(append(steps, program(&work.Upgrade)), ", then ")
}

// approveAll makes the simulation ignore required approvals, because it cannot know when users will approve.
func (a *preview) approveAll() {
	if a.scenario.Plan.Spec.Rollout == nil {
		return
	}
	waves := a.scenario.Plan.Spec.Rollout.Waves
	for i := range waves {
		if waves[i].Approval == v1.ApprovalRequired {
			waves[i].Approval = v1.ApprovalNone
			a.remark("wave %s requires approval: the simulation does not wait for it", waves[i].Name)
		}
	}
}
