// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plans

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

const (
	// pauseLimit is the default of --timeout. A connected member pauses within a second.
	pauseLimit = 30 * time.Second
	// resumeLimit is the time limit for resuming the plan. It also applies after the command has been interrupted.
	resumeLimit = 15 * time.Second
)

func newRetry(o *cli.Options) *cobra.Command {
	limit := pauseLimit
	c := &cobra.Command{
		Use: "retry NAME", Short: "Run a plan again on the nodes that failed",
		Long: `Run a plan again on the nodes that failed, with all their attempts. Nodes that wait for their
next attempt begin at once. Complete nodes keep their result.

The command sets spec.paused, waits until the members with failures have paused, and restores
spec.paused as it was. Meanwhile the plan starts nothing new in any member, and upgrades that are
running finish. You need the right to update the Plan. Do not pause the Plan meanwhile, because
this command resumes it.

A member that is disconnected keeps its failure, and so does a member with a node that is at work
and not ready. Run the command again after the cause is repaired.

Exit codes: 0 the failed nodes are tried again, or there are none; 2 an error occurred, or a member
keeps its failure.`,
		Example: `  kubectl drover plan retry k3s-server -w team-a
  kubectl drover plan watch k3s-server -w team-a`,
		Args:              cli.Arguments(1, "NAME"),
		ValidArgsFunction: completePlans(o, cobra.ShellCompDirectiveNoFileComp),
	}
	change := cli.BindChange(c)
	c.Flags().DurationVar(&limit, "timeout", pauseLimit, "How long to wait until the members have paused")
	c.RunE = func(c *cobra.Command, args []string) error {
		if limit <= 0 {
			return fmt.Errorf("--timeout is %s: it must be longer than 0s", limit)
		}
		return o.OnHub(c, cli.CommandLimit+limit, func(ctx context.Context, h *cli.Hub) error {
			return retryPlan(ctx, h, change, args[0], limit)
		})
	}
	return c
}

// retryPlan pauses a plan, waits until its failed members have paused, and resumes it.
func retryPlan(ctx context.Context, h *cli.Hub, change *cli.Change, name string, limit time.Duration) error {
	plan, err := readPlan(ctx, h, name)
	if err != nil {
		return err
	}
	if plan.Spec.Paused {
		return alreadyPaused(plan)
	}
	if !failed(&plan.Status) {
		change.Explain("No node of plan %s/%s has failed: there is nothing to retry.\n", plan.Namespace, cli.Plain(name))
		return change.Make(h, plan, "unchanged: no node has failed", nothing)
	}
	var kept error
	err = change.Make(h, plan, "retried", func(w client.Client) error {
		since, err := pause(ctx, h, w, plan)
		if err != nil || !change.Real() {
			return err
		}
		keep, waited := awaitPause(ctx, h, plan, since.generation, limit)
		// The plan must be resumed even if the user interrupts the command.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resumeLimit)
		defer cancel()
		if err := restore(ctx, h, w, plan, since); err != nil {
			return errors.Join(waited, fmt.Errorf("resume plan %s/%s: %w: if it is still paused, run \"kubectl drover plan "+
				"resume %s\"", h.Workspace, name, err, name))
		}
		kept = keep
		return waited
	})
	return errors.Join(err, kept)
}

func nothing(client.Client) error { return nil }

// failed reports whether a plan has nodes whose last attempt failed.
func failed(s *v1.PlanStatus) bool {
	return len(s.Failures) > 0 || s.Clusters != nil && s.Clusters.Failed > 0 || s.Nodes != nil && s.Nodes.Failed > 0
}

// alreadyPaused returns the error for a plan that someone else has paused.
func alreadyPaused(plan *v1.Plan) error {
	return fmt.Errorf("plan %s/%s is paused: \"kubectl drover plan resume %s\" continues it, which also tries failed "+
		"nodes again", plan.Namespace, plan.Name, plan.Name)
}

// errChanged is returned if another client has changed the plan since this command changed it.
var errChanged = errors.New("another client has changed the plan in the meantime, and the command leaves it as it is")

// paused is the result of a pause.
type paused struct {
	// generation is the plan's generation after the pause.
	generation int64
	// before is the previous value of spec.paused: false, or nil if the field was not set. The difference matters when
	// the value is restored, because the plan must then match a manifest that sets the default explicitly.
	before any
}

