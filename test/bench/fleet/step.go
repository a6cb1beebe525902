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
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/fleetsim/sim"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
)

// user is the name of a user who can reach the members through the hub and read the managers' metrics.
const (
	user      = "bench"
	userToken = "bench-0123456789abcdef"
)

// Times of a step.
const (
	baselineWindow = 30 * time.Second // of the managers without members
	proxyWindow    = 20 * time.Second // of requests to an idle fleet
	stormWindow    = 10 * time.Second // of requests during a storm, at least
	churnWindow    = time.Minute      // of churn and changes
	quietFor       = 5 * time.Second  // with no more than quietWrites, what a control plane writes for itself, the fleet counts as settled
	quietWrites    = 2
	outage         = time.Minute      // after which the back-off of most agents is at its longest, 30 s
	phaseLimit     = 10 * time.Minute // for anything that is waited for
	healthy        = 62 * time.Second // after which a tunnel that ends is dialled again at once
	waitingTries   = 6                // after which the back-off of an agent is at its longest, 30 s
	spare          = 10               // every spare-th member keeps its tunnel in the storm
)

// size is the size of a step.
type size struct{ members, managers int }

func (s size) String() string {
	if s.managers == 1 {
		return fmt.Sprintf("%d members", s.members)
	}
	return fmt.Sprintf("%d members, %d managers", s.members, s.managers)
}

// step measures one fleet size on a new hub.
type step struct {
	settings
	size
	programs  framework.Programs
	simulator string
	dir       string
	begun     time.Time

	hub    *framework.Hub // set by bringUp
	sim    *sim.Client
	probe  *probe
	status *readiness
}

// result contains the measurements of a step.
type result struct {
	size
	empty, idle footprint // of all managers
	simulator   lab.Usage // when idle
	// recoveries: initially, with only Clusters and keys; after SIGKILL of one manager; after an outage.
	cold, killed, outage recovery
	proxyIdle            latencies
	storm                storm
	churn                churn
}

func (s *step) run(ctx context.Context) (r result, err error) {
	r.size = s.size
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	plane, err := framework.StartPlane(ctx, s.programs, "hub", s.dir, lab.User{Name: user, Token: userToken})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, plane.Stop()) }()
	s.say("starting the hub")
	s.hub, err = framework.InstallReplicas(ctx, plane, framework.Layout{Replicas: s.managers})
	if s.hub != nil {
		defer func() { _ = s.hub.StopManagers() }()
	}
	if err != nil {
		return r, err
	}
	if err := s.letIn(ctx, plane); err != nil {
		return r, err
	}
	s.say("measuring the managers without members")
	if r.empty, err = s.probe.footprint(ctx, s.hub.Replicas, baselineWindow); err != nil {
		return r, err
	}
	fleet, err := s.enrol(ctx)
	if err != nil {
		return r, err
	}
	defer func() { _ = fleet.Kill() }()
	s.status = watchReadiness(ctx, plane.Client, s.hosts)
	defer s.status.stop()
	return r, s.measure(ctx, fleet, &r)
}

// measure measures the fleet during a cold start, at rest, during a storm and churn, and after a manager was killed.
func (s *step) measure(ctx context.Context, fleet *lab.Process, r *result) (err error) {
	s.say("first start with all agents waiting")
	if r.cold, err = s.restart(ctx); err != nil {
		return fmt.Errorf("cold start: %w", err)
	}
	if s.starts {
		return s.measureOutage(ctx, r)
	}
	s.say("measuring the idle fleet")
	if r.idle, err = s.probe.footprint(ctx, s.hub.Replicas, s.idle); err != nil {
		return err
	}
	if r.simulator, err = fleet.Usage(); err != nil {
		return err
	}
	if s.hosts {
		return s.measureOutage(ctx, r)
	}
	s.say("requests to random members of the idle fleet")
	r.proxyIdle = s.load(ctx, func(ctx context.Context) { pause(ctx, proxyWindow) })
	s.say("waiting until the tunnels are so old that their agents come back at once")
	pause(ctx, healthy-s.idle-proxyWindow)
	s.say("requests to random members in a storm of reconnecting agents")
	if r.storm, err = s.cutTunnels(ctx); err != nil {
		return fmt.Errorf("storm: %w", err)
	}
	s.say("waiting again for the tunnels to be old enough")
	pause(ctx, healthy)
	s.say("requests to random members while tunnels come and go and states change")
	if r.churn, err = s.churnTunnels(ctx); err != nil {
		return fmt.Errorf("churn: %w", err)
	}
	s.say("SIGKILL of a manager")
	if r.killed, err = s.kill(ctx); err != nil {
		return fmt.Errorf("after the kill: %w", err)
	}
	return s.measureOutage(ctx, r)
}

func (s *step) measureOutage(ctx context.Context, r *result) (err error) {
	s.say("a start after an outage")
	if r.outage, err = s.interrupt(ctx); err != nil {
		return fmt.Errorf("after the outage: %w", err)
	}
	return nil
}

// letIn grants the user the rights that a step needs.
func (s *step) letIn(ctx context.Context, plane *framework.Plane) error {
	role := &rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{v1.Group}, Resources: []string{"clusters/proxy"}, Verbs: []string{"get"}},
		{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}},
	}}
	binding := &rbacv1.ClusterRoleBinding{
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
	}
	role.Name, binding.Name = user, user
	err := errors.Join(plane.Client.Create(ctx, role), plane.Client.Create(ctx, binding))
	if err != nil {
		return fmt.Errorf("let the user in: %w", err)
	}
	s.probe, err = newProbe(ctx, s.hub)
	return err
}

// enrol stops the managers, starts the simulator, and returns when the backoff of every agent is long.
func (s *step) enrol(ctx context.Context) (*lab.Process, error) {
	bundle, err := s.hub.Bundle(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.stopManagers(ctx); err != nil {
		return nil, err
	}
	kubeconfig, ca, socket := filepath.Join(s.dir, "sim.kubeconfig"), filepath.Join(s.dir, "ca.crt"), filepath.Join(s.dir, "sim.sock")
	if err := errors.Join(s.hub.WriteKubeconfig(kubeconfig), os.WriteFile(ca, bundle, 0o600)); err != nil {
		return nil, err
	}
	s.say("creating the Clusters, or Hosts; the agents start and find no manager")
	process, err := lab.Command{
		Name: "fleetsim", Path: s.simulator, LogFile: filepath.Join(s.dir, "fleetsim.log"),
		Args: []string{
			"-kubeconfig", kubeconfig, "-server", s.hub.URL(), "-ca", ca, "-control", socket, "-latency", s.latency.String(),
			"-clusters", strconv.Itoa(s.members), "-workspaces", strconv.Itoa(s.workspaces), "-through", strings.Join(s.addresses(), ","), fmt.Sprintf("-hosts=%t", s.hosts),
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

// addresses are the addresses of all managers. The agents of ten thousand members distribute themselves among the
// managers, because a balancer in this process would use more resources than a manager.
func (s *step) addresses() []string {
	var list []string
	for _, manager := range s.hub.Replicas {
		list = append(list, manager.Address)
	}
	return list
}

func (s *step) say(what string) {
	fmt.Fprintf(os.Stderr, "%4.0f s  %s: %s\n", time.Since(s.begun).Seconds(), s.size, what)
}
