// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/drover-dev/drover/internal/await"
)

// Intervals between the requests of node agents. In a cluster with five hundred nodes, the elected node agent reads two
// objects every 5 s, and each of the others reads one object every 30 s. Together, they send a third as many requests
// as the kubelets send to renew the nodes' Leases.
const (
	watchInterval = 5 * time.Second  // how often the elected node agent checks for the agent's replicas
	electInterval = 30 * time.Second // how often the other node agents check whether one of them is elected
	// absentFor is how long all replicas must be absent before a node agent serves. Replacing a replica takes less
	// time.
	absentFor     = 20 * time.Second
	backFor       = 10 * time.Second // how long a replica must be back before the node agent stops serving
	connectWithin = time.Minute      // after this long without a tunnel, a serving node agent lets another one try
	passOver      = 2 * time.Minute  // how long that node agent then stays out of the election
	electJitter   = 0.2
)

// StandbyOptions configure a Standby.
type StandbyOptions struct {
	// Leader reads the Lease of the agent's replicas. Deployment reads their Deployment.
	Leader     func(ctx context.Context) (*coordinationv1.Lease, error)
	Deployment func(ctx context.Context) (*appsv1.Deployment, error)
	// Leases accesses the Lease that the node agents use for their election. Name is the name of this node agent.
	Leases Leases
	Name   string
	// Serve serves the hub until ctx is done, and returns when requests in progress have ended. Serve may be called
	// again before an earlier call has returned. Connected reports whether the hub can reach the member through the
	// tunnel of the latest call.
	Serve     func(ctx context.Context)
	Connected func() bool
	Log       logr.Logger
}

// Standby makes one of a member's node agents serve the hub while no replica of the agent is connected.
type Standby struct{ options StandbyOptions }

// NewStandby returns a Standby.
func NewStandby(o StandbyOptions) *Standby { return &Standby{options: o} }

// Run takes part in the election until ctx is done.
func (s *Standby) Run(ctx context.Context) {
	var serving sync.WaitGroup // requests in progress may continue after an election
	defer serving.Wait()
	for ctx.Err() == nil {
		elected, end := context.WithCancel(ctx)
		New(Options{
			Leases: s.options.Leases, Name: s.options.Name, Look: wait.Jitter(electInterval, electJitter),
			Lead: func(ctx context.Context) {
				if !s.watch(ctx, &serving) {
					end()
				}
			},
			Follow: func() {}, Log: s.options.Log,
		}).Run(elected)
		end()
		await.Time(ctx, passOver)
	}
}

// watch serves whenever a node agent is needed, until ctx is done or this node agent cannot reach the hub. It reports
// whether ctx is done.
func (s *Standby) watch(ctx context.Context, serving *sync.WaitGroup) bool {
	for p := (presence{}); ctx.Err() == nil; await.Time(ctx, watchInterval) {
		if p = s.look(ctx, p); !p.needed(false, time.Now()) {
			continue
		}
		s.options.Log.Info("no replica of the agent is connected: this node agent serves")
		var reached bool
		if p, reached = s.serve(ctx, p, serving); !reached && ctx.Err() == nil {
			s.options.Log.Info("cannot reach the hub from this node: another node agent may try")
			return false
		}
		s.options.Log.Info("this node agent no longer serves")
	}
	return true
}

// serve serves until a replica of the agent is connected again, the hub has not been reached for connectWithin, or ctx
// is done. It reports whether the hub was reached. It does not wait for requests in progress to end, because the
// replica may disconnect again in the meantime.
func (s *Standby) serve(ctx context.Context, p presence, running *sync.WaitGroup) (after presence, reached bool) {
	serving, stop := context.WithCancel(ctx)
	defer stop()
	running.Go(func() { s.options.Serve(serving) })
	connected := time.Now()
	for p.needed(true, time.Now()) && ctx.Err() == nil {
		await.Time(ctx, watchInterval)
		if p = s.look(ctx, p); s.options.Connected() {
			connected = time.Now()
		}
		if time.Since(connected) >= connectWithin {
			return p, false
		}
	}
	return p, true
}

// look checks the agent's replicas and returns the updated presence. If the API server does not respond, the presence
// does not change.
func (s *Standby) look(ctx context.Context, p presence) presence {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	lease, err := s.options.Leader(ctx)
	if apierrors.IsNotFound(err) {
		lease, err = nil, nil
	}
	var d *appsv1.Deployment
	if err == nil {
		if d, err = s.options.Deployment(ctx); apierrors.IsNotFound(err) {
			d, err = nil, nil
		}
	}
	if err != nil {
		s.options.Log.V(1).Info("cannot read the state of the agent's replicas", "error", err.Error())
		return p
	}
	return p.after(lease, d, time.Now())
}

// presence is a node agent's knowledge about the agent's replicas.
type presence struct {
	version string    // version of the replicas' Lease
	changed time.Time // when the version last changed
	there   bool      // whether the last check found any sign of a replica
	since   time.Time // when the result of the checks last changed
}

// after returns the presence after a check of the replicas' Lease and Deployment. Each of them is nil if it does not
// exist. A renewed Lease shows that there is a leader, and a ready replica is connected to the hub. The leader itself
// might not be connected, for example because it cannot resolve the hub's name. If no controller writes the status of
// the Deployment, only the Lease is considered.
func (p presence) after(lease *coordinationv1.Lease, d *appsv1.Deployment, now time.Time) presence {
	there := false
	if lease != nil {
		if lease.ResourceVersion != p.version {
			p.version, p.changed = lease.ResourceVersion, now
		}
		holder := lease.Spec.HolderIdentity
		there = holder != nil && *holder != "" && now.Sub(p.changed) < duration
	}
	if d != nil && d.Status.ObservedGeneration > 0 && d.Status.ReadyReplicas == 0 {
		there = false
	}
	if there != p.there || p.since.IsZero() {
		p.there, p.since = there, now
	}
	return p
}

// needed reports whether a node agent must serve. serving is true if the node agent is already serving.
func (p presence) needed(serving bool, now time.Time) bool {
	switch {
	case p.since.IsZero():
		return false // no check has succeeded yet
	case p.there:
		return serving && now.Sub(p.since) < backFor
	}
	return serving || now.Sub(p.since) >= absentFor
}
