// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

func newPause(o *cli.Options) *cobra.Command {
	return holding(o, true, &cobra.Command{
		Use: "pause CLUSTER...", Short: "Do not upgrade the agents of Clusters for now",
		Long: `Do not upgrade the agents of Clusters for now. It labels the Clusters with
` + v1.LabelPlansHold + `, which also holds their Plans. Upgrades that are running finish.

To pause the upgrade of all agents, set agent.rollout.paused in the manager's configuration.`,
		Example: "  kubectl drover agents pause prod-eu prod-us -w team-a",
	})
}

func newResume(o *cli.Options) *cobra.Command {
	return holding(o, false, &cobra.Command{
		Use: "resume CLUSTER...", Short: "Upgrade the agents of Clusters again",
		Long:    `Upgrade the agents of Clusters again. It removes the label ` + v1.LabelPlansHold + `.`,
		Example: "  kubectl drover agents resume prod-eu prod-us -w team-a",
	})
}

// holding completes a command that pauses or resumes Clusters by setting or removing a label.
func holding(o *cli.Options, hold bool, c *cobra.Command) *cobra.Command {
	change := cli.BindChange(c)
	c.Args = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return errors.New("no Clusters are given: \"kubectl drover agents\" lists them")
		}
		return nil
	}
	c.ValidArgsFunction = o.CompleteNames("Cluster")
	o.BindWorkspace(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		return o.OnHub(c, cli.CommandLimit, func(ctx context.Context, h *cli.Hub) error {
			for _, name := range args {
				if err := holdCluster(ctx, h, change, name, hold); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return c
}

func holdCluster(ctx context.Context, h *cli.Hub, change *cli.Change, name string, hold bool) error {
	cluster := &v1.Cluster{}
	if err := h.Get(ctx, client.ObjectKey{Namespace: h.Workspace, Name: name}, cluster); err != nil {
		return fmt.Errorf("read Cluster %s/%s: %w", h.Workspace, cli.Visible(name), err)
	}
	before, done := cluster.DeepCopy(), "resumed"
	value, labelled := cluster.Labels[v1.LabelPlansHold]
	held := labelled && value != "false"
	switch {
	case held == hold:
		done = "unchanged"
	case hold:
		done = "paused"
		if cluster.Labels == nil {
			cluster.Labels = map[string]string{}
		}
		cluster.Labels[v1.LabelPlansHold] = "true"
	default:
		delete(cluster.Labels, v1.LabelPlansHold)
	}
	return change.Make(h, cluster, done, func(w client.Client) error {
		return w.Patch(ctx, cluster, client.MergeFrom(before))
	})
}
