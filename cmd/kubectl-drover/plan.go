// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout/rehearsal"
)

func newPlan(o *options) *cobra.Command {
	c := &cobra.Command{
		Use: "plan", Short: "Follow plans, and see beforehand what they would do", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.PersistentFlags().StringVarP(&o.workspace, "workspace", "w", "", "The workspace: a namespace of the hub (default: that of the kubeconfig's context)")
	c.AddCommand(newPlanWatch(o), newPlanPreview(o))
	return c
}

func newPlanWatch(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "watch NAME", Short: "Show how a plan goes, until it is complete or stalled",
		Long: `Show how a plan goes, until it is complete or stalled.

On a terminal the picture is drawn anew with each change; in a pipe there is a line for each.

Exit codes: 0 complete, 1 stalled: a person must act, 2 an error.`,
		Example: "  kubectl drover plan watch k3s-server -w team-a",
		Args:    arguments(1, "NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			hub, err := o.hub()
			if err != nil {
				return err
			}
			return hub.watchPlan(c.Context(), args[0], newDisplay(c.OutOrStdout()))
		},
	}
}

// watchAgain is the pause before a watch that has ended begins anew.
const watchAgain = 500 * time.Millisecond

// watchPlan shows a plan until it is complete; stalled is errDenied.
func (h *hub) watchPlan(ctx context.Context, name string, show *display) error {
	for {
		plan := &v1.Plan{}
		if err := h.Get(ctx, client.ObjectKey{Namespace: h.workspace, Name: name}, plan); err != nil {
			return fmt.Errorf("read plan %s/%s: %w", h.workspace, name, err)
		}
		if done, err := show.plan(plan); done || err != nil {
			return err
		}
		done, err := h.followPlan(ctx, plan, show)
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(watchAgain):
		}
	}
}

// followPlan shows the changes of a plan until the watch ends, which it does when a request may take no longer.
func (h *hub) followPlan(ctx context.Context, plan *v1.Plan, show *display) (done bool, err error) {
	changes, err := h.Watch(ctx, &v1.PlanList{}, &client.ListOptions{Namespace: h.workspace,
		FieldSelector: fields.OneTermEqualSelector("metadata.name", plan.Name), Raw: &metav1.ListOptions{ResourceVersion: plan.ResourceVersion}})
	if err != nil {
		return false, fmt.Errorf("watch plan %s/%s: %w", h.workspace, plan.Name, err)
	}
	defer changes.Stop()
	for change := range changes.ResultChan() {
		switch now := change.Object.(type) {
		case *v1.Plan:
			if change.Type == "DELETED" {
				return true, fmt.Errorf("plan %s/%s is deleted", h.workspace, plan.Name)
			}
			if done, err := show.plan(now); done || err != nil {
				return true, err
			}
		case *metav1.Status:
			if err := apierrors.FromObject(now); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
				return true, fmt.Errorf("watch plan %s/%s: %w", h.workspace, plan.Name, err)
			}
			return false, nil
		}
	}
	return false, ctx.Err()
}

// rehearsing are the flags of "plan preview".
type rehearsing struct {
	start                   string
	nodes                   int
	prepare, drain, upgrade time.Duration
}

