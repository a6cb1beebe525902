// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plans contains the commands that show the progress of plans, check and simulate them, approve their waves,
// override their checks, and pause, resume and retry them.
package plans

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/await"
)

// New returns the command "plan".
func New(o *cli.Options) *cobra.Command {
	c := &cobra.Command{Use: "plan", Short: "Follow, check, preview, approve, override, pause and retry plans"}
	c.PersistentFlags().StringVarP(&o.Workspace, "workspace", "w", "", cli.WorkspaceUsage)
	cli.Complete(c, "workspace", o.CompleteWorkspaces)
	c.AddCommand(newWatch(o), newCheck(o), newPreview(o), newPause(o), newResume(o), newRetry(o), newApprove(o),
		newOverride(o))
	return c
}

func newWatch(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use: "watch NAME", Short: "Show the progress of a plan until it is complete or stalled",
		Long: `Show the progress of a plan until it is complete or stalled.

On a terminal, the picture is redrawn on each change. In a pipe, each change is written as one line.

Exit codes: 0 the plan is complete; 1 the plan is stalled and a person must act; 2 an error
occurred; 130 the command was interrupted. If the hub does not answer, the command tries again for a
minute.`,
		Example: "  kubectl drover plan watch k3s-server -w team-a",
		Args:    cli.Arguments(1, "NAME"),

		ValidArgsFunction: completePlans(o, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(c *cobra.Command, args []string) error {
			hub, err := o.HubToRead()
			if err != nil {
				return err
			}
			return watchPlan(c.Context(), hub, args[0], newDisplay(c.OutOrStdout()))
		},
	}
}

const (
	// watchAgain is the delay before a watch is restarted.
	watchAgain = 500 * time.Millisecond
	// redraw is the interval at which the times in the display are updated.
	redraw = time.Second
)

// watchPlan shows a plan until it is complete. It returns ErrDenied if the plan is stalled. After the hub has responded
// once, watchPlan tolerates hub outages of up to CommandLimit.
func watchPlan(ctx context.Context, h *cli.Hub, name string, show *display) error {
	var answered time.Time
	for {
		plan, err := readPlan(ctx, h, name)
		if err == nil {
			var done bool
			if done, err = followPlan(ctx, h, plan, show); done {
				return err
			}
			answered = time.Now()
		}
		if err != nil {
			final := apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
			if final || ctx.Err() != nil || time.Since(answered) > cli.CommandLimit {
				return err
			}
			if err := show.unreadable(err); err != nil {
				return err
			}
		}
		if !await.Time(ctx, watchAgain) {
			return ctx.Err()
		}
	}
}

func readPlan(ctx context.Context, h *cli.Hub, name string) (*v1.Plan, error) {
	plan := &v1.Plan{}
	err := h.Get(ctx, client.ObjectKey{Namespace: h.Workspace, Name: name}, plan)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("read plan %s/%s: %w: use another workspace with -w", h.Workspace, name, err)
	case meta.IsNoMatchError(err):
		return nil, fmt.Errorf("read plan %s/%s at %s: Drover is not installed there: select the hub with --kubeconfig or "+
			"--context", h.Workspace, name, h.Config.Host)
	case err != nil:
		return nil, fmt.Errorf("read plan %s/%s: %w", h.Workspace, name, err)
	}
	return plan, nil
}

// followPlan shows a plan and its changes until the watch ends. The watch ends no later than the request's timeout. The
// done result is true if the command must end.
func followPlan(ctx context.Context, h *cli.Hub, plan *v1.Plan, show *display) (done bool, err error) {
	if done, err := show.plan(plan); done {
		return true, err
	}
	changes, err := h.Watch(ctx, &v1.PlanList{}, &client.ListOptions{Namespace: h.Workspace,
		FieldSelector: fields.OneTermEqualSelector("metadata.name", plan.Name), Raw: &metav1.ListOptions{ResourceVersion: plan.ResourceVersion}})
	if err != nil {
		return false, fmt.Errorf("watch plan %s/%s: %w", h.Workspace, plan.Name, err)
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
					return false, fmt.Errorf("watch plan %s/%s: %w", h.Workspace, plan.Name, err)
				}
				return false, nil
			}
			if change.Type == watch.Deleted {
				return true, fmt.Errorf("plan %s/%s was deleted", h.Workspace, plan.Name)
			}
		}
		if done, err := show.plan(plan); done {
			return true, err
		}
	}
}

// completePlans completes the first argument with the names of the workspace's Plans.
func completePlans(o *cli.Options, otherwise cobra.ShellCompDirective) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		found, _ := o.CompleteNames("Plan")(c, args, start)
		return found, otherwise
	}
}
