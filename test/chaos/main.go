// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command chaos injects random faults into a hub with several managers, its agents and the links between them, and
// checks that all of them recover.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/drover-dev/drover/test/relay"
	"github.com/drover-dev/drover/test/traffic"
)

// options are the options of a run.
type options struct {
	seed                           uint64
	duration                       time.Duration
	replicas, simulated, perSecond int
	keep                           bool
	dir                            string
}

func main() {
	log.SetLogger(logr.Discard())
	o := options{}
	set := flag.NewFlagSet("chaos", flag.ExitOnError) // libraries have put their flags into the global one
	set.Uint64Var(&o.seed, "seed", 0, "of everything random; 0 takes any")
	set.DurationVar(&o.duration, "duration", 3*time.Minute, "of the harm")
	set.IntVar(&o.replicas, "replicas", 3, "managers, at least 2")
	set.IntVar(&o.simulated, "simulated", 8, "members beside the two that have real API servers")
	set.IntVar(&o.perSecond, "rate", 10, "requests a second to the real members, and as many to the simulated ones")
	set.BoolVar(&o.keep, "keep", false, "keep the logs of a run that was good, too")
	_ = set.Parse(os.Args[1:]) // it exits when it fails
	if o.seed == 0 {
		o.seed = uint64(rand.Uint32())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := start(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "chaos: seed %d: %v\n", o.seed, err)
		os.Exit(1)
	}
}

func start(ctx context.Context, o options) error {
	var err error
	if o.dir, err = os.MkdirTemp("", "drover-chaos-"); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	s := &system{options: o, journal: &journal{out: os.Stderr, begun: time.Now()}, links: map[string]*relay.Relay{}, keepers: map[string]*keeper{}}
	s.journal.note("seed %d, %s, %d managers, logs in %s", o.seed, o.duration, o.replicas, o.dir)
	err = s.run(ctx)
	if faults := s.journal.found(); len(faults) > 0 && err == nil {
		err = fmt.Errorf("%d faults, the first one: %s", len(faults), faults[0])
	}
	if err != nil || o.keep {
		return err
	}
	return os.RemoveAll(o.dir)
}

func (s *system) run(ctx context.Context) (err error) {
	kept, letGo := context.WithCancel(ctx)
	defer func() {
		letGo()
		s.running.Wait()
		err = errors.Join(err, s.tearDown())
	}()
	if err := s.setUp(ctx); err != nil {
		return err
	}
	s.keep(kept)
	readiness := traffic.WatchReadiness(kept, s.hub.Client)
	s.running.Go(readiness.Wait)
	loads, err := s.loads()
	if err != nil {
		return err
	}
	var asking sync.WaitGroup
	for _, load := range loads {
		asking.Go(func() { load.Run(kept) })
	}
	defer asking.Wait()
	defer letGo()
	if err := s.settle(ctx, readiness, loads); err != nil {
		return fmt.Errorf("before any harm: %w", err)
	}
	before, err := s.weigh(ctx)
	if err != nil {
		return err
	}
	actions := plan(s.seed, s.duration, s.targets())
	s.journal.note("%d times harm, for %s", len(actions), s.duration)
	if err := s.churn(ctx, churnWhileHarmed); err != nil {
		return err
	}
	s.harm(ctx, actions)
	if err := s.churn(ctx, 0); err != nil {
		return err
	}
	return s.judge(ctx, readiness, loads, before)
}

// judge checks that everything has recovered: the status, the requests, and the resource usage of the processes.
func (s *system) judge(ctx context.Context, readiness *traffic.ReadinessWatch, loads []*traffic.Load, before usage) error {
	s.journal.note("no more harm")
	for i, load := range loads {
		r := load.Result()
		s.journal.note("load %d meanwhile: %d of %d requests were not served", i, len(r.Failures), r.Requests)
	}
	if err := s.settle(ctx, readiness, loads); err != nil {
		return fmt.Errorf("after the harm: %w", err)
	}
	if err := s.loseAgents(ctx, readiness); err != nil {
		return err
	}
	if err := s.settle(ctx, readiness, loads); err != nil {
		return fmt.Errorf("after agents were lost: %w", err)
	}
	after, err := s.weigh(ctx)
	if err != nil {
		return err
	}
	for _, leak := range before.leaks(after) {
		s.journal.fault("grown: %s", leak)
	}
	return s.lookThroughLogs()
}
