// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baselines

import (
	"fmt"

	"github.com/spf13/cobra"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/rollout"
)

func newApprove(o *cli.Options) *cobra.Command {
	c := named(o, &cobra.Command{
		Use: "approve NAME", Short: "Approve a wave of a Baseline",
		Long: `Approve a wave of a Baseline whose spec.rollout requires approval. It adds the approval to
spec.approvals. You need the rights to update and to approve the Baseline.

The approval counts only for the objects and the spec as they are now. Any change except to paused and
approvals makes it expire. Members that already have the revision keep it.

To approve through Git, print the Baseline with --dry-run=client -o yaml, and use --approved-by for the
user that applies it.`,
		Example: "  kubectl drover baseline approve flux -w team-a --wave prod",
	})
	return cli.Approving(o, c, cli.Approvable[*v1.Baseline]{
		Kind: "baseline", Resource: "baseline", Read: readBaseline, Gated: gatedOf,
		Describe: func(b *v1.Baseline) string {
			return fmt.Sprintf("keep the %d objects of revision %s, with the rights of role template %s", b.Status.Objects,
				b.Status.Revision, b.Spec.RoleTemplateName)
		},
	})
}

// gatedOf returns the parts of a Baseline that an approval depends on.
func gatedOf(b *v1.Baseline) cli.Gated {
	fleet := rollout.FleetPlan{Baseline: b.Name, Pace: rollout.PaceOfBaseline(&b.Spec.BaselinePace)}
	return cli.Gated{
		Observed: b.Status.ObservedGeneration, Message: rowOf(b).Message, Waves: b.Status.Waves, Names: fleet.WaveNames(),
		InWave: func(clusters []v1.Cluster, wave string) ([]string, error) {
			return fleet.InWave(b.Target(), clusters, wave)
		},
		Approvals: &b.Spec.Approvals,
	}
}
