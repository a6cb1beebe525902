// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controllers lists every controller of the manager.
package controllers

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/checkpoint"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	issuer "github.com/drover-dev/drover/internal/signin"
	"github.com/drover-dev/drover/internal/status"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/internal/wiring"
)

// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=drover-system,resources=leases,verbs=create
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=drover-system,resources=leases,resourceNames=drover-manager,verbs=get;update
// +kubebuilder:rbac:groups="",namespace=drover-system,resources=events,verbs=create;patch

// Options are the dependencies that the controllers share with the hub's server.
type Options struct {
	Config  config.Config
	Members *members.Registry
	Trust   *trust.Holder
	// Deliveries observes the sets that are sent to members.
	Deliveries delivery.Observer
	// Checkpoints provides the checkpoints that are sent along with sets. If it is nil, a restore of etcd is not
	// detected.
	Checkpoints *checkpoint.Recorder
	// Issuer signs users' tokens. It is nil if users do not sign in to the hub.
	Issuer *issuer.Server
	// Synced reports whether this replica knows which members are connected to the other replicas. If Synced is nil,
	// these members count as known.
	Synced func() bool
	// Started is the time when this manager began to accept tunnels. It defaults to the time of the call to Setup.
	Started time.Time
}

// Setup adds all controllers to a manager.
func Setup(mgr ctrl.Manager, o Options) error {
	s := newShared(mgr, o)
	w, err := newWorkspaces(s)
	if err != nil {
		return err
	}
	for _, runnable := range w.runnables() {
		if err := mgr.Add(runnable); err != nil {
			return fmt.Errorf("set up controllers: %w", err)
		}
	}
	all := slices.Concat(authorities(s), clusters(s, w.deliveries), hosts(s), w.controllers(), signIn(s))
	return wiring.Add(mgr, all)
}

// shared holds the dependencies that all groups of controllers share.
type shared struct {
	Options
	mgr ctrl.Manager
	// client writes objects and reads them from the cache. live reads from the API server.
	client client.Client
	live   client.Reader
	// settings returns the settings that agents should have.
	settings func() protocol.Settings
}

func newShared(mgr ctrl.Manager, o Options) shared {
	if o.Started.IsZero() {
		o.Started = time.Now()
	}
	s := shared{Options: o, mgr: mgr, client: mgr.GetClient(), live: mgr.GetAPIReader()}
	if o.Trust != nil {
		s.settings = s.Config.AgentSettings(o.Trust.Bundle)
	}
	return s
}

func (s shared) recorder(name string) events.EventRecorder { return s.mgr.GetEventRecorder(name) }

// output returns the clients that the controller with the given name uses to write statuses and record events.
func (s shared) output(name string) status.Output {
	return status.Output{Client: s.client, Recorder: s.recorder(name), Now: time.Now}
}

// own returns the name of an object in the manager's namespace.
func (s shared) own(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Config.Namespace, Name: name}
}

func (s shared) clusterNames(ctx context.Context) ([]types.NamespacedName, error) {
	return listNames(ctx, s.client, &v1.ClusterList{})
}

func (s shared) hostNames(ctx context.Context) ([]types.NamespacedName, error) {
	return listNames(ctx, s.client, &v1.HostList{})
}
