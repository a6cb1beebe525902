// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/status"
)

// removalPatience is how long a deleted Cluster waits for its agent to connect and uninstall itself.
const removalPatience = 20 * time.Second

// cleanupHint tells users how to clean up a member that could not be reached.
const cleanupHint = "to remove what Drover left there, run with the kubeconfig of that cluster: kubectl drover uninstall"

// remove handles a deleted Cluster. It waits for the agent for at most removalPatience.
func (r *Reconciler) remove(ctx context.Context, cluster *v1.Cluster, update *status.Update) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(cluster, v1.FinalizerUninstall) {
		return ctrl.Result{}, nil
	}
	in, err := r.gather(ctx, cluster)
	if err != nil {
		return ctrl.Result{}, err
	}
	deadline := cluster.DeletionTimestamp.Add(removalPatience)
	if !in.synced && deadline.Before(in.settled) {
		deadline = in.settled // the agent may be connected to another replica
	}
	if neverThere(in) || cluster.Spec.DeletionPolicy == v1.DeletionPolicyOrphan {
		return ctrl.Result{}, r.release(ctx, in)
	}
	// Check the response before the connection, because an agent that has uninstalled itself no longer has a tunnel.
	call := r.Members.StartUninstall(in.name)
	// a node agent cannot uninstall the agent
	undecided := call.Running || !call.Done() && (!in.member.Connected() || in.member.ByNodeAgent())
	if undecided && in.now.Before(deadline) {
		writeRemoving(in, update)
		// if the call ends or a tunnel opens, a reconcile is triggered earlier
		return ctrl.Result{RequeueAfter: deadline.Sub(in.now)}, nil
	}
	update.Event(uninstalled(call))
	return ctrl.Result{}, r.release(ctx, in)
}

// neverThere reports whether it is certain that no agent has ever run in the member.
func neverThere(in *input) bool {
	return in.identity == nil && !in.member.Connected() && in.synced && in.cluster.Status.ClusterUID == ""
}

// uninstalled returns an event with the result of the uninstallation. The Cluster is deleted regardless of the result.
func uninstalled(call members.Call) status.Event {
	switch {
	case errors.Is(call.Err, members.ErrNotConnected):
		return status.Event{Warning: true, Reason: v1.ReasonLeftBehind, Action: "Remove", Message: "The agent was not connected; " + cleanupHint}
	case call.Running:
		return status.Event{Warning: true, Reason: v1.ReasonLeftBehind, Action: "Uninstall", Message: "The agent did not answer; " + cleanupHint}
	case call.Err != nil:
		return status.Event{Warning: true, Reason: v1.ReasonLeftBehind, Action: "Uninstall",
			Message: fmt.Sprintf("The agent did not uninstall itself: %v; %s", call.Err, cleanupHint)}
	case len(call.Remaining) > 0:
		return status.Event{Warning: true, Reason: v1.ReasonLeftBehind, Action: "Uninstall",
			Message: "The agent could not remove everything: " + strings.Join(call.Remaining, "; ") + "; " + cleanupHint}
	}
	if len(call.Stale) > 0 {
		return status.Event{Warning: true, Reason: v1.ReasonLeftBehind, Action: "Uninstall",
			Message: "The agent removed itself, but the namespaces " + protocol.AgentNamespace + " and " + v1.PlansNamespace + " stay Terminating " +
				"(NamespaceDeletionDiscoveryFailure), and with them its ClusterRole, while no server serves " + strings.Join(call.Stale, ", ") +
				" in the member: delete the APIServices of these, or repair what they name"}
	}
	return status.Event{Reason: v1.ReasonUninstalled, Action: "Uninstall", Message: "The agent removed itself from the member"}
}

// release removes the finalizer. The Cluster's Secrets are then garbage-collected. The Cluster's tunnels are closed
// once the Cluster is gone.
func (r *Reconciler) release(ctx context.Context, in *input) error {
	if err := r.applyMetadata(ctx, in.cluster, factLabels(in), nil); client.IgnoreNotFound(err) != nil {
		return err
	}
	r.Members.Forget(in.name)
	return nil
}
