// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	leases "sigs.k8s.io/controller-runtime/pkg/leaderelection"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/drover-dev/drover/internal/checkpoint"
	"github.com/drover-dev/drover/internal/config"
)

// leaseName is the name of the Lease that replicas use to elect a leader.
const leaseName = "drover-manager"

// errLeaseLost is returned when another replica has become the leader or the Lease is unavailable. The replica then
// stops.
var errLeaseLost = errors.New("the Lease could not be renewed")

// Run runs a replica until ctx is done or a part fails. After all parts have ended, it stops the manager. The manager
// runs the caches and the controllers.
func Run(ctx context.Context, mgr ctrl.Manager, parts ...func(context.Context) error) error {
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	all, stopping := errgroup.WithContext(ctx)
	all.Go(func() error { return mgr.Start(running) })
	var ended sync.WaitGroup
	for _, part := range parts {
		ended.Add(1)
		all.Go(func() error {
			defer ended.Done()
			return part(stopping)
		})
	}
	all.Go(func() error {
		ended.Wait()
		end()
		return nil
	})
	return all.Wait()
}

// Leader is the manager for controllers. While this replica holds the Lease, it runs the parts that require leadership.
// The other parts run in the manager itself.
//
// A ctrl.Manager with leader election would first stop the parts that do not require leadership, and release its Lease
// last. No replica would be the leader while this one waits for its users' sessions to end, which can take hours.
type Leader struct {
	ctrl.Manager
	lock      resourcelock.Interface // nil if there is no election
	election  config.LeaderElection
	runnables []manager.Runnable

	// Checkpoints records the checkpoints in the Lease. It is nil if there is no election.
	Checkpoints *checkpoint.Recorder
}

// NewLeader returns a Leader for the replica's manager.
func NewLeader(mgr ctrl.Manager, cfg config.Config) (*Leader, error) {
	lock, err := leases.NewResourceLock(rest.CopyConfig(mgr.GetConfig()), mgr, leases.Options{
		LeaderElection: *cfg.LeaderElection.Enabled, LeaderElectionID: leaseName, LeaderElectionNamespace: cfg.Namespace,
		RenewDeadline: cfg.LeaderElection.RenewDeadline.Duration,
	})
	if err != nil {
		return nil, fmt.Errorf("elect a leader: %w", err)
	}
	leader := &Leader{Manager: mgr, lock: lock, election: cfg.LeaderElection}
	if lease, ok := lock.(*resourcelock.LeaseLock); ok {
		leader.Checkpoints = checkpoint.NewRecorder(lease.Client)
		lease.Client = leader.Checkpoints
	}
	return leader, nil
}

// Add implements ctrl.Manager.
func (l *Leader) Add(r manager.Runnable) error {
	if chooses, ok := r.(manager.LeaderElectionRunnable); ok && !chooses.NeedLeaderElection() {
		return l.Manager.Add(r)
	}
	l.runnables = append(l.runnables, r)
	return nil
}

// Start makes this replica the leader whenever there is no other leader, until ctx is done. It releases the Lease when
// all parts have ended. It returns an error if the Lease is lost or if the hub's etcd was restored.
func (l *Leader) Start(ctx context.Context) error {
	if !l.GetCache().WaitForCacheSync(ctx) {
		return nil // ctx ended before this replica could become the leader
	}
	if l.lock == nil {
		return l.lead(ctx)
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	if l.Checkpoints != nil {
		l.Checkpoints.Restored = func() { end(checkpoint.ErrRestored) }
	}
	elected, released := make(chan context.Context, 1), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: l.lock, Name: leaseName, ReleaseOnCancel: true,
		LeaseDuration: l.election.LeaseDuration.Duration, RenewDeadline: l.election.RenewDeadline.Duration,
		RetryPeriod: l.election.RetryPeriod.Duration,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(held context.Context) { elected <- held },
			OnStoppedLeading: func() { close(released) },
		},
	})
	if err != nil {
		return fmt.Errorf("elect a leader: %w", err)
	}
	electing, release := context.WithCancel(logr.NewContext(context.WithoutCancel(ctx),
		l.GetLogger().WithName("leaderelection")))
	defer func() {
		release()
		<-released
	}()
	go elector.Run(electing)
	select {
	case <-ctx.Done():
		return restored(ctx)
	case held := <-elected:
		leading, stop := context.WithCancel(ctx)
		defer stop()
		forget := context.AfterFunc(held, stop)
		defer forget()
		err := errors.Join(l.lead(leading), restored(ctx))
		if err != nil || held.Err() == nil {
			return err
		}
		return errLeaseLost
	}
}

// restored returns ErrRestored if ctx was ended by that error.
func restored(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, checkpoint.ErrRestored) {
		return cause
	}
	return nil
}

// lead runs the parts that require leadership until ctx is done or a part fails.
func (l *Leader) lead(ctx context.Context) error {
	all, ctx := errgroup.WithContext(ctx)
	for _, runnable := range l.runnables {
		all.Go(func() error {
			err := runnable.Start(ctx)
			if ctx.Err() == nil {
				return err
			}
			if err != nil && !errors.Is(err, context.Canceled) {
				l.GetLogger().Error(err, "controllers stopped with an error")
			}
			return nil
		})
	}
	return all.Wait()
}
