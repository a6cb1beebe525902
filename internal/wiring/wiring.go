// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wiring adds controllers to a manager, each with the triggers that request its reconciles.
package wiring

import (
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Controller is a controller that is to run.
type Controller struct {
	Name       string
	Reconciler reconcile.Reconciler
	// Workers is how many reconciles run at once. Zero means one.
	Workers int
	// EveryReplica has the controller run on all replicas instead of on the leader only.
	EveryReplica bool
	// Triggers request reconciles.
	Triggers []Trigger
}

// Add adds controllers to a manager.
func Add(mgr ctrl.Manager, controllers []Controller) error {
	for _, c := range controllers {
		elected := !c.EveryReplica
		b := ctrl.NewControllerManagedBy(mgr).Named(c.Name).
			WithOptions(controller.Options{MaxConcurrentReconciles: max(c.Workers, 1), NeedLeaderElection: &elected})
		for _, trigger := range c.Triggers {
			trigger(b)
		}
		if err := b.Complete(c.Reconciler); err != nil {
			return fmt.Errorf("set up controller %s: %w", c.Name, err)
		}
	}
	return nil
}
