// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package project

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/tenancy"
)

// MemberDeliverer delivers sets to members. It must be notified when members change or are removed. The delivery store
// implements it.
type MemberDeliverer interface {
	Replace(delivery.Key, map[types.NamespacedName]*set.Set)
	Changed(member types.NamespacedName)
	Forget(member types.NamespacedName)
}

// Guards delivers the policies that guard projects to every member. When a Cluster has been deleted, Guards also
// removes its member from the delivery store. Use NewGuards to create a Guards.
type Guards struct {
	clusters   client.Reader
	deliveries MemberDeliverer
	set        *set.Set // the same for all members
}

// NewGuards returns a Guards that reads Clusters from a cache.
func NewGuards(clusters client.Reader, deliveries MemberDeliverer) (*Guards, error) {
	content, err := tenancy.Guards()
	if err != nil {
		return nil, err
	}
	set, err := set.New(set.Guards, nil, content)
	if err != nil {
		return nil, err
	}
	return &Guards{clusters: clusters, deliveries: deliveries, set: set}, nil
}

// Reconcile delivers the guards to one member, or does nothing if the member's Cluster is being deleted.
func (g *Guards) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	key := delivery.Key{Kind: set.Guards, Namespace: req.Namespace, Name: req.Name}
	cluster := &v1.Cluster{}
	err := g.clusters.Get(ctx, req.NamespacedName, cluster)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("read cluster %s: %w", req.NamespacedName, err)
	}
	if err != nil || !cluster.DeletionTimestamp.IsZero() {
		g.deliveries.Forget(req.NamespacedName)
		g.deliveries.Replace(key, nil)
		return ctrl.Result{}, nil
	}
	g.deliveries.Changed(req.NamespacedName) // the profile may have changed, and it determines what is delivered
	g.deliveries.Replace(key, map[types.NamespacedName]*set.Set{req.NamespacedName: g.set})
	return ctrl.Result{}, nil
}
