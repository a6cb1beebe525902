// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plans

import (
	"context"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

func newPause(o *cli.Options) *cobra.Command {
	return pausing(o, true, &cobra.Command{
		Use: "pause NAME", Short: "Have a plan start nothing new",
		Long: `Have a plan start nothing new: no member, no node and no further attempt. Upgrades that are
running finish. It sets spec.paused.`,
		Example: "  kubectl drover plan pause k3s-server -w team-a",
	})
}

func newResume(o *cli.Options) *cobra.Command {
	return pausing(o, false, &cobra.Command{
		Use: "resume NAME", Short: "Have a paused plan go on",
		Long:    `Have a paused plan go on. It unsets spec.paused.`,
		Example: "  kubectl drover plan resume k3s-server -w team-a",
	})
}

// pausing completes a command that sets spec.paused in a plan.
func pausing(o *cli.Options, paused bool, c *cobra.Command) *cobra.Command {
	c.ValidArgsFunction = completePlans(o, cobra.ShellCompDirectiveNoFileComp)
	return cli.Pausing(o, c, paused, func(ctx context.Context, h *cli.Hub, name string) (client.Object, *bool, error) {
		plan, err := readPlan(ctx, h, name)
		if err != nil {
			return nil, nil, err
		}
		return plan, &plan.Spec.Paused, nil
	})
}
