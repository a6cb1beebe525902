// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster reconciles Cluster.
//
// It handles a member's registration, connections, reports, outages and removal.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/status"
)

// takeoverTime is how long a manager that was already running waits after it has become the leader. This gives the
// previous leader's agents time to connect to it.
const takeoverTime = 15 * time.Second

// settleTime is how long after the start of a manager agents may take to reconnect before they count as lost. It covers
// an agent's longest wait after a one-minute outage, and the time for its next attempt.
const settleTime = protocol.LongestWait + 2*time.Second

// Reconciler reconciles Clusters. Lead must be called before the first reconcile.
type Reconciler struct {
	// Client writes objects and reads them from the cache. Live reads from the API server.
	status.Output
	Live    client.Reader
	Members members.Reconciled
	// Settings returns the settings that agents should have.
	Settings func() protocol.Settings
	// Agent holds the hub's defaults for spec.agent.
	Agent v1.Agent
	// Upgrades decides when an agent receives a change that the hub makes for all agents. If it is nil, agents receive
	// such changes immediately.
	Upgrades *Upgrades
	// Places decides which Clusters in a workspace get a join token. If it is nil, all Clusters get a token.
	Places *Places
	Sets
	// Synced reports whether this replica knows which members are connected to the other replicas. If Synced is nil, they
	// are assumed to be known.
	Synced func() bool
	// Started is the time when this manager began to accept tunnels.
	Started time.Time

	led           time.Time     // time when this manager became the leader; set before the first reconcile
	admissionTime time.Duration // time that the hub needs to admit all agents; set together with led
	manifests     registration.Manifests
	written       status.Written[*v1.Cluster]
}

// Sets returns the state of sets in members.
type Sets struct {
	// Guards returns the outcome of delivering the project guards to a member. If Guards is nil, the outcome is
	// unknown.
	Guards func(types.NamespacedName) delivery.Outcome
	// Direct returns the outcome of delivering the data that a member's agent needs to serve users without the hub.
	// Direct is nil if users do not sign in to the hub.
	Direct func(types.NamespacedName) delivery.Outcome
	// Unconfirmed returns the changes in a member that are waiting for an administrator's confirmation. If Unconfirmed
	// is nil, there are no such changes.
	Unconfirmed delivery.Unconfirmed
}

// Lead is called when this manager becomes the leader, before the first reconcile.
func (r *Reconciler) Lead(ctx context.Context) error {
	var clusters v1.ClusterList
	if err := r.Client.List(ctx, &clusters, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("count clusters: %w", err)
	}
	r.led, r.admissionTime = r.Now(), members.AdmissionTime(len(clusters.Items))
	if r.Upgrades == nil {
		return nil
	}
	revision, err := r.hubRevision()
	if err == nil {
		r.Upgrades.lead(revision, r.settled())
	}
	return err
}

// settled returns the time after which a missing agent counts as lost.
func (r *Reconciler) settled() time.Time {
	settled, takenOver := r.Started.Add(settleTime), r.led.Add(takeoverTime)
	if takenOver.After(settled) {
		settled = takenOver
	}
	return settled.Add(r.admissionTime)
}

// +kubebuilder:rbac:groups=cluster.drover.dev,resources=clusters,verbs=get;list;watch;update;patch
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=clusters/status,verbs=get;update;patch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch;create;update;patch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile creates the join token and manifest of one Cluster, sends the hub's settings to the Cluster's agent, and
// writes the Cluster's status.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (_ ctrl.Result, err error) {
	cluster, found, err := r.written.Get(ctx, r.Client, req.NamespacedName, &v1.Cluster{})
	if err != nil {
		return ctrl.Result{}, err
	} else if !found {
		r.Upgrades.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	update := status.Begin(cluster)
	defer func() {
		err = errors.Join(err, r.written.Commit(ctx, r.Output, update))
	}()
	if !cluster.DeletionTimestamp.IsZero() {
		return r.remove(ctx, cluster, update)
	}

	in, err := r.gather(ctx, cluster)
	if err != nil {
		return ctrl.Result{}, err
	}
	later := in.tooEarly()
	in.registerErr = r.register(ctx, in, update, !later.IsZero() && !in.member.Connected())
	if err := r.observeAgent(in); err != nil {
		return ctrl.Result{}, err
	}
	// the Cluster's labels and finalizer can wait, too; they are then written together with the labels from the agent's
	// report
	if !later.IsZero() {
		return ctrl.Result{RequeueAfter: later.Sub(in.now)}, in.registerErr
	}
	deployErr := r.handOver(in)
	r.writeStatus(in, update)
	return ctrl.Result{RequeueAfter: in.lookAgain()}, errors.Join(in.registerErr, deployErr, r.label(ctx, in))
}

// handOver sends the agent its settings and its Deployment, unless the agent already has them. If two clusters share
// the member's identity, handOver sends nothing.
func (r *Reconciler) handOver(in *input) error {
	if in.member.Clones != nil {
		return nil
	}
	r.announce(in)
	return r.deploy(in)
}

func (r *Reconciler) writeStatus(in *input, update *status.Update) {
	writeStatus(in, update)
	writeGuardsApplied(in, r.guarded(in), update)
	r.writeDirectAccess(in, update)
	r.writeUnconfirmed(in, update)
}

// announce sends the hub's settings to a connected agent that reports different settings. The agent confirms the
// settings in its next report. If the agent does not confirm them, they are sent again after a delay.
func (r *Reconciler) announce(in *input) {
	report := in.member.Report
	if report == nil || versionSkew(report) != "" || report.SettingsDigest == in.settings.Digest() {
		return
	}
	in.announced = r.Members.StartSettings(in.name, in.settings)
}
