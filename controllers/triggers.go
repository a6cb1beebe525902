// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/wiring"
)

// onAffecting returns a trigger that enqueues the objects that a change to another object affects.
func (s shared) onAffecting(object client.Object, affected index.Lookup) wiring.Trigger {
	return wiring.OnOtherChange(object, index.Enqueue(s.client, affected), builder.WithPredicates(index.Changed))
}

// onSecret returns a trigger that enqueues the objects that a change to a Secret affects. It is needed because a Secret
// has no generation.
func (s shared) onSecret(secrets cache.Cache, affected index.Lookup) wiring.Trigger {
	return wiring.OnSource(source.Kind(
		secrets, client.Object(&corev1.Secret{}), index.Enqueue(s.client, affected),
		predicate.ResourceVersionChangedPredicate{}))
}

// onOutcome returns a trigger that enqueues the owners of sets whose outcome has changed. It does so after a delay.
func onOutcome(deliveries *delivery.Store, delay time.Duration, kinds ...string) wiring.Trigger {
	return wiring.OnCall(ownersOf(deliveries, kinds...), delay)
}

// ownersOf returns a function that registers a callback. Whenever the outcome of a set changes, the callback is called
// with the name of the set's owner.
func ownersOf(deliveries *delivery.Store, kinds ...string) func(func(types.NamespacedName)) {
	return func(request func(types.NamespacedName)) {
		for _, kind := range kinds {
			deliveries.OnResult(kind, func(k delivery.Key) {
				request(types.NamespacedName{Namespace: k.Namespace, Name: k.Name})
			})
		}
	}
}
