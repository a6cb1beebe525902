// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/hack/fleetsim/sim"
	"github.com/drover-dev/drover/hack/lab"
	"github.com/drover-dev/drover/hack/stage"
)

// user reaches the members through the hub, and the manager's metrics.
const (
	user      = "bench"
	userToken = "bench-0123456789abcdef"
)

// Times of a step.
const (
	baselineWindow = 30 * time.Second // of the manager without members
	proxyWindow    = 20 * time.Second // of requests to an idle fleet
	stormWindow    = 10 * time.Second // of requests during a storm, at least
	quietFor       = 5 * time.Second  // with no more than quietWrites, what a control plane writes for itself, the fleet counts as settled
	quietWrites    = 2
	outage         = time.Minute      // after which the back-off of most agents is at its longest, 30 s
	phaseLimit     = 10 * time.Minute // for anything that is waited for
	healthy        = 62 * time.Second // after which a tunnel that ends is dialled again at once
	waitingTries   = 6                // after which the back-off of an agent is at its longest, 30 s
	spare          = 10               // each so many-th member keeps its tunnel in the storm
)

// step measures one size of fleet on a hub of its own.
type step struct {
	settings
	programs  stage.Programs
	simulator string
	members   int
	dir       string
	begun     time.Time

	hub    *stage.Hub // set by bringUp
	sim    *sim.Client
	probe  *probe
	status *readiness
}

// result is what a step found.
type result struct {
	members     int
	empty, idle footprint // of the manager
	// recoveries: with nothing there but Clusters and keys; after a SIGKILL; after an outage.
	cold, killed, outage     recovery
	coldWrites, outageWrites writes
	proxyIdle                latencies
	proxyStorm               latencies
	stormCut                 int
	storm                    time.Duration // until all tunnels that were cut are back
	simulator                lab.Usage     // when idle
}

// recovery is how a fleet became Ready after a start of the manager.
type recovery struct {
	serving time.Duration // the port answers
	tunnels time.Duration // every report is read
	ready   time.Duration // and every Cluster is Ready
	left    int           // Clusters that were shown as not Ready in the meantime, though they had been Ready
	peak    int64         // bytes resident at most since the start of the process
}

func (s *step) run(ctx context.Context) (r result, err error) {
	r.members = s.members
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	plane, err := stage.StartPlane(ctx, s.programs, "hub", s.dir, lab.User{Name: user, Token: userToken})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, plane.Stop()) }()
	if err := s.bringUp(ctx, plane); err != nil {
		return r, err
	}
	defer func() { _ = s.hub.Manager.Kill() }()
	s.say("measuring the manager without members")
	if r.empty, err = s.probe.footprint(ctx, s.hub.Manager, baselineWindow); err != nil {
		return r, err
	}
	fleet, err := s.enrol(ctx)
	if err != nil {
		return r, err
	}
	defer func() { _ = fleet.Kill() }()
	s.status = watchReadiness(ctx, plane.Client)
	defer s.status.stop()
	return r, s.measure(ctx, fleet, &r)
}

// measure takes the fleet from a cold start through idleness, a storm and the death of the manager.
func (s *step) measure(ctx context.Context, fleet *lab.Process, r *result) error {
	before, err := s.probe.writes(ctx)
	if err != nil {
		return err
	}
	s.say("first start of the manager with all agents waiting")
	if r.cold, err = s.recover(ctx); err != nil {
		return fmt.Errorf("cold start: %w", err)
	}
	after, err := s.settled(ctx)
	if err != nil {
		return err
	}
	r.coldWrites = after.minus(before)
	s.say("measuring the idle fleet")
	if r.idle, err = s.probe.footprint(ctx, s.hub.Manager, s.idle); err != nil {
		return err
	}
	if r.simulator, err = fleet.Usage(); err != nil {
		return err
	}
	s.say("requests to random members of the idle fleet")
	r.proxyIdle = s.load(ctx, func(ctx context.Context) { pause(ctx, proxyWindow) })
	s.say("waiting until the tunnels are so old that their agents come back at once")
	pause(ctx, healthy-s.idle-proxyWindow)
	s.say("requests to random members in a storm of reconnecting agents")
	if err := s.raise(ctx, r); err != nil {
		return fmt.Errorf("storm: %w", err)
	}
	s.say("waiting again for the tunnels to be old enough")
	pause(ctx, healthy)
	s.say("SIGKILL of the manager, and another start")
	s.status.reset()
	if err := s.hub.Manager.Kill(); err != nil {
		return err
	}
	if r.killed, err = s.recover(ctx); err != nil {
		return fmt.Errorf("after the kill: %w", err)
	}
	s.say("a start after an outage")
	if err := s.interrupt(ctx, r); err != nil {
		return fmt.Errorf("after the outage: %w", err)
	}
	return nil
}

// interrupt keeps the manager away for so long that its agents have slowed down.
func (s *step) interrupt(ctx context.Context, r *result) error {
	before, err := s.settled(ctx)
	if err != nil {
		return err
	}
	s.status.reset()
	if err := s.hub.Manager.Stop(ctx); err != nil {
		return err
	}
	pause(ctx, outage)
	if r.outage, err = s.recover(ctx); err != nil {
		return err
	}
	after, err := s.settled(ctx)
	r.outageWrites = after.minus(before)
	return err
}

