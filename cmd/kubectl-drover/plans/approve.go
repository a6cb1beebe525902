// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plans

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/rollout"
)

// approvalManager is the field manager of approvals and overrides. Its name must not begin with "kubectl", because Flux
// removes the fields of such managers from the objects that it applies.
const approvalManager = "drover-approval"

// approveOptions holds the flags of "plan approve".
type approveOptions struct {
	*cli.Options
	wave, by string
	yes      bool
}

func newApprove(o *cli.Options) *cobra.Command {
	a := &approveOptions{Options: o}
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
		Args:              cli.Arguments(1, "NAME"),
		ValidArgsFunction: completePlans(o, cobra.ShellCompDirectiveNoFileComp),
	}
	change := cli.BindChange(c)
	cli.BindYes(c, &a.yes)
	c.Flags().StringVar(&a.wave, "wave", "", "The wave (default: the first that waits for approval)")
	c.Flags().StringVar(&a.by, "approved-by", "", "The user who approves (default: you)")
	cli.Complete(c, "wave", a.completeWaves)
	cli.Complete(c, "approved-by", cobra.NoFileCompletions)
	c.RunE = func(c *cobra.Command, args []string) error { return a.approve(c, change, args[0]) }
	return c
}

func (a *approveOptions) approve(c *cobra.Command, change *cli.Change, name string) error {
	var plan *v1.Plan
	var wave *v1.WaveStatus
	var question string
	err := a.OnHub(c, cli.CommandLimit, func(ctx context.Context, h *cli.Hub) (err error) {
		if plan, err = readPlan(ctx, h, name); err != nil {
			return err
		}
		if wave, err = toApprove(plan, a.wave); err != nil || wave == nil {
			return err
		}
		if a.by == "" {
			if a.by, err = self(ctx, h); err != nil {
				return err
			}
		}
		question, err = describeApproval(ctx, h, plan, wave)
		return err
	})
	if err != nil {
		return err
	}
	if wave != nil && change.Real() {
		if err := cli.Confirm(c, a.yes, question); err != nil {
			return err
		}
	}
	return a.OnHub(c, cli.CommandLimit, func(ctx context.Context, h *cli.Hub) error {
		if wave == nil {
			return change.Make(h, plan, "unchanged: it waits for no approval", nothing)
		}
		entry := v1.Approval{Wave: wave.Name, Revision: wave.Approval.Revision, ApprovedBy: a.by}
		before := plan.DeepCopy()
		add := func(p *v1.Plan) { setApproval(p, entry) }
		add(plan)
		return change.Make(h, plan, "approved for wave "+wave.Name, func(w client.Client) error {
			return addDecision(ctx, h, w, before, plan, add)
		})
	})
}

// toApprove returns the wave to approve: the wave with the given name or, if no name is given, the first wave without
// an approval. It returns nil if the wave has been approved, or if there is no such wave.
func toApprove(plan *v1.Plan, name string) (*v1.WaveStatus, error) {
	if err := observed(plan); err != nil {
		return nil, err
	}
	var names []string
	for i := range plan.Status.Waves {
		w := &plan.Status.Waves[i]
		if w.Approval == nil {
			continue
		}
		names = append(names, w.Name)
		switch {
		case name != "" && w.Name != name || name == "" && w.Approval.ApprovedBy != "":
		case w.Approval.ApprovedBy != "":
			return nil, nil
		case w.Approval.Revision == "":
			_, message := stateOf(plan)
			return nil, fmt.Errorf("plan %s/%s has no revision to approve: %s", plan.Namespace, plan.Name, message)
		default:
			return w, nil
		}
	}
	switch {
	case len(names) == 0:
		return nil, fmt.Errorf("no wave of plan %s/%s requires approval: set approval: Required in spec.rollout.waves",
			plan.Namespace, plan.Name)
	case name != "" && !slices.Contains(names, name):
		return nil, fmt.Errorf("plan %s/%s has no wave %q that requires approval: use one of %s", plan.Namespace, plan.Name,
			cli.Plain(name), cli.Plain(strings.Join(names, ", ")))
	}
	return nil, nil
}

// observed returns an error if the status describes an earlier generation of the plan.
func observed(plan *v1.Plan) error {
	if plan.Status.ObservedGeneration != plan.Generation {
		return fmt.Errorf("plan %s/%s was changed, and Drover has not looked at the change yet: try again", plan.Namespace,
			plan.Name)
	}
	return nil
}

