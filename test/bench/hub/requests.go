// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/drover-dev/drover/test/lab"
)

const (
	configMapPath  = "/api/v1/namespaces/" + workspace + "/configmaps/" + configMap
	namespacesPath = "/api/v1/namespaces"
	watchPath      = "/api/v1/namespaces/" + workspace + "/configmaps?watch=true&fieldSelector=metadata.name%3D" + configMap
)

// way is one of the paths to the member.
type way struct {
	name   string
	caller *caller
	prefix string
}

func (b *bench) ways() []way {
	return []way{{"direct", b.direct, ""}, {"copied", b.copied, ""}, {"hub", b.through, b.agents[0].path("")}}
}

// requests measures small requests and watch events on all paths.
func (b *bench) requests(ctx context.Context) error {
	for _, m := range []struct {
		key, path string
		atOnce    int
	}{{"get-1", configMapPath, 1}, {"get-16", configMapPath, 16}, {"list-1", namespacesPath, 1}, {"list-16", namespacesPath, 16}} {
		if err := b.inTurns(ctx, m.key, m.path, m.atOnce); err != nil {
			return err
		}
	}
	if err := b.cpuPerRequest(ctx); err != nil {
		return err
	}
	return b.watchEvents(ctx)
}

// inTurns measures all paths alternately in short blocks, so that other load on the machine affects them equally.
func (b *bench) inTurns(ctx context.Context, key, path string, n int) error {
	for _, way := range b.ways() {
		if _, err := way.caller.repeat(ctx, way.prefix+path, b.warmUp/2, n); err != nil {
			return err
		}
	}
	const blocks = 20
	spent := map[string]time.Duration{}
	for i := range blocks {
		for _, way := range turned(b.ways(), i) {
			measured, err := way.caller.repeat(ctx, way.prefix+path, b.calls/blocks, n)
			if err != nil {
				return err
			}
			for _, each := range measured.each {
				b.results.add(key+"-"+way.name, millis(each))
			}
			spent[way.name] += measured.all
		}
	}
	for name, took := range spent {
		b.results.add(key+"-"+name+"-rate", float64(b.calls/blocks*blocks)/took.Seconds())
	}
	return nil
}

// cpuPerRequest measures the CPU time of a GET in each process on its path.
func (b *bench) cpuPerRequest(ctx context.Context) error {
	processes := map[string]*lab.Process{"apiserver": b.member.Process(lab.APIServer), "manager": b.hub.Manager, "agent": b.agents[0].Process}
	for _, way := range b.ways() {
		clocks := map[string]cpuClock{}
		for name, process := range processes {
			clock, err := startClock(process)
			if err != nil {
				return err
			}
			clocks[name] = clock
		}
		before, err := ownCPU()
		if err != nil {
			return err
		}
		if _, err := way.caller.repeat(ctx, way.prefix+configMapPath, b.calls, 16); err != nil {
			return err
		}
		after, err := ownCPU()
		if err != nil {
			return err
		}
		b.results.add("cpu-"+way.name+"-client", millis(after-before)/float64(b.calls))
		for name, clock := range clocks {
			used, err := clock.read()
			if err != nil {
				return err
			}
			b.results.add("cpu-"+way.name+"-"+name, millis(used)/float64(b.calls))
		}
	}
	return nil
}

// ownCPU returns the CPU time that this process has used.
func ownCPU() (time.Duration, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0, fmt.Errorf("read own CPU time: %w", err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}

// turned rotates the order, so that a different path comes first in each round.
func turned(ways []way, round int) []way {
	k := round % len(ways)
	return append(append([]way{}, ways[k:]...), ways[:k]...)
}

// watchEvents measures the time from a write to the arrival of its event, on all paths and for the same writes.
func (b *bench) watchEvents(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watches := map[string]watch{}
	for _, way := range b.ways() {
		w := make(watch)
		watches[way.name] = w
		running.Go(func() { w.follow(ctx, way) })
	}
	for i := range b.events + 1 {
		value := strconv.Itoa(i)
		begun := time.Now()
		if i > 0 { // a watch first returns the existing objects
			if err := b.direct.patch(ctx, configMapPath, `{"data":{"n":"`+value+`"}}`); err != nil {
				return err
			}
		}
		for name, w := range watches {
			at, err := w.await(value)
			if err != nil {
				return fmt.Errorf("watch by way %q: %w", name, err)
			}
			if i > 0 {
				b.results.add("watch-"+name, millis(at.Sub(begun)))
			}
		}
	}
	return nil
}

// watch returns the events of a watch.
type watch chan arrival

type arrival struct {
	value string
	at    time.Time
	err   error
}

// follow sends each event until ctx or the watch ends.
func (w watch) follow(ctx context.Context, by way) {
	defer close(w)
	err := by.caller.lines(ctx, by.prefix+watchPath, func(line []byte) error {
		at := time.Now()
		var event struct {
			Object struct {
				Data map[string]string `json:"data"`
			} `json:"object"`
		}
		if err := json.Unmarshal(line, &event); err != nil {
			return err
		}
		return w.send(ctx, arrival{value: event.Object.Data["n"], at: at})
	})
	if err != nil {
		_ = w.send(ctx, arrival{err: err}) // or there is no reader any more
	}
}

func (w watch) send(ctx context.Context, a arrival) error {
	select {
	case w <- a:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// await skips events until the event with the given value.
func (w watch) await(value string) (time.Time, error) {
	for a := range w {
		if a.err != nil || a.value == value {
			return a.at, a.err
		}
	}
	return time.Time{}, errors.New("it has ended")
}
