// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

// NewRestored returns the command "restored".
func NewRestored(o *cli.Options) *cobra.Command {
	var all, yes, more bool
	c := &cobra.Command{
		Use:   "restored CLUSTER|host/NAME... | --all",
		Short: "Show and confirm the changes that a restored hub would make in members and hosts",
		Long: `Show and confirm the changes that a restored hub would make in members and hosts.

A hub that was restored from a backup has lost every change since the backup. If the agent of a
member knows newer objects than the hub, the hub changes nothing in that member until you confirm
it. This command lists the changes: objects to add, which were deleted after the backup or never
arrived; objects to change; and objects to remove, which were created after the backup. Correct the
objects on the hub until you agree with the list: delete bindings again that were deleted before,
and recreate missing objects. The list is updated within seconds.

A Host is listed with the Secret of its plan. "remove" means that the machine is cleaned: everything
that the plan installed is removed. If "change" is listed too, the Host then gets the plan of
another owner.

With --yes, the command confirms the listed changes. You need the right to update clusters/agent or
hosts/agent. Without --yes, nothing is changed. The status of a Cluster names the first 50 changes
of each kind. If there are more, --yes fails unless you add --more, which also confirms the changes
that are not named.

Exit codes: 0 nothing is waiting, or everything that you named is confirmed; 1 something is waiting;
2 an error occurred.`,
		Example: `  kubectl drover restored --all
  kubectl drover restored prod-eu host/rack1 -w team-a --yes`,
		RunE: func(c *cobra.Command, names []string) error {
			if all == (len(names) > 0) {
				return errors.New("no Clusters or Hosts are given: name some, or use --all")
			}
			return o.OnHub(c, cli.CommandLimit, func(ctx context.Context, h *cli.Hub) error {
				waiting, err := unconfirmed(ctx, h, o.Workspace, names)
				if err != nil {
					return err
				}
				return confirm(ctx, h, c.OutOrStdout(), waiting, consent{yes, more})
			})
		},
		ValidArgsFunction: o.CompleteNames("Cluster"),
	}
	bindWorkspace(c, o)
	c.Flags().BoolVar(&all, "all", false, "Show all Clusters and Hosts of the hub")
	c.Flags().BoolVar(&yes, "yes", false, "Confirm the listed changes")
	c.Flags().BoolVar(&more, "more", false, "With --yes, also confirm the changes that are counted but not named")
	return c
}

// consent specifies the changes that the user confirms.
type consent struct {
	listed bool
	more   bool // also confirm the changes that the status counts but does not list
}

// hostArgument is the prefix of an argument that names a Host instead of a Cluster.
const hostArgument = "host/"

// waiter is a Cluster or Host that is waiting for confirmation.
type waiter struct {
	client.Object
	restore *v1.RestoreStatus
	name    string // includes the namespace
}

func waitingCluster(c *v1.Cluster) waiter {
	return waiter{c, c.Status.Restore, c.Namespace + "/" + c.Name}
}

func waitingHost(h *v1.Host) waiter {
	return waiter{h, h.Status.Restore, h.Namespace + "/" + hostArgument + h.Name}
}

// unconfirmed returns the Clusters and Hosts with the given names that are waiting for confirmation. If no names are
// given, it searches the whole workspace, or all workspaces if workspace is "".
func unconfirmed(ctx context.Context, h *cli.Hub, workspace string, names []string) (waiting []waiter, err error) {
	if len(names) == 0 {
		waiting, err = allRestored(ctx, h, workspace)
	}
	for _, name := range names {
		var one waiter
		if one, err = restoredOne(ctx, h, name); err != nil {
			return nil, fmt.Errorf("read %s/%s: %w", h.Workspace, name, err)
		}
		waiting = append(waiting, one)
	}
	return slices.DeleteFunc(waiting, func(w waiter) bool { return w.restore == nil }), err
}

func restoredOne(ctx context.Context, h *cli.Hub, name string) (waiter, error) {
	if name, ok := strings.CutPrefix(name, hostArgument); ok {
		host := &v1.Host{}
		err := h.Get(ctx, types.NamespacedName{Namespace: h.Workspace, Name: name}, host)
		return waitingHost(host), err
	}
	cluster := &v1.Cluster{}
	err := h.Get(ctx, types.NamespacedName{Namespace: h.Workspace, Name: name}, cluster)
	return waitingCluster(cluster), err
}

func allRestored(ctx context.Context, h *cli.Hub, workspace string) ([]waiter, error) {
	var waiting []waiter
	clusters, hosts := v1.ClusterList{}, v1.HostList{}
	if err := h.List(ctx, &clusters, client.InNamespace(workspace)); err != nil {
		return nil, fmt.Errorf("list clusters: %w", err)
	}
	for i := range clusters.Items {
		waiting = append(waiting, waitingCluster(&clusters.Items[i]))
	}
	if err := h.List(ctx, &hosts, client.InNamespace(workspace)); err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("list hosts: %w", err) // older versions of the hub do not have Hosts
	}
	for i := range hosts.Items {
		waiting = append(waiting, waitingHost(&hosts.Items[i]))
	}
	return waiting, nil
}

