// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/registration"
)

// Revoker closes tunnels to this replica that do not belong to the current agent of their Cluster. It runs on every
// replica, so that it works even if the other replicas cannot reach this replica.
type Revoker struct {
	// Client reads from the cache. Live reads from the API server, so that an outdated cache never causes a tunnel to
	// be closed.
	Client  client.Reader
	Live    client.Reader
	Tunnels *members.Tunnels
}

// Reconcile closes a Cluster's tunnels that do not belong to the Cluster's current agent.
func (r *Revoker) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	name := req.NamespacedName
	for _, reader := range []client.Reader{r.Client, r.Live} {
		cluster := &v1.Cluster{}
		if err := reader.Get(ctx, name, cluster); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return ctrl.Result{}, fmt.Errorf("look up cluster %s: %w", name, err)
		}
		return ctrl.Result{}, r.dismiss(ctx, cluster)
	}
	r.Tunnels.Forget(name)
	return ctrl.Result{}, nil
}

// dismiss closes the tunnels of agents that do not belong to the Cluster. If the whole workspace is being deleted, the
// agent's Secret may be deleted before the Cluster. In that case, dismiss keeps the tunnel open, because the hub still
// needs it to uninstall the agent.
func (r *Revoker) dismiss(ctx context.Context, cluster *v1.Cluster) error {
	name := client.ObjectKeyFromObject(cluster)
	peers := r.Tunnels.Local(name)
	if len(peers) == 0 {
		return nil
	}
	var agent *registration.AgentIdentity
	var keep func(members.Peer) bool
	for i, reader := range []client.Reader{r.Client, r.Live} {
		if i > 0 { // the Cluster may have been replaced by now
			if err := reader.Get(ctx, name, cluster); err != nil {
				return client.IgnoreNotFound(err) // the event for the change triggers another reconcile
			}
		}
		var err error
		if agent, err = registration.AgentOf(ctx, reader, cluster); err != nil {
			return err
		}
		keep = rightful(cluster, agent)
		if !slices.ContainsFunc(peers, func(p members.Peer) bool { return !keep(p) }) {
			return nil
		}
	}
	workspace := &corev1.Namespace{}
	if err := r.Live.Get(ctx, types.NamespacedName{Name: name.Namespace}, workspace); err != nil {
		return fmt.Errorf("look up workspace %s: %w", name.Namespace, err)
	}
	if agent != nil || workspace.DeletionTimestamp.IsZero() {
		r.Tunnels.Disconnect(name, keep)
	}
	return nil
}

// rightful returns a function that reports whether a tunnel belongs to a Cluster's agent.
func rightful(cluster *v1.Cluster, agent *registration.AgentIdentity) func(members.Peer) bool {
	return func(p members.Peer) bool {
		return agent != nil && p.Key == registration.KeyID(agent.PublicKey) && p.Cluster.UID == string(cluster.UID)
	}
}
