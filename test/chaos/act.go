// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/relay"
)

const (
	// stopLimit is the time limit for stopping a manager or an agent. If its link is stalled, the graceful shutdown takes
	// this long.
	stopLimit = drainDelay + drainSessions + longestStall + 15*time.Second
	apiName   = "api"
)

// targets returns all targets, in the same order in every run.
func (s *system) targets() []target {
	targets := []target{{apiName, apiServer}}
	for name := range s.keepers {
		switch {
		case name == simulatorName:
			targets = append(targets, target{name, simulator})
		case slices.Contains(s.agents, name):
			targets = append(targets, target{name, agent})
		default:
			targets = append(targets, target{name, manager})
		}
	}
	for name := range s.links {
		targets = append(targets, target{name, link})
	}
	slices.SortFunc(targets, func(a, b target) int { return strings.Compare(a.name, b.name) })
	return targets
}

// harm performs the planned actions, and returns when all of them have ended and have been undone.
func (s *system) harm(ctx context.Context, actions []action) {
	begun := time.Now()
	var doing sync.WaitGroup
	defer doing.Wait()
	busy := map[string]chan struct{}{} // is closed when a target is free again
	for _, a := range actions {
		if !pause(ctx, time.Until(begun.Add(a.after))) {
			return
		}
		before, done := busy[a.target], make(chan struct{})
		busy[a.target] = done
		doing.Go(func() {
			defer close(done)
			if before != nil {
				<-before
			}
			s.journal.note("%s", a)
			if err := s.do(ctx, a); err != nil && ctx.Err() == nil {
				s.journal.fault("%s: %v", a, err)
			}
		})
	}
}

func (s *system) do(ctx context.Context, a action) error {
	switch a.class {
	case link:
		s.doLink(ctx, s.links[a.target], a)
		return nil
	case apiServer:
		return s.doAPIServer(ctx, a)
	}
	k := s.keepers[a.target]
	switch a.kind {
	case killed:
		return k.down(ctx, a.lasts, (*lab.Process).Kill)
	case stopped:
		return k.down(ctx, a.lasts, func(p *lab.Process) error { return s.stop(ctx, k, p) })
	case hung:
		return k.hang(ctx, a.lasts)
	}
	return fmt.Errorf("unknown action %s", a.kind)
}

// stop ends a process gracefully.
func (s *system) stop(ctx context.Context, k *keeper, p *lab.Process) error {
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	began := time.Now()
	if err := p.Stop(ctx); err != nil {
		return err
	}
	s.journal.note("%s has ended after %s: %v", k.name, time.Since(began).Round(time.Millisecond), p.Err())
	return nil
}

func (s *system) doLink(ctx context.Context, r *relay.Relay, a action) {
	switch a.kind {
	case cut:
		r.Cut()
	case refusing:
		r.Refuse(true)
		r.Cut()
		pause(ctx, a.lasts)
		r.Refuse(false)
	case stalled:
		r.Stall()
		pause(ctx, a.lasts)
		r.Flow()
	case slowed:
		random := rand.New(rand.NewPCG(a.seed, 0))
		shape := relay.Shape{
			Latency:        between(random, 10*time.Millisecond, 300*time.Millisecond),
			Jitter:         between(random, 0, 200*time.Millisecond),
			BytesPerSecond: 32<<10 + random.IntN(1<<20),
		}
		s.journal.note("%s: %s and up to %s, %d KiB/s", a.target, shape.Latency.Round(time.Millisecond), shape.Jitter.Round(time.Millisecond), shape.BytesPerSecond>>10)
		r.Slow(shape)
		pause(ctx, a.lasts)
		r.Slow(relay.Shape{})
	}
}

func (s *system) doAPIServer(ctx context.Context, a action) error {
	process := s.hub.Process(lab.APIServer)
	if a.kind == hung {
		if err := process.Pause(); err != nil {
			return err
		}
		pause(ctx, a.lasts)
		return process.Resume()
	}
	if err := process.Kill(); err != nil {
		return err
	}
	pause(ctx, a.lasts)
	return s.hub.Restart(ctx, lab.APIServer)
}
