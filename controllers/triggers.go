// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"sync/atomic"
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
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
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

// onOutcome returns a trigger that enqueues the owners of sets whose outcome has changed, after the given delay.
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

// returnTime returns how long an agent may take to reconnect after the manager has started: an agent's longest wait
// plus the time that the hub needs to admit all agents. During this time, a wave does not continue without a missing
// agent. A Plan does not start if a missing agent may have newer information about it.
func returnTime(clusters int) time.Duration {
	return protocol.LongestReturn + members.AdmissionTime(clusters)
}

func since(at time.Time) func() time.Time { return func() time.Time { return at } }

// firstConnected returns a function that returns the time when this manager was first informed of an agent that is
// connected to any replica. Until then, the function returns the zero time.
func firstConnected(states *members.States, notices *members.Notices) func() time.Time {
	var first atomic.Pointer[time.Time]
	look := func(member types.NamespacedName) {
		if first.Load() == nil && states.State(member).Connected() {
			first.CompareAndSwap(nil, new(time.Now()))
		}
	}
	notices.OnChange(look)
	notices.OnHostChange(look)
	return func() time.Time {
		if at := first.Load(); at != nil {
			return *at
		}
		return time.Time{}
	}
}

// settled returns a function that reports whether agents have had enough time to reconnect. The from function returns
// the time since when agents have been able to reconnect. While that time is zero, the returned function returns false.
func (s shared) settled(from func() time.Time) func() bool {
	var returned atomic.Bool // once true, this stays true
	return func() bool {
		if at := from(); !returned.Load() && !at.IsZero() && time.Since(at) > returnTime(0) {
			clusters, err := s.clusterNames(context.Background()) // read from the cache
			hosts, errHosts := s.hostNames(context.Background())
			returned.Store(errors.Join(err, errHosts) == nil && time.Since(at) > returnTime(len(clusters)+len(hosts)))
		}
		return returned.Load() && (s.Synced == nil || s.Synced())
	}
}
