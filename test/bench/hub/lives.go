// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
)

// startTimed starts an agent whose Cluster is not Ready, and returns the time until the Cluster was Ready.
func (p *processes) startTimed(ctx context.Context, a *agent) (time.Duration, error) {
	begun := time.Now()
	if err := a.start(); err != nil {
		return 0, err
	}
	ready, err := p.clusters.await(ctx, a.cluster, framework.Ready)
	return ready.Sub(begun), err
}

// joined adds an agent that joins for the first time.
func (b *bench) joined(ctx context.Context, name string) error {
	a, err := b.newAgent(ctx, name)
	if err != nil {
		return err
	}
	b.agents = append(b.agents, a)
	took, err := b.startTimed(ctx, a)
	b.results.add("join", millis(took))
	return err
}

func (b *bench) firstJoin(ctx context.Context) error { return b.joined(ctx, "first") }

// moreJoins repeats the first join with other Clusters.
func (b *bench) moreJoins(ctx context.Context) error {
	for i := range b.repeats - 1 {
		if err := b.joined(ctx, fmt.Sprintf("more-%d", i+1)); err != nil {
			return err
		}
	}
	return nil
}

// agentRestarts kills the first agent, waits until the status shows it, and starts the agent again.
func (b *bench) agentRestarts(ctx context.Context) error {
	a := b.agents[0]
	for range b.repeats {
		begun := time.Now()
		if err := a.kill(); err != nil {
			return err
		}
		lost, err := b.clusters.await(ctx, a.cluster, framework.NotReady(v1.ReasonTunnelLost))
		if err != nil {
			return err
		}
		b.results.add("killed", millis(lost.Sub(begun)))
		took, err := b.startTimed(ctx, a)
		if err != nil {
			return err
		}
		b.results.add("restart", millis(took))
	}
	return nil
}

// hangAndRemovals keeps only the first agent. Both measurements mostly consist of waiting, so they run at the same
// time.
func (b *bench) hangAndRemovals(ctx context.Context) error {
	dead := b.agents[1:]
	b.agents = b.agents[:1]
	for _, a := range dead {
		if err := a.kill(); err != nil {
			return err
		}
		if _, err := b.clusters.await(ctx, a.cluster, framework.NotReady(v1.ReasonTunnelLost)); err != nil {
			return err
		}
	}
	removals := make([]time.Duration, len(dead))
	var hung time.Duration
	group, ctx := errgroup.WithContext(ctx)
	for i, a := range dead {
		group.Go(func() (err error) {
			removals[i], err = b.removal(ctx, a)
			return err
		})
	}
	group.Go(func() (err error) {
		hung, err = b.hang(ctx, b.agents[0])
		return err
	})
	if err := group.Wait(); err != nil {
		return err
	}
	b.results.add("hung", hung.Seconds())
	for _, took := range removals {
		b.results.add("removal", took.Seconds())
	}
	return nil
}

// removal deletes a Cluster that cannot be reached, and returns when it is gone.
func (p *processes) removal(ctx context.Context, a *agent) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: a.cluster.Namespace, Name: a.cluster.Name}}
	begun := time.Now()
	if err := p.hub.Client.Delete(ctx, cluster); err != nil {
		return 0, fmt.Errorf("delete cluster %s: %w", a.cluster, err)
	}
	err := p.hub.AwaitGone(ctx, cluster)
	return time.Since(begun), err
}

// hang suspends an agent with a signal until its Cluster is not Ready, and resumes it.
func (p *processes) hang(ctx context.Context, a *agent) (time.Duration, error) {
	begun := time.Now()
	if err := a.Process.Pause(); err != nil {
		return 0, err
	}
	lost, err := p.clusters.await(ctx, a.cluster, framework.NotReady(v1.ReasonTunnelLost))
	if err != nil {
		return 0, err
	}
	if err := a.Process.Resume(); err != nil {
		return 0, err
	}
	_, err = p.clusters.await(ctx, a.cluster, framework.Ready)
	return lost.Sub(begun), err
}