// self returns the user's name according to the hub's API server.
func self(ctx context.Context, h *cli.Hub) (string, error) {
	c, err := authenticationclient.NewForConfig(h.Config)
	if err != nil {
		return "", fmt.Errorf("read your user name at %s: %w", h.Config.Host, err)
	}
	me, err := c.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("read your user name at %s: %w: set it with --approved-by or --overridden-by", h.Config.Host,
			err)
	}
	return me.Status.UserInfo.Username, nil
}

// describeApproval returns the question that the user has to confirm. It describes the work and the members.
func describeApproval(ctx context.Context, h *cli.Hub, plan *v1.Plan, wave *v1.WaveStatus) (string, error) {
	var clusters v1.ClusterList
	if err := h.List(ctx, &clusters, h.InWorkspace()); err != nil {
		return "", fmt.Errorf("list clusters of %s: %w", h.Workspace, err)
	}
	names, err := membersOf(plan, wave.Name, clusters.Items)
	if err != nil {
		return "", err
	}
	where := "no cluster yet"
	if len(names) > 0 {
		where = fmt.Sprintf("%s (%s)", rollout.Clusters(len(names)), listed(names))
	}
	return fmt.Sprintf("approve wave %s of plan %s/%s: %s with version %s, on %s, revision %s, and with all other "+
		"settings that \"kubectl get dplan %s -n %s -o yaml\" shows", wave.Name, plan.Namespace, plan.Name,
		workOf(&plan.Spec.NodeWork), plan.Status.LatestVersion, where, wave.Approval.Revision, plan.Name,
		plan.Namespace), nil
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

// membersOf returns the names of the Clusters in a wave.
func membersOf(plan *v1.Plan, wave string, clusters []v1.Cluster) ([]string, error) {
	var all []rollout.Cluster
	for i := range clusters {
		c := &clusters[i]
		selected, err := plan.Spec.Target().Selects(c.Name, c.Labels)
		if err != nil {
			return nil, err
		}
		all = append(all, rollout.Cluster{Name: c.Name, Labels: c.Labels, Selected: selected})
	}
	slices.SortFunc(all, func(a, b rollout.Cluster) int { return strings.Compare(a.Name, b.Name) })
	fleet, err := rollout.NewFleet(all, rollout.FleetPlan{Name: plan.Name, Pace: rollout.PaceOf(&plan.Spec)}, time.Now())
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range all {
		if fleet.WaveOf(i) == wave {
			names = append(names, all[i].Name)
		}
	}
	return names, nil
}

// setApproval adds an approval to a plan. It replaces an earlier approval of the same wave, and removes the
// approvals of waves that no longer exist, because the number of approvals is limited.
func setApproval(plan *v1.Plan, entry v1.Approval) {
	waves := []string{rollout.Rest}
	if plan.Spec.Rollout != nil {
		for _, w := range plan.Spec.Rollout.Waves {
			waves = append(waves, w.Name)
		}
	}
	approvals := slices.DeleteFunc(slices.Clone(plan.Spec.Approvals), func(a v1.Approval) bool {
		return a.Wave == entry.Wave || !slices.Contains(waves, a.Wave)
	})
	plan.Spec.Approvals = append(approvals, entry)
}

// addDecision writes an approval or an override. If another client changes the plan in the meantime, addDecision adds
// the same decision to the changed plan. The decision then counts only if the plan's revision is still the same.
func addDecision(ctx context.Context, h *cli.Hub, w client.Client, before, plan *v1.Plan, add func(*v1.Plan)) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now := &v1.Plan{}
		if err := h.Get(ctx, client.ObjectKeyFromObject(before), now); err != nil {
			return err
		}
		if now.UID != before.UID {
			return errors.New("it was deleted and created again")
		}
		read := now.DeepCopy()
		add(now)
		patch := client.MergeFromWithOptions(read, client.MergeFromWithOptimisticLock{})
		if err := w.Patch(ctx, now, patch, client.FieldOwner(approvalManager)); err != nil {
			return err
		}
		now.DeepCopyInto(plan)
		return nil
	})
	if err != nil {
		return fmt.Errorf("change plan %s/%s: %w", before.Namespace, before.Name, err)
	}
	return nil
}

// completeWaves completes --wave with the waves that wait for approval.
func (a *approveOptions) completeWaves(c *cobra.Command, args []string, start string) ([]string,
	cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(c.Context(), cli.CompletionLimit)
	defer cancel()
	var names []string
	if h, err := a.HubToRead(); err == nil && len(args) == 1 {
		if plan, err := readPlan(ctx, h, args[0]); err == nil {
			for _, w := range plan.Status.Waves {
				if w.Approval != nil && w.Approval.ApprovedBy == "" {
					names = append(names, w.Name)
				}
			}
		}
	}
	return cli.Beginning(start, names)
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