// confirm prints the changes that are waiting for confirmation, and confirms the changes that the user has agreed to.
func confirm(ctx context.Context, h *cli.Hub, out io.Writer, waiting []waiter, user consent) error {
	var errs []error
	confirmed := 0
	for _, one := range waiting {
		if _, err := io.WriteString(out, describeRestore(one)); err != nil {
			return fmt.Errorf("print the list: %w", err)
		}
		if !user.listed {
			continue
		}
		if unnamed(one.restore) && !user.more {
			errs = append(errs, fmt.Errorf("confirm the changes in %s: the status does not name all of them: reduce them by correcting the hub, or add --more", one.name))
			continue
		}
		if err := confirmOne(ctx, h, one); err != nil {
			errs = append(errs, fmt.Errorf("confirm the changes in %s: %w", one.name, err))
			continue
		}
		confirmed++
	}
	if err := printHeldPlans(ctx, h, out, waiting); err != nil {
		errs = append(errs, err)
	}
	text := fmt.Sprintf("Confirmed: %d.", confirmed)
	switch {
	case len(waiting) == 0:
		text = "No member waits for a confirmation. The hub does not know about members that are not connected."
	case !user.listed:
		text = fmt.Sprintf("Nothing was changed. To confirm the changes in %d members, run the command again with --yes.\n"+
			"Not listed: agents that were revoked after the backup, which the hub admits again. See kubectl drover revoked.", len(waiting))
		errs = append(errs, cli.ErrDenied)
	}
	_, err := fmt.Fprintln(out, text)
	return errors.Join(append(errs, err)...)
}

// printHeldPlans prints the Plans that are held back. Such a Plan does not start in any member until the changes in all
// of its members have been confirmed.
func printHeldPlans(ctx context.Context, h *cli.Hub, out io.Writer, waiting []waiter) error {
	var held []string
	workspaces := sets.New[string]()
	for _, one := range waiting {
		if _, isHost := one.Object.(*v1.Host); !isHost {
			workspaces.Insert(one.GetNamespace())
		}
	}
	for _, workspace := range sets.List(workspaces) {
		var plans v1.PlanList
		if err := h.List(ctx, &plans, client.InNamespace(workspace)); err != nil {
			return fmt.Errorf("list the Plans of %s that may wait: %w", workspace, err)
		}
		for i := range plans.Items {
			if complete := meta.FindStatusCondition(plans.Items[i].Status.Conditions, v1.ConditionComplete); complete != nil && complete.Reason == v1.ReasonHubRestored {
				held = append(held, workspace+"/"+plans.Items[i].Name)
			}
		}
	}
	if len(held) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(out, "Plans that begin in no member until all their members are confirmed: %s. Delete the Plans that should not run.\n\n", strings.Join(held, ", "))
	return err
}

// confirmOne annotates a Cluster or Host with the checkpoint that was listed. It fails if different changes are waiting
// for confirmation by then.
func confirmOne(ctx context.Context, h *cli.Hub, one waiter) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": one.GetResourceVersion(), "annotations": map[string]string{v1.AnnotationRestored: one.restore.Checkpoint}}})
	if err != nil {
		return err
	}
	return h.Patch(ctx, one.Object, client.RawPatch(types.MergePatchType, patch))
}

// describeRestore describes what the hub would change in a member or on a host.
func describeRestore(one waiter) string {
	var text strings.Builder
	r := one.restore
	fmt.Fprintf(&text, "%s: %s\n", one.name, cli.Visible(r.Summary))
	for _, change := range changesOf(r) {
		for _, id := range change.sets {
			fmt.Fprintf(&text, "  %-6s  %s\n", change.verb, cli.Visible(id))
		}
		if change.more > 0 {
			fmt.Fprintf(&text, "  %-6s  and %d more\n", change.verb, change.more)
		}
	}
	if host, ok := one.Object.(*v1.Host); ok {
		if why := meta.FindStatusCondition(host.Status.Conditions, v1.ConditionRestoreConfirmed); why != nil {
			fmt.Fprintf(&text, "  %s\n", cli.Visible(why.Message))
		}
	}
	return text.String() + "\n"
}

// setChange describes one type of change. It holds the sets that the status lists, and the number of sets that the
// status omits.
type setChange struct {
	verb string
	sets []string
	more int
}

func changesOf(r *v1.RestoreStatus) []setChange {
	changes := []setChange{{"add", r.Add, 0}, {"change", r.Change, 0}, {"remove", r.Remove, 0}}
	counts := strings.Fields(r.Summary) // "2 to add, 0 to change, 1 to remove"
	for i := range changes {
		if at := 3 * i; at < len(counts) {
			if n, err := strconv.Atoi(counts[at]); err == nil {
				changes[i].more = max(0, n-len(changes[i].sets))
			}
		}
	}
	return changes
}

// unnamed reports whether there are more changes than the status lists.
func unnamed(r *v1.RestoreStatus) bool {
	return slices.ContainsFunc(changesOf(r), func(c setChange) bool { return c.more > 0 })
}
