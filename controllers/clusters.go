// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/cluster"
	"github.com/drover-dev/drover/controllers/host"
	"github.com/drover-dev/drover/controllers/inventory"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/wiring"
)

// revocation is the name of the controller that closes the tunnels of a Cluster's revoked agents.
const revocation = "cluster-revocation"

func clusters(s shared, deliveries *delivery.Store) []wiring.Controller {
	revoker := &cluster.Revoker{Client: s.client, Live: s.live, Tunnels: s.Members.Tunnels}
	upgrades := &cluster.Upgrades{
		Client: s.client, Recorder: s.recorder("drover-cluster"), Pace: s.Config.Agent.Rollout.Pace, Now: time.Now,
	}
	// outcome returns a function that returns the outcome of the set with the given ID in a member.
	outcome := func(id string) func(types.NamespacedName) delivery.Outcome {
		return func(member types.NamespacedName) delivery.Outcome {
			return deliveries.Outcomes(id, []types.NamespacedName{member})[0]
		}
	}
	reconciler := &cluster.Reconciler{
		Output: s.output("drover-cluster"), Live: s.live, Members: s.Members.Reconciled(),
		Settings: s.settings, Agent: s.Config.Agent.Defaults(), Upgrades: upgrades,
		Places: cluster.NewPlaces(s.Config.Limits.Workspace.Clusters),
		Synced: s.Synced, Started: s.Started,
		Sets: cluster.Sets{Unconfirmed: deliveries.Unconfirmed, Guards: outcome(set.Guards)},
	}
	if s.Issuer != nil {
		reconciler.Direct = outcome(set.Direct)
	}
	all := types.NamespacedName{Name: "all"}
	return []wiring.Controller{
		{
			Name: revocation, Reconciler: revoker, EveryReplica: true,
			Triggers: []wiring.Trigger{
				wiring.OnChange(&v1.Cluster{}), wiring.OnOwnedChange(&corev1.Secret{}, builder.MatchEveryOwner),
				// If an agent was revoked just before its tunnel opened, the event for the revocation has already been
				// processed.
				wiring.OnCall(s.Members.OnOpen, 0),
			},
		},
		{
			Name: "cluster", Reconciler: reconciler, Workers: 16, // a reconcile may wait for an agent
			Triggers: []wiring.Trigger{
				wiring.OnChange(&v1.Cluster{}), wiring.OnOwnedChange(&corev1.Secret{}, builder.MatchEveryOwner),
				wiring.OnOtherChange(&v1.Cluster{}, reconciler.Places.Handler()), wiring.OnStart(reconciler.Lead),
				// An agent usually reports within 50 ms of connecting. With this delay, the status does not have to say
				// that the report is missing.
				wiring.OnCall(s.Members.OnChange, 50*time.Millisecond),
				onOutcome(deliveries, 50*time.Millisecond, set.Guards, set.Direct),
				wiring.RequestAllOnCall(s.clusterNames, s.Trust.OnChange), wiring.OnCall(upgrades.OnTurn, 0),
			},
		},
		profiles(s),
		{
			Name: "agent-upgrades", Reconciler: upgrades,
			Triggers: []wiring.Trigger{
				wiring.RequestOnStart(all), wiring.RequestOnCall(all, upgrades.OnChange, time.Second),
			},
		},
	}
}

// profiles returns the controller that writes a ClusterProfile for each Cluster if the hub serves the ClusterProfile
// kind.
func profiles(s shared) wiring.Controller {
	kind := &inventory.Kind{
		Mapper: s.mgr.GetRESTMapper(), Scheme: s.mgr.GetScheme(), Cache: s.mgr.GetCache(),
		Clusters: s.clusterNames, Every: inventory.LookEvery,
	}
	return wiring.Controller{
		Name: "inventory", Workers: 4, Reconciler: &inventory.Reconciler{
			Client: s.client, Recorder: s.recorder("drover-inventory"), Settings: s.settings, Served: kind.Served,
		},
		Triggers: []wiring.Trigger{
			wiring.OnChange(&v1.Cluster{}, predicate.NewPredicateFuncs(func(client.Object) bool { return kind.Served() })),
			wiring.OnSource(kind), wiring.RequestAllOnCall(s.clusterNames, s.Trust.OnChange),
		},
	}
}

// hosts lists the controllers for Hosts. They let machines join, send instructions from Secrets to machines, and close
// the tunnels of revoked agents.
func hosts(s shared) []wiring.Controller {
	revoker := &host.Revoker{Client: s.client, Live: s.live, Tunnels: s.Members.Tunnels}
	reconciler := &host.Reconciler{
		Output: s.output("drover-host"), Live: s.live, Members: s.Members.Reconciled(),
		Settings: s.settings, Trust: cmp.Or(s.Config.Agent.Defaults().Trust, v1.TrustPinned),
		Settled: s.settled(since(s.Started)),
		History: host.HistoryOf(s.Checkpoints),
	}
	return []wiring.Controller{
		{
			Name: "host-revocation", Reconciler: revoker, EveryReplica: true,
			Triggers: []wiring.Trigger{
				wiring.OnChange(&v1.Host{}), wiring.OnOtherChange(&corev1.Secret{}, host.Handler()),
				wiring.OnCall(host.OfMembers(s.Members.OnHostOpen), 0),
			},
		},
		{
			Name: "host", Reconciler: reconciler, Workers: 8,
			Triggers: []wiring.Trigger{
				wiring.OnChange(&v1.Host{}), wiring.OnOtherChange(&corev1.Secret{}, host.Handler()),
				wiring.OnCall(host.OfMembers(s.Members.OnHostChange), 50*time.Millisecond),
				wiring.RequestAllOnCall(s.hostNames, s.Trust.OnChange),
			},
		},
	}
}
