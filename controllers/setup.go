// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controllers lists every controller of the manager.
package controllers

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/drover-dev/drover/controllers/authority"
	"github.com/drover-dev/drover/controllers/cluster"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/trust"
)

// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=drover-system,resources=leases,verbs=get;create;update
// +kubebuilder:rbac:groups="",namespace=drover-system,resources=events,verbs=create;patch

// Options are what the controllers share with the hub's server.
type Options struct {
	Config  config.Config
	Members *members.Registry
	Trust   *trust.Holder
	// Steady has the controllers that every replica needs until it has ended its last tunnel.
	Steady ctrl.Manager
	// Deliveries records what is sent to members.
	Deliveries delivery.Observer
	// Synced reports whether it is known which members other replicas hold.
	Synced func() bool
	// Started is when this manager began to accept tunnels. Zero means the time of Setup.
	Started time.Time
}

// Setup adds every controller to a manager.
func Setup(mgr ctrl.Manager, o Options) error {
	if o.Started.IsZero() {
		o.Started = time.Now()
	}
	authoritySecret := types.NamespacedName{Namespace: o.Config.Namespace, Name: trust.AuthoritySecret}
	loader := &authority.Loader{
		Client: mgr.GetClient(), Trust: o.Trust, Authority: authoritySecret, Now: time.Now,
	}
	if name := o.Config.Server.TLSSecretName; name != "" {
		loader.Given = types.NamespacedName{Namespace: o.Config.Namespace, Name: name}
	}
	keeper := &authority.Keeper{
		Client: mgr.GetClient(), Recorder: mgr.GetEventRecorder("drover-authority"), Secret: authoritySecret,
		Member: o.Members.State, Settings: o.Trust.Settings, Now: time.Now,
	}
	publisher := &authority.Publisher{
		Client: mgr.GetClient(), Settings: o.Trust.Settings,
		ConfigMap: types.NamespacedName{Namespace: o.Config.Namespace, Name: trust.AuthorityConfigMap},
	}
	deliveries := newStore(mgr, o)
	clusters := &cluster.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Recorder: mgr.GetEventRecorder("drover-cluster"),
		Members: o.Members, Settings: o.Trust.Settings, AgentImage: o.Config.Agent.Image, MaxClusters: o.Config.Limits.Workspace.Clusters, Synced: o.Synced, Started: o.Started, Now: time.Now,
		Guards: guarded(deliveries),
	}
	revoker := &cluster.Revoker{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Tunnels: o.Members}
	for _, register := range []func() error{
		func() error { return setUpDelivery(mgr, o, deliveries) },
		func() error { return loader.Register(mgr) },
		func() error { return publisher.Register(mgr, o.Trust.OnChange) },
		func() error { return revoker.Register(o.Steady, o.Members.OnOpen) },
		func() error {
			return keeper.Register(mgr, authority.Wakers{Member: o.Members.OnChange, Trust: o.Trust.OnChange})
		},
		func() error {
			return clusters.Register(mgr, cluster.Wakers{Member: o.Members.OnChange, All: o.Trust.OnChange, Guards: onGuards(deliveries)})
		},
	} {
		if err := register(); err != nil {
			return fmt.Errorf("set up controllers: %w", err)
		}
	}
	return nil
}
