// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
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

Exit codes: 0 complete, 1 stalled: a person must act, 2 an error, 130 interrupted. A hub that does not answer is tried again for a minute.`,
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

const (
	// watchAgain is the pause before a watch that has ended begins anew.
	watchAgain = 500 * time.Millisecond
	// redraw is how often what the clock alone changes is shown.
	redraw = time.Second
)

// watchPlan shows a plan until it is complete; stalled is errDenied. A hub that has answered once may be away for as long as commandLimit.
func (h *hub) watchPlan(ctx context.Context, name string, show *display) error {
	var answered time.Time
	for {
		plan, err := h.readPlan(ctx, name)
		if err == nil {
			var done bool
			if done, err = h.followPlan(ctx, plan, show); done {
				return err
			}
			answered = time.Now()
		}
		if err != nil {
			final := apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
			if final || ctx.Err() != nil || time.Since(answered) > commandLimit {
				return err
			}
			if err := show.trouble(err); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(watchAgain):
		}
	}
}

func (h *hub) readPlan(ctx context.Context, name string) (*v1.Plan, error) {
	plan := &v1.Plan{}
	err := h.Get(ctx, client.ObjectKey{Namespace: h.workspace, Name: name}, plan)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("read plan %s/%s: %w: name another workspace with -w", h.workspace, name, err)
	case meta.IsNoMatchError(err):
		return nil, fmt.Errorf("read plan %s/%s at %s: Drover is not installed there: name the hub with --kubeconfig or --context", h.workspace, name, h.config.Host)
	case err != nil:
		return nil, fmt.Errorf("read plan %s/%s: %w", h.workspace, name, err)
	}
	return plan, nil
}

// followPlan shows a plan and its changes until the watch ends, which it does when a request may take no longer. It is done when nothing is left to
// wait for.
func (h *hub) followPlan(ctx context.Context, plan *v1.Plan, show *display) (done bool, err error) {
	if done, err := show.plan(plan); done {
		return true, err
	}
	changes, err := h.Watch(ctx, &v1.PlanList{}, &client.ListOptions{Namespace: h.workspace,
		FieldSelector: fields.OneTermEqualSelector("metadata.name", plan.Name), Raw: &metav1.ListOptions{ResourceVersion: plan.ResourceVersion}})
	if err != nil {
		return false, fmt.Errorf("watch plan %s/%s: %w", h.workspace, plan.Name, err)
	}
	defer changes.Stop()
	clock := time.NewTicker(redraw)
	defer clock.Stop()
	for {
		select {
		case <-clock.C:
		case change, open := <-changes.ResultChan():
			if !open {
				return false, ctx.Err()
			}
			switch now := change.Object.(type) {
			case *v1.Plan:
				plan = now
			case *metav1.Status:
				if err := apierrors.FromObject(now); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
					return false, fmt.Errorf("watch plan %s/%s: %w", h.workspace, plan.Name, err)
				}
				return false, nil
			}
			if change.Type == watch.Deleted {
				return true, fmt.Errorf("plan %s/%s is deleted", h.workspace, plan.Name)
			}
		}
		if done, err := show.plan(plan); done {
			return true, err
		}
	}
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

NAME is a Plan of the workspace. FILE has a Plan, which need not be on the hub, or a script as hack/plan-steps plays it. A Plan is played from its
beginning, as if it were not paused and no node had it. The Clusters are those of the workspace, with as many nodes as they have; the hub does not
know which of them the plan selects, so all count. A Plan that names no Clusters is played on the nodes of the cluster itself.`,
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
	if documents := slices.DeleteFunc(strings.Split("\n"+string(text), "\n---"), blank); len(documents) > 1 {
		return nil, false, fmt.Errorf("read %s: it has %d documents: give preview one Plan at a time", name, len(documents))
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

// blank is whether a YAML document says nothing.
func blank(document string) bool {
	for line := range strings.Lines(document) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return false
		}
	}
	return true
}

// cast completes a script with what the hub knows: the Plan, if there is none yet, and the Clusters.
func (h *hub) cast(ctx context.Context, name string, script *rehearsal.Script, r *rehearsing) error {
	if script.Plan.Name == "" {
		plan, err := h.readPlan(ctx, name)
		if err != nil {
			return fmt.Errorf("%w, or a file that exists", err)
		}
		script.Plan = *plan
	}
	script.Plan.Spec.Paused = false // whoever has it paused wants to know what it will do
	if script.Plan.Spec.Channel != "" {
		script.Latest = cmp.Or(script.Plan.Status.LatestVersion, "unknown") // no step depends on which
	}
	script.Start = metav1.Now()
	duration := func(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }
	script.Durations = rehearsal.Durations{Prepare: duration(r.prepare), Drain: duration(r.drain), Upgrade: duration(r.upgrade)}
	if script.Plan.Spec.ClusterName == "" && script.Plan.Spec.ClusterSelector == nil {
		return h.castNodes(ctx, script, r)
	}
	return h.castClusters(ctx, script, r)
}

// castClusters takes the Clusters of the workspace, with as many nodes as they have.
func (h *hub) castClusters(ctx context.Context, script *rehearsal.Script, r *rehearsing) error {
	script.Plan.Spec.NodeSelector = nil // which nodes have which labels, the hub does not know
	var clusters v1.ClusterList
	if err := h.List(ctx, &clusters, h.inWorkspace()); err != nil {
		return fmt.Errorf("list clusters of %s: %w", h.workspace, err)
	}
	if len(clusters.Items) == 0 {
		return fmt.Errorf("list clusters of %s: there is none to play the plan on: name another workspace with -w", h.workspace)
	}
	for i := range clusters.Items {
		script.Clusters = append(script.Clusters, simulated(&clusters.Items[i], r.nodes))
	}
	return nil
}

// castNodes takes the nodes of the cluster itself: a plan without a target is for those.
func (h *hub) castNodes(ctx context.Context, script *rehearsal.Script, r *rehearsing) error {
	if r.nodes > 0 {
		script.Plan.Spec.NodeSelector = nil // simulated ones have no labels
		script.Clusters = []rehearsal.Cluster{simulated(&v1.Cluster{}, r.nodes)}
		return nil
	}
	nodes := &metav1.PartialObjectMetadataList{}
	nodes.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "NodeList"})
	if err := h.List(ctx, nodes); err != nil {
		return fmt.Errorf("list nodes at %s: %w: play the plan on simulated ones with --nodes", h.config.Host, err)
	}
	itself := rehearsal.Cluster{}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if key := v1.PlanLabel(script.Plan.Name); n.Labels[key] != v1.PlanDisabled {
			delete(n.Labels, key) // as if it did not have the plan
		}
		itself.Nodes = append(itself.Nodes, rehearsal.Node{Name: n.Name, Labels: n.Labels})
	}
	script.Clusters = []rehearsal.Cluster{itself}
	return nil
}

// maxNodes is how many nodes a member is believed to have: its agent says how many, and may say anything. Kubernetes is made for as many.
const maxNodes = 5000

func simulated(c *v1.Cluster, nodes int) rehearsal.Cluster {
	if nodes == 0 && c.Status.Nodes != nil {
		nodes = min(int(c.Status.Nodes.Total), maxNodes)
	}
	s := rehearsal.Cluster{Name: c.Name, Labels: c.Labels}
	for i := range max(nodes, 1) {
		s.Nodes = append(s.Nodes, rehearsal.Node{Name: fmt.Sprintf("node-%d", i+1)})
	}
	return s
}
