// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drover-dev/drover/test/fleetsim/sim"
	"github.com/drover-dev/drover/test/framework"
)

// recovery describes how a fleet became Ready after a start of the managers, or after one of them was killed.
type recovery struct {
	serving time.Duration // the ports answer; 0 if no manager was started
	tunnels time.Duration // every report is read
	ready   time.Duration // and every Cluster is Ready
	left    int           // Clusters that were shown as not Ready in the meantime, though they had been Ready
	peak    int64         // bytes resident at most since the start of the processes, in all
	writes  counts        // until writes ceased
	reads   counts        // of the hub's API server, until then
	server  time.Duration // CPU of the hub's API server until then
}

// restart starts all managers, and returns when all members are connected and Ready and writes have ceased.
func (s *step) restart(ctx context.Context) (recovery, error) {
	before, err := s.probe.work(ctx)
	if err != nil {
		return recovery{}, err
	}
	start := time.Now()
	group, starting := errgroup.WithContext(ctx)
	for _, manager := range s.hub.Replicas {
		group.Go(func() error { return manager.Start(starting) })
	}
	if err := group.Wait(); err != nil {
		return recovery{}, err
	}
	r := recovery{serving: time.Since(start)}
	return r, s.follow(ctx, &r, start, before, s.hub.Replicas)
}

// kill kills one manager. It restarts the manager once its agents are connected to another one, or immediately if there
// is no other.
func (s *step) kill(ctx context.Context) (recovery, error) {
	before, err := s.settled(ctx)
	if err != nil {
		return recovery{}, err
	}
	s.status.reset()
	victim := s.hub.Replicas[0]
	if s.managers == 1 {
		if err := victim.Process.Kill(); err != nil {
			return recovery{}, err
		}
		return s.restart(ctx)
	}
	held, err := s.probe.tunnels(ctx, victim)
	if err != nil {
		return recovery{}, err
	}
	state, err := s.sim.State(ctx)
	if err != nil {
		return recovery{}, err
	}
	start := time.Now()
	if err := victim.Process.Kill(); err != nil {
		return recovery{}, err
	}
	others := s.hub.Replicas[1:]
	if err := s.awaitEnded(ctx, state.Ended+int64(held), others); err != nil {
		return recovery{}, err
	}
	r := recovery{}
	if err := s.follow(ctx, &r, start, before, others); err != nil {
		return r, err
	}
	return r, victim.Start(ctx)
}

// interrupt stops the managers until the backoff of the agents is long.
func (s *step) interrupt(ctx context.Context) (recovery, error) {
	if _, err := s.settled(ctx); err != nil {
		return recovery{}, err
	}
	s.status.reset()
	if err := s.stopManagers(ctx); err != nil {
		return recovery{}, err
	}
	pause(ctx, outage)
	return s.restart(ctx)
}

func (s *step) stopManagers(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, manager := range s.hub.Replicas {
		group.Go(func() error { return manager.Process.Stop(ctx) })
	}
	return group.Wait()
}

// follow fills in r when all members are connected and Ready and writes have ceased.
func (s *step) follow(ctx context.Context, r *recovery, start time.Time, before work, managers []*framework.Replica) error {
	waiting, cancel := context.WithTimeout(ctx, phaseLimit)
	defer cancel()
	var state sim.State
	for r.ready == 0 {
		var err error
		if state, err = s.sim.State(waiting); err == nil {
			err = tick(waiting, managers)
		}
		ready, left := s.status.count()
		if err != nil {
			return fmt.Errorf("%w; of %d members %d have a tunnel, %d report, %d are Ready", err, s.members, state.Connected, state.Reporting, ready)
		}
		if state.Reporting < s.members {
			continue
		}
		if r.tunnels == 0 {
			r.tunnels = time.Since(start)
		}
		if ready == s.members {
			r.ready, r.left = time.Since(start), left
		}
	}
	for _, manager := range managers {
		peak, err := peakResident(manager.Process.PID())
		if err != nil {
			return err
		}
		r.peak += peak
	}
	after, err := s.settled(ctx)
	r.writes, r.reads, r.server = after.writes.minus(before.writes), after.reads.minus(before.reads), after.cpu-before.cpu
	return err
}

// settled waits until writes have ceased, and returns the work of the hub's API server until then.
func (s *step) settled(ctx context.Context) (work, error) {
	ctx, cancel := context.WithTimeout(ctx, phaseLimit)
	defer cancel()
	s.say("waiting until nothing is written any more")
	last, err := s.probe.work(ctx)
	for err == nil {
		if !pause(ctx, quietFor) {
			return work{}, fmt.Errorf("the fleet never settled: %w", ctx.Err())
		}
		var now work
		if now, err = s.probe.work(ctx); err == nil && now.writes.minus(last.writes).total(false) <= quietWrites {
			return now, nil
		}
		last = now
	}
	return work{}, err
}

// awaitEnded waits until the given number of tunnels have ended since the start of the simulator. A tunnel has ended
// when its Serve has returned, because until then, its agent is still counted as reporting.
func (s *step) awaitEnded(ctx context.Context, ended int64, managers []*framework.Replica) error {
	state, err := s.sim.State(ctx)
	for ; err == nil && state.Ended < ended; state, err = s.sim.State(ctx) {
		if err := tick(ctx, managers); err != nil {
			return err
		}
	}
	return err
}

const pollInterval = 100 * time.Millisecond

// tick waits before the next check. It returns an error if no more checks can succeed.
func tick(ctx context.Context, managers []*framework.Replica) error {
	if !pause(ctx, pollInterval) {
		return ctx.Err()
	}
	dead := slices.IndexFunc(managers, func(r *framework.Replica) bool {
		select {
		case <-r.Process.Exited():
			return true
		default:
			return false
		}
	})
	if dead < 0 {
		return nil
	}
	process := managers[dead].Process
	return errors.Join(fmt.Errorf("%s has ended by itself; see %s (-keep keeps it)", managers[dead].Name, process.LogFile()), process.Err())
}

// pause waits for the given time. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