// joinsTogether prepares many agents, starts them at the same time, and waits for the last one.
func (b *bench) joinsTogether(ctx context.Context) error {
	fresh := make([]*agent, b.together)
	preparing, within := errgroup.WithContext(ctx)
	preparing.SetLimit(4)
	for i := range fresh {
		preparing.Go(func() (err error) {
			fresh[i], err = b.newAgent(within, fmt.Sprintf("one-of-many-%d", i+1))
			return err
		})
	}
	if err := preparing.Wait(); err != nil {
		return err
	}
	b.agents = append(b.agents, fresh...)
	return b.measureCost(ctx, fresh, func() error {
		begun := time.Now()
		for _, a := range fresh {
			if err := a.start(); err != nil {
				return err
			}
		}
		var last time.Duration
		for _, a := range fresh {
			ready, err := b.clusters.await(ctx, a.cluster, framework.Ready)
			if err != nil {
				return err
			}
			last = max(last, ready.Sub(begun))
		}
		b.results.add("together", last.Seconds())
		return nil
	})
}

// measureCost measures the cost of each agent until all of them are Ready: CPU time, and writes to both API servers.
// These values are also meaningful on a busy machine.
func (b *bench) measureCost(ctx context.Context, agents []*agent, join func() error) error {
	costs := []struct {
		key     string
		process *lab.Process
		plane   *lab.ControlPlane // whose writes are counted; nil for none
	}{
		{"join-hub", b.hub.Process(lab.APIServer), b.hub.ControlPlane}, {"join-member", b.member.Process(lab.APIServer), b.member.ControlPlane}, {"join-manager", b.hub.Manager, nil},
	}
	clocks, counts := make([]cpuClock, len(costs)), make([]*writeCount, len(costs))
	for i, c := range costs {
		var err error
		if clocks[i], err = startClock(c.process); err != nil {
			return err
		}
		if c.plane == nil {
			continue
		}
		if counts[i], err = countWrites(ctx, c.plane); err != nil {
			return err
		}
	}
	if err := join(); err != nil {
		return err
	}
	each := float64(len(agents))
	for i, c := range costs {
		used, err := clocks[i].read()
		if err != nil {
			return err
		}
		b.results.add(c.key+"-cpu", millis(used)/each)
		if c.plane == nil {
			continue
		}
		if err := counts[i].stop(ctx); err != nil {
			return err
		}
		b.results.add(c.key+"-writes", counts[i].sum()/each)
	}
	for _, a := range agents {
		usage, err := a.Process.Usage()
		if err != nil {
			return err
		}
		b.results.add("join-agent-cpu", millis(usage.CPU))
	}
	return nil
}

// managerRestarts kills the manager and starts it again, and measures the time until every member is served, first with
// all agents and then with one agent.
func (b *bench) managerRestarts(ctx context.Context) error {
	if err := b.managerRestart(ctx, "manager-back-many"); err != nil {
		return err
	}
	for _, a := range b.agents[1:] {
		if err := a.kill(); err != nil {
			return err
		}
	}
	b.agents = b.agents[:1]
	return b.managerRestart(ctx, "manager-back-one")
}

func (b *bench) managerRestart(ctx context.Context, key string) error {
	for range min(b.repeats, 3) {
		if err := b.restartAgents(ctx); err != nil {
			return err
		}
		begun := time.Now()
		if err := b.hub.Manager.Kill(); err != nil {
			return err
		}
		if err := b.hub.StartManager(ctx); err != nil {
			return err
		}
		if err := b.awaitMembers(ctx); err != nil {
			return err
		}
		b.results.add(key, time.Since(begun).Seconds())
	}
	return nil
}

// restartAgents restarts the agents to reset their backoff. After losing the hub, they wait for up to half a minute
// before they reconnect, which would distort the next measurement.
func (p *processes) restartAgents(ctx context.Context) error {
	for _, a := range p.agents {
		if err := a.kill(); err != nil {
			return err
		}
	}
	for _, a := range p.agents {
		if err := a.start(); err != nil {
			return err
		}
	}
	return p.awaitMembers(ctx)
}

// awaitMembers waits until every member responds through the hub.
func (p *processes) awaitMembers(ctx context.Context) error {
	for _, a := range p.agents {
		err := eventually(ctx, func() error { return p.through.get(ctx, a.path(configMapPath)) })
		if err != nil {
			return fmt.Errorf("wait for cluster %s to answer: %w", a.cluster, err)
		}
	}
	return nil
}

// eventually calls a function every 10 ms until it returns no error.
func eventually(ctx context.Context, ask func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := ask()
		if err == nil || pause(ctx, 10*time.Millisecond) != nil {
			return err
		}
	}
}
