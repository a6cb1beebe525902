// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/drover-dev/drover/test/lab"
)

// freshRepeats is the number of times that the manager is restarted to measure its memory, because single samples vary
// with garbage collection.
const freshRepeats = 2

// footprintOfOne measures the memory of the manager and the agent with one member.
func (b *bench) footprintOfOne(ctx context.Context) error {
	if err := b.weighFreshManager(ctx, "one"); err != nil {
		return err
	}
	return b.measureCPU(ctx, "one", b.window)
}

// footprintOfMany measures the memory of the programs with many members, and counts the writes on the hub at the same
// time.
func (b *bench) footprintOfMany(ctx context.Context) error {
	if err := b.weighFreshManager(ctx, "many"); err != nil {
		return err
	}
	// After this time, the manager no longer waits for agents to reconnect.
	if err := pause(ctx, 2*b.settle); err != nil {
		return err
	}
	hub, err := countWrites(ctx, b.hub.ControlPlane)
	if err != nil {
		return err
	}
	if err := b.measureCPU(ctx, "many", b.writes); err != nil {
		return err
	}
	if err := hub.stop(ctx); err != nil {
		return err
	}
	b.noteWrites(hub)
	if err := b.weighAgents(); err != nil {
		return err
	}
	goroutines, err := goroutinesOf(ctx, b.agents[len(b.agents)-1])
	b.results.add("agent-goroutines", float64(goroutines))
	return err
}

// weighFreshManager restarts the manager to discard the effects of earlier work. It measures the manager's memory three
// times: when the manager is the leader, has all members and is idle; right after some thousand requests, before their
// garbage has been collected; and after a rest, when the memory has been returned (docs/design/0060-garbage.md). The
// last value is the best for comparisons, because the value of a new process depends on the load at its start.
func (b *bench) weighFreshManager(ctx context.Context, members string) error {
	for range freshRepeats {
		if err := b.hub.Manager.Stop(ctx); err != nil { // an orderly end gives its lease back: the next leads at once
			return err
		}
		if err := b.hub.StartManager(ctx); err != nil {
			return err
		}
		if err := b.restartAgents(ctx); err != nil {
			return err
		}
		if err := b.awaitLeader(ctx); err != nil {
			return err
		}
		if err := pause(ctx, b.settle); err != nil {
			return err
		}
		if err := b.weighManager("manager-" + members + "-fresh"); err != nil {
			return err
		}
		goroutines, err := b.managerGauge(ctx, "go_goroutines")
		if err != nil {
			return err
		}
		b.results.add("manager-"+members+"-goroutines", goroutines)
		if _, err := b.through.repeat(ctx, b.agents[0].path(configMapPath), b.warmUp, 16); err != nil {
			return err
		}
		if err := b.weighManager("manager-" + members + "-worked"); err != nil {
			return err
		}
		if err := pause(ctx, b.settle); err != nil {
			return err
		}
		if err := b.weighManager("manager-" + members + "-rested"); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) weighManager(key string) error {
	usage, err := b.hub.Manager.Usage()
	if err != nil {
		return err
	}
	b.results.add(key+"-rss", mib(usage.RSS))
	b.results.add(key+"-anon", mib(usage.Anonymous))
	return nil
}

// awaitLeader waits until the manager is the leader, because its controllers do not run before that.
func (p *processes) awaitLeader(ctx context.Context) error {
	return eventually(ctx, func() error {
		leads, err := p.managerGauge(ctx, "leader_election_master_status")
		if err == nil && leads != 1 {
			err = errors.New("wait for the manager to lead: it does not")
		}
		return err
	})
}

// managerGauge returns the value of one of the manager's metrics.
func (p *processes) managerGauge(ctx context.Context, name string) (float64, error) {
	metrics, err := p.scraper.text(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	value, ok := gauge(metrics, name)
	if !ok {
		return 0, fmt.Errorf("the manager's metrics have no %s", name)
	}
	return value, nil
}

// measureCPU measures the CPU time of the manager and of all agents while they are idle, in percent of one core.
func (b *bench) measureCPU(ctx context.Context, members string, over time.Duration) error {
	clock, err := startClock(b.hub.Manager)
	if err != nil {
		return err
	}
	clocks := make([]cpuClock, len(b.agents))
	for i, a := range b.agents {
		if clocks[i], err = startClock(a.Process); err != nil {
			return err
		}
	}
	if err := pause(ctx, over); err != nil {
		return err
	}
	percent, err := clock.percent()
	if err != nil {
		return err
	}
	b.results.add("manager-"+members+"-cpu", percent)
	for _, clock := range clocks {
		if percent, err = clock.percent(); err != nil {
			return err
		}
		b.results.add("agent-cpu", percent)
	}
	return nil
}

// cpuClock measures the CPU time of a process from a given time on.
type cpuClock struct {
	process *lab.Process
	at      time.Time
	used    time.Duration
}

func startClock(process *lab.Process) (cpuClock, error) {
	usage, err := process.Usage()
	return cpuClock{process: process, at: time.Now(), used: usage.CPU}, err
}

// read returns the CPU time since the start of the clock.
func (c cpuClock) read() (time.Duration, error) {
	usage, err := c.process.Usage()
	return usage.CPU - c.used, err
}

// percent returns that time as a percentage of one core.
func (c cpuClock) percent() (float64, error) {
	used, err := c.read()
	return 100 * used.Seconds() / time.Since(c.at).Seconds(), err
}

// weighAgents measures the memory of all agents except the first. These agents have been idle since they joined.
func (b *bench) weighAgents() error {
	for _, a := range b.agents[1:] {
		usage, err := a.Process.Usage()
		if err != nil {
			return err
		}
		b.results.add("agent-rss", mib(usage.RSS))
		b.results.add("agent-anon", mib(usage.Anonymous))
	}
	return nil
}

// goroutinesOf stops an agent with SIGQUIT, which makes the Go runtime write all goroutines to the log, and counts them
// there.
func goroutinesOf(ctx context.Context, a *agent) (int, error) {
	if err := a.Process.Signal(syscall.SIGQUIT); err != nil {
		return 0, err
	}
	select {
	case <-a.Process.Exited():
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	text, err := os.ReadFile(a.Log)
	if err != nil {
		return 0, fmt.Errorf("count goroutines: %w", err)
	}
	n := countGoroutines(string(text))
	if n == 0 {
		return 0, fmt.Errorf("count goroutines: there is none in %s", a.Log)
	}
	return n, nil
}

// countGoroutines counts the goroutines in a dump. The dump does not contain the runtime's own goroutines.
func countGoroutines(dump string) int {
	n := 0
	for line := range strings.Lines(dump) {
		if rest, ok := strings.CutPrefix(line, "goroutine "); ok && !strings.HasPrefix(rest, "0 ") && strings.Contains(rest, " [") {
			n++
		}
	}
	return n
}