func newPlanPreview(o *options) *cobra.Command {
	r := &rehearsing{}
	c := &cobra.Command{
		Use: "preview NAME | FILE", Short: "Print the steps that a plan would take, with their times",
		Long: `Print the steps that a plan would take, with their times, as the planner that runs it takes them.

NAME is a Plan of the workspace. FILE has a Plan, which need not be on the hub, or a script as hack/plan-steps plays it. For a Plan, the Clusters
are those of the workspace as they are now, with as many nodes as they have; the hub does not know which of them the plan selects, so all count.`,
		Example: `  kubectl drover plan preview k3s-server -w team-a --upgrade 4m
  kubectl drover plan preview plan.yaml --start 2027-01-02T00:00:00Z`,
		Args: arguments(1, "NAME or FILE"),
		RunE: func(c *cobra.Command, args []string) error {
			return o.preview(c.Context(), c.OutOrStdout(), args[0], r)
		},
	}
	flags := c.Flags()
	flags.StringVar(&r.start, "start", "", "When it begins, such as 2027-01-02T15:04:05Z (default: now)")
	flags.IntVar(&r.nodes, "nodes", 0, "How many nodes each cluster has (default: as many as it has)")
	flags.DurationVar(&r.prepare, "prepare", 10*time.Second, "How long prepare takes")
	flags.DurationVar(&r.drain, "drain", 30*time.Second, "How long a drain takes")
	flags.DurationVar(&r.upgrade, "upgrade", time.Minute, "How long an upgrade takes")
	return c
}

func (o *options) preview(ctx context.Context, out io.Writer, what string, r *rehearsing) error {
	script, whole, err := readScript(what)
	if err != nil {
		return err
	}
	if !whole {
		hub, err := o.hub()
		if err != nil {
			return err
		}
		if err := hub.cast(ctx, what, script, r); err != nil {
			return err
		}
	}
	if r.start != "" {
		at, err := time.Parse(time.RFC3339, r.start)
		if err != nil {
			return fmt.Errorf("read --start: %w", err)
		}
		script.Start = metav1.NewTime(at)
	}
	return rehearsal.Recite(*script, out)
}

// readScript reads a file, if there is one of that name: a whole script, or a Plan.
func readScript(name string) (script *rehearsal.Script, whole bool, err error) {
	script = &rehearsal.Script{}
	text, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return script, false, nil
	} else if err != nil {
		return nil, false, fmt.Errorf("read script: %w", err)
	}
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(text, &kind); err != nil {
		return nil, false, fmt.Errorf("read %s: %w", name, err)
	}
	if kind.Kind == "Plan" {
		err = yaml.UnmarshalStrict(text, &script.Plan)
	} else {
		whole, err = true, yaml.UnmarshalStrict(text, script)
	}
	if err != nil {
		return nil, false, fmt.Errorf("read %s: %w", name, err)
	}
	return script, whole, nil
}

// cast completes a script with what the hub knows: the Plan, if there is none yet, and the Clusters.
func (h *hub) cast(ctx context.Context, name string, script *rehearsal.Script, r *rehearsing) error {
	if script.Plan.Name == "" {
		if err := h.Get(ctx, client.ObjectKey{Namespace: h.workspace, Name: name}, &script.Plan); err != nil {
			return fmt.Errorf("read plan %s/%s: %w: name one of the workspace, or a file", h.workspace, name, err)
		}
	}
	script.Plan.Spec.NodeSelector = nil // which nodes have which labels, the hub does not know
	script.Latest, script.Start = script.Plan.Status.LatestVersion, metav1.Now()
	duration := func(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }
	script.Durations = rehearsal.Durations{Prepare: duration(r.prepare), Drain: duration(r.drain), Upgrade: duration(r.upgrade)}
	var clusters v1.ClusterList
	if err := h.List(ctx, &clusters, h.inWorkspace()); err != nil {
		return fmt.Errorf("list clusters of %s: %w", h.workspace, err)
	}
	for i := range clusters.Items {
		script.Clusters = append(script.Clusters, simulated(&clusters.Items[i], r.nodes))
	}
	return nil
}

func simulated(c *v1.Cluster, nodes int) rehearsal.Cluster {
	if nodes == 0 && c.Status.Nodes != nil {
		nodes = int(c.Status.Nodes.Total)
	}
	s := rehearsal.Cluster{Name: c.Name, Labels: c.Labels}
	for i := range max(nodes, 1) {
		s.Nodes = append(s.Nodes, rehearsal.Node{Name: fmt.Sprintf("node-%d", i+1)})
	}
	return s
}