// bringUp installs the hub and lets the user in.
func (s *step) bringUp(ctx context.Context, plane *stage.Plane) error {
	s.say("starting the hub")
	hub, err := stage.InstallHub(ctx, plane)
	if err != nil {
		return err
	}
	s.hub = hub
	role := &rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{v1.Group}, Resources: []string{"clusters/proxy"}, Verbs: []string{"get"}},
		{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}},
	}}
	binding := &rbacv1.ClusterRoleBinding{
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}
	role.Name, binding.Name = user, user
	if err := errors.Join(plane.Client.Create(ctx, role), plane.Client.Create(ctx, binding)); err != nil {
		return fmt.Errorf("let the user in: %w", err)
	}
	s.probe, err = newProbe(ctx, hub)
	return err
}

// enrol stops the manager, starts the simulator and returns when every agent has tried for so long that it waits for long.
func (s *step) enrol(ctx context.Context) (*lab.Process, error) {
	bundle, err := s.hub.Bundle(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.hub.Manager.Stop(ctx); err != nil {
		return nil, err
	}
	kubeconfig, ca, socket := filepath.Join(s.dir, "sim.kubeconfig"), filepath.Join(s.dir, "ca.crt"), filepath.Join(s.dir, "sim.sock")
	if err := errors.Join(s.hub.WriteKubeconfig(kubeconfig), os.WriteFile(ca, bundle, 0o600)); err != nil {
		return nil, err
	}
	s.say("creating the Clusters; the agents start and find no manager")
	process, err := lab.Command{
		Name: "fleetsim", Path: s.simulator, LogFile: filepath.Join(s.dir, "fleetsim.log"),
		Args: []string{
			"-kubeconfig", kubeconfig, "-server", s.hub.URL(), "-ca", ca, "-control", socket,
			"-clusters", strconv.Itoa(s.members), "-workspaces", strconv.Itoa(s.workspaces),
		},
	}.Start()
	if err != nil {
		return nil, err
	}
	s.sim = sim.NewClient(socket)
	waiting, cancel := context.WithTimeout(ctx, phaseLimit)
	defer cancel()
	err = process.WaitReady(waiting, func(ctx context.Context) error {
		state, err := s.sim.State(ctx)
		if err == nil && state.LeastAttempts < waitingTries {
			err = fmt.Errorf("an agent has tried %d times only", state.LeastAttempts)
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, process.Kill())
	}
	return process, nil
}

// recover starts the manager and returns when all members are connected and Ready.
func (s *step) recover(ctx context.Context) (recovery, error) {
	ctx, cancel := context.WithTimeout(ctx, phaseLimit)
	defer cancel()
	start := time.Now()
	if err := s.hub.StartManager(ctx); err != nil {
		return recovery{}, err
	}
	r := recovery{serving: time.Since(start)}
	var state sim.State
	for r.ready == 0 {
		var err error
		if state, err = s.sim.State(ctx); err == nil {
			err = s.tick(ctx)
		}
		ready, left := s.status.count()
		if err != nil {
			return r, fmt.Errorf("%w; of %d members %d have a tunnel, %d report, %d are Ready", err, s.members, state.Connected, state.Reporting, ready)
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
	var err error
	r.peak, err = peakResident(s.hub.Manager.PID())
	return r, err
}

// settled waits until nothing is written any more, and returns what has been until then.
func (s *step) settled(ctx context.Context) (writes, error) {
	ctx, cancel := context.WithTimeout(ctx, phaseLimit)
	defer cancel()
	s.say("waiting until nothing is written any more")
	last, err := s.probe.writes(ctx)
	for err == nil {
		if !pause(ctx, quietFor) {
			return nil, fmt.Errorf("the fleet never settled: %w", ctx.Err())
		}
		var now writes
		if now, err = s.probe.writes(ctx); err == nil && now.minus(last).total(false) <= quietWrites {
			return now, nil
		}
		last = now
	}
	return nil, err
}

// raise cuts most tunnels at once and asks for members until they are back.
func (s *step) raise(ctx context.Context, r *result) error {
	ctx, cancel := context.WithTimeout(ctx, phaseLimit)
	defer cancel()
	var failure error
	r.proxyStorm = s.load(ctx, func(ctx context.Context) {
		start := time.Now()
		before, err := s.sim.State(ctx)
		if err == nil {
			r.stormCut, err = s.sim.Cut(ctx, spare)
		}
		for state := before; err == nil; state, err = s.sim.State(ctx) {
			// A tunnel counts as cut when its Serve has returned: before that, the agent still counts as reporting.
			if state.Ended-before.Ended >= int64(r.stormCut) && state.Reporting == s.members {
				break
			}
			if err = s.tick(ctx); err != nil {
				break
			}
		}
		r.storm, failure = time.Since(start), err
		pause(ctx, stormWindow-r.storm)
	})
	return failure
}

// load asks for random members while during runs.
func (s *step) load(ctx context.Context, during func(context.Context)) latencies {
	loading, cancel := context.WithCancel(ctx)
	found := make(chan latencies)
	go func() { found <- s.probe.requests(loading, s.members, s.workspaces) }()
	during(ctx)
	cancel()
	return <-found
}

func (s *step) say(what string) {
	fmt.Fprintf(os.Stderr, "%4.0f s  %d members: %s\n", time.Since(s.begun).Seconds(), s.members, what)
}

const pollInterval = 100 * time.Millisecond

// tick is the pause between two looks. It errs when there is no point in another one.
func (s *step) tick(ctx context.Context) error {
	if !pause(ctx, pollInterval) {
		return ctx.Err()
	}
	select {
	case <-s.hub.Manager.Exited():
		return fmt.Errorf("the manager has ended by itself: %v; see %s (-keep keeps it)", s.hub.Manager.Err(), s.hub.Manager.LogFile())
	default:
		return nil
	}
}

// pause is false when ctx ended first.
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
