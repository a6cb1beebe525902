// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	"github.com/drover-dev/drover/test/fleetsim/sim"
)

// storm is the result of cutting most tunnels at the same time.
type storm struct {
	cut   int
	took  time.Duration // until all tunnels that were cut are back
	proxy latencies
	peak  int64 // bytes resident at most since the start of the managers, in all
}

// cutTunnels cuts most tunnels at the same time, and sends requests to members until all tunnels are open again.
func (s *step) cutTunnels(ctx context.Context) (storm, error) {
	ctx, cancel := context.WithTimeout(ctx, phaseLimit)
	defer cancel()
	var found storm
	var failure error
	found.proxy = s.load(ctx, func(ctx context.Context) {
		start := time.Now()
		failure = s.cut(ctx, &found)
		found.took = time.Since(start)
		pause(ctx, stormWindow-found.took)
	})
	for _, manager := range s.hub.Replicas {
		if failure == nil {
			var peak int64
			peak, failure = peakResident(manager.Process.PID())
			found.peak += peak
		}
	}
	return found, failure
}

// cut returns when all members are connected again.
func (s *step) cut(ctx context.Context, found *storm) error {
	state, err := s.sim.State(ctx)
	if err != nil {
		return err
	}
	if found.cut, err = s.sim.Cut(ctx, spare); err != nil {
		return err
	}
	if err := s.awaitEnded(ctx, state.Ended+int64(found.cut), s.hub.Replicas); err != nil {
		return err
	}
	for {
		if state, err = s.sim.State(ctx); err != nil || state.Reporting == s.members {
			return err
		}
		if err := tick(ctx, s.hub.Replicas); err != nil {
			return err
		}
	}
}

// churn is the result of cutting tunnels and changing reports.
type churn struct {
	footprint
	ended int64 // tunnels
	left  int   // Clusters that were shown as not Ready at least once
	proxy latencies
}

// churnTunnels cuts tunnels and changes reports for a while, and sends requests to members at the same time.
func (s *step) churnTunnels(ctx context.Context) (churn, error) {
	var found churn
	before, err := s.sim.State(ctx)
	if err != nil {
		return found, err
	}
	s.status.reset()
	if err := s.sim.Set(ctx, s.rates); err != nil {
		return found, err
	}
	found.proxy = s.load(ctx, func(ctx context.Context) {
		found.footprint, err = s.probe.footprint(ctx, s.hub.Replicas, churnWindow)
	})
	if err != nil {
		return found, err
	}
	if err := s.sim.Set(ctx, sim.Rates{}); err != nil {
		return found, err
	}
	after, err := s.sim.State(ctx)
	found.ended = after.Ended - before.Ended
	_, found.left = s.status.count()
	return found, err
}

// load sends requests to random members while during runs.
func (s *step) load(ctx context.Context, during func(context.Context)) latencies {
	loading, cancel := context.WithCancel(ctx)
	found := make(chan latencies)
	go func() { found <- s.probe.requests(loading, s.members, s.workspaces) }()
	during(ctx)
	cancel()
	return <-found
}
