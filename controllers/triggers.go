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

// onAffecting requests the objects that are affected by a change to another object.
func (s shared) onAffecting(object client.Object, affected index.Lookup) wiring.Trigger {
	return wiring.OnOtherChange(object, index.Enqueue(s.client, affected), builder.WithPredicates(index.Changed))
}

// onSecret requests the objects that are affected by a change to a Secret. Unlike other objects, a Secret has no
// generation.
func (s shared) onSecret(secrets cache.Cache, affected index.Lookup) wiring.Trigger {
	return wiring.OnSource(source.Kind(
		secrets, client.Object(&corev1.Secret{}), index.Enqueue(s.client, affected),
		predicate.ResourceVersionChangedPredicate{}))
}

// onOutcome requests, after a delay, the owners of sets whose outcome has changed.
func onOutcome(deliveries *delivery.Store, delay time.Duration, kinds ...string) wiring.Trigger {
	return wiring.OnCall(ownersOf(deliveries, kinds...), delay)
}

// ownersOf returns a function that registers a callback. The callback is called with the name of a set's owner whenever
// the set's outcome has changed.
func ownersOf(deliveries *delivery.Store, kinds ...string) func(func(types.NamespacedName)) {
	return func(request func(types.NamespacedName)) {
		for _, kind := range kinds {
			deliveries.OnResult(kind, func(k delivery.Key) {
				request(types.NamespacedName{Namespace: k.Namespace, Name: k.Name})
			})
		}
	}
}