// pause pauses a plan, unless someone else pauses it first.
func pause(ctx context.Context, h *cli.Hub, w client.Client, plan *v1.Plan) (since paused, err error) {
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the status changes while nodes fail
		stored := &unstructured.Unstructured{}
		stored.SetGroupVersionKind(v1.GroupVersion.WithKind("Plan"))
		if err := h.Get(ctx, client.ObjectKeyFromObject(plan), stored); err != nil {
			return fmt.Errorf("read plan %s/%s: %w", plan.Namespace, plan.Name, err)
		}
		since = paused{}
		is, found, err := unstructured.NestedBool(stored.Object, "spec", "paused")
		switch {
		case err != nil:
			return err
		case stored.GetUID() != plan.UID:
			return errChanged
		case is:
			return alreadyPaused(plan)
		case found:
			since.before = false
		}
		now, err := setPaused(ctx, w, plan, stored.GetResourceVersion(), true)
		if err != nil && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown { // no response was received
			return fmt.Errorf("pause plan %s/%s, which may be paused now: %w: if it is, run \"kubectl drover plan resume "+
				"%s\"", plan.Namespace, plan.Name, err, plan.Name)
		}
		since.generation = now
		return err
	})
	return since, err
}

// setPaused sets spec.paused in the given version of a plan, or removes the field if value is nil, and returns the new
// generation.
func setPaused(ctx context.Context, w client.Client, plan *v1.Plan, version string, value any) (int64, error) {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": version}, "spec": map[string]any{"paused": value},
	})
	if err != nil {
		return 0, err
	}
	now := plan.DeepCopy()
	err = w.Patch(ctx, now, client.RawPatch(types.MergePatchType, patch))
	return now.Generation, err
}

// restore sets spec.paused back to its value before the pause, or removes the field if it was not set. If another
// client has changed the spec since then, restore does not change it, because the other client's user may want the plan
// to be paused.
func restore(ctx context.Context, h *cli.Hub, w client.Client, plan *v1.Plan, since paused) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the status changes while members pause
		now := &v1.Plan{}
		if err := h.Get(ctx, client.ObjectKeyFromObject(plan), now); err != nil {
			return err
		}
		switch {
		case now.UID == plan.UID && !now.Spec.Paused:
			return nil
		case now.UID != plan.UID || now.Generation != since.generation:
			return errChanged
		}
		_, err := setPaused(ctx, w, now, now.ResourceVersion, since.before)
		return err
	})
}

// awaitPause waits until Drover has paused all members with failures. generation is the plan's generation after the
// pause. The keep result lists the members that have not paused and therefore keep their failures.
func awaitPause(
	ctx context.Context, h *cli.Hub, plan *v1.Plan, generation int64, limit time.Duration,
) (keep, err error) {
	with := withFailures(&plan.Status)
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	left := []string{"Drover has not looked at the plan yet"}
	err = wait.PollUntilContextCancel(waiting, cli.LookInterval, true, func(ctx context.Context) (done bool, err error) {
		now, err := readPlan(ctx, h, plan.Name)
		switch {
		case err != nil && ctx.Err() != nil:
			return false, nil
		case err != nil:
			return false, err
		case !now.Spec.Paused:
			return false, errors.New("another client resumed the plan before its members had paused. A GitOps tool may own " +
				"spec.paused: run the command again, or set paused in its source and remove it again")
		case now.Status.ObservedGeneration < generation:
			return false, nil
		}
		done, left = pausedMembers(now, with)
		return done, nil
	})
	if waiting.Err() != nil && ctx.Err() == nil { // the time limit has expired
		err = nil
	}
	if err == nil && len(left) > 0 {
		keep = fmt.Errorf("these failures stay: %s", strings.Join(left, "; "))
	}
	return keep, err
}

// withFailures returns the members that have a node whose last attempt failed. It returns only members that the status
// lists.
func withFailures(s *v1.PlanStatus) []string {
	var names []string
	for i := range s.Failures {
		names = append(names, s.Failures[i].Cluster)
	}
	for i := range s.Members {
		if m := &s.Members[i]; m.Reason == v1.ReasonNodeFailed {
			names = append(names, m.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// pausedMembers reports whether each member with failures has paused or cannot pause. The left result lists the members
// that have not paused. For a plan without a target, which has no members, it checks the reason of the plan itself.
func pausedMembers(plan *v1.Plan, with []string) (done bool, left []string) {
	s := &plan.Status
	if s.Clusters == nil {
		if reason, message := stateOf(plan); reason != v1.ReasonPaused {
			return false, []string{message}
		}
		return true, nil
	}
	away := 0
	for i := range s.Members {
		m := &s.Members[i]
		// The status lists only some of the members with failures. The other members appear after these members have
		// paused.
		if m.Reason == v1.ReasonPaused || m.Reason != v1.ReasonNodeFailed && !slices.Contains(with, m.Name) {
			continue
		}
		if m.Reason == v1.ReasonMembersAway {
			away++
		}
		left = append(left, cli.Plain(m.Name+": "+m.Message))
	}
	// The status lists failed members first, but not all of them.
	if more := int(s.Clusters.Failed) - v1.MaxPlanMembers; more > 0 {
		return false, append(left, fmt.Sprintf("%d more", more))
	}
	return len(left) == away, left
}
