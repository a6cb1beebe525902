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
)

// Periods of node agents. Of five hundred, one reads two objects every 5 s, and each of the others one object every 30
// s: that is a third of the requests with which their kubelets renew the Leases of nodes.
const (
	watchInterval = 5 * time.Second  // how often the elected node agent looks for the agent's replicas
	electInterval = 30 * time.Second // how often the others look whether one is elected
	// without a sign of a replica, until a node agent serves; a replica that is replaced is back before
	absentFor     = 20 * time.Second
	backFor       = 10 * time.Second // with a sign of a replica, until it stops
	connectWithin = time.Minute      // a node agent that serves and has no tunnel for so long lets another one try
	passOver      = 2 * time.Minute  // for how long it does not take part then
	electJitter   = 0.2
)

// StandbyOptions are those of a Standby.
type StandbyOptions struct {
	// Leader reads the Lease of the agent's replicas, Deployment their Deployment.
	Leader     func(ctx context.Context) (*coordinationv1.Lease, error)
	Deployment func(ctx context.Context) (*appsv1.Deployment, error)
	// Leases elects one of the node agents, and Name names this one.
	Leases Leases
	Name   string
	// Serve serves the hub until its context ends, and returns when requests in progress have ended; Serve may have begun
	// again by then. Connected reports whether the hub can reach the member through the latest call.
	Serve     func(ctx context.Context)
	Connected func() bool
	Log       logr.Logger
}

// Standby lets one of a member's node agents serve the hub while no replica of the agent is connected.
type Standby struct{ options StandbyOptions }

// NewStandby makes a Standby.
func NewStandby(o StandbyOptions) *Standby { return &Standby{options: o} }

// Run takes part until ctx ends.
func (s *Standby) Run(ctx context.Context) {
	var serving sync.WaitGroup // requests in progress may last longer than an election
	defer serving.Wait()
	for ctx.Err() == nil {
		elected, end := context.WithCancel(ctx)
		New(Options{
			Leases: s.options.Leases, Name: s.options.Name, Look: wait.Jitter(electInterval, electJitter), NeedsLease: true,
			Lead: func(ctx context.Context) {
				if !s.watch(ctx, &serving) {
					end()
				}
			},
			Follow: func() {}, Log: s.options.Log,
		}).Run(elected)
		end()
		pause(ctx, passOver)
	}
}

// watch serves whenever it must, until ctx ends or the hub cannot be reached from here. It reports whether ctx ended.
func (s *Standby) watch(ctx context.Context, serving *sync.WaitGroup) bool {
	for p := (presence{}); ctx.Err() == nil; pause(ctx, watchInterval) {
		if p = s.look(ctx, p); !p.needed(false, time.Now()) {
			continue
		}
		s.options.Log.Info("no replica of the agent is connected: this node agent serves")
		var reached bool
		if p, reached = s.serve(ctx, p, serving); !reached && ctx.Err() == nil {
			s.options.Log.Info("the hub is not reached from this node: another node agent may try")
			return false
		}
		s.options.Log.Info("this node agent serves no longer")
	}
	return true
}

// serve serves until a replica of the agent is back, the hub was not reached for connectWithin, or ctx ends. It reports
// whether it was reached. It does not wait for requests in progress: a replica that is back may be gone again before
// they end.
func (s *Standby) serve(ctx context.Context, p presence, running *sync.WaitGroup) (after presence, reached bool) {
	serving, stop := context.WithCancel(ctx)
	defer stop()
	running.Go(func() { s.options.Serve(serving) })
	connected := time.Now()
	for p.needed(true, time.Now()) && ctx.Err() == nil {
		pause(ctx, watchInterval)
		if p = s.look(ctx, p); s.options.Connected() {
			connected = time.Now()
		}
		if time.Since(connected) >= connectWithin {
			return p, false
		}
	}
	return p, true
}

// look returns what is known after another look. Where the API server does not answer, nothing new is known.
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
		s.options.Log.V(1).Info("the agent's replicas are not known", "error", err.Error())
		return p
	}
	return p.after(lease, d, time.Now())
}

// presence is what a node agent knows of the replicas of the agent.
type presence struct {
	version string    // of their Lease
	changed time.Time // when it was seen to change
	there   bool      // whether there was a sign of them at the last look
	since   time.Time // since when that is so
}

// after returns the presence after a look at the Lease of the agent's replicas and at their Deployment, nil for one
// that does not exist. A replica that leads renews the Lease; one that is connected to the hub is ready. A replica may
// lead without being connected, as where it cannot resolve the hub's name. Where no controller writes the status of the
// Deployment, the Lease decides.
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

// needed reports whether a node agent must serve, which serves already or does not.
func (p presence) needed(serving bool, now time.Time) bool {
	switch {
	case p.since.IsZero():
		return false // nothing is known
	case p.there:
		return serving && now.Sub(p.since) < backFor
	}
	return serving || now.Sub(p.since) >= absentFor
}
