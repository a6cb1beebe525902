// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/drover-dev/drover/test/lab"
)

const (
	startLimit   = 60 * time.Second // for a start, on a hub whose API server hangs meanwhile
	restartPause = time.Second      // before a process that ended by itself is started again
)

// keeper keeps a process running, like a kubelet, and can stop it deliberately.
type keeper struct {
	name    string
	launch  func(context.Context) (*lab.Process, error) // returns the process, if there is one, even with an error
	journal *journal

	mu      sync.Mutex // guards what follows
	process *lab.Process
	wanted  bool
	changed chan struct{} // is closed when one of them changes
}

func newKeeper(j *journal, name string, launch func(context.Context) (*lab.Process, error)) *keeper {
	return &keeper{name: name, launch: launch, journal: j, wanted: true, changed: make(chan struct{})}
}

// run keeps the process running until ctx ends, and then leaves it in its current state.
func (k *keeper) run(ctx context.Context) {
	for ctx.Err() == nil {
		_, wanted, changed := k.state()
		if !wanted {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		k.once(ctx)
	}
}

// once starts the process, and returns when it has ended.
func (k *keeper) once(ctx context.Context) {
	process, _, _ := k.state()
	if process == nil || ended(process) {
		if process = k.start(ctx); process == nil {
			return
		}
	}
	select {
	case <-process.Exited():
	case <-ctx.Done():
		return
	}
	if _, wanted, _ := k.state(); wanted {
		k.journal.note("%s ended by itself: %v", k.name, process.Err())
		pause(ctx, restartPause)
	}
}

// start returns nil if the process does not start.
func (k *keeper) start(ctx context.Context) *lab.Process {
	limited, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	process, err := k.launch(limited)
	if err == nil {
		k.set(process, true)
		return process
	}
	if process != nil {
		_ = process.Kill()
	}
	if ctx.Err() == nil {
		k.journal.note("%s does not start: %.600v", k.name, err)
		pause(ctx, restartPause)
	}
	return nil
}

func (k *keeper) state() (process *lab.Process, wanted bool, changed <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.process, k.wanted, k.changed
}

func (k *keeper) set(process *lab.Process, wanted bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.process, k.wanted = process, wanted
	close(k.changed)
	k.changed = make(chan struct{})
}

// up waits until the process is running.
func (k *keeper) up(ctx context.Context) (*lab.Process, error) {
	for {
		process, _, changed := k.state()
		if process != nil && !ended(process) {
			return process, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("await %s: %w", k.name, ctx.Err())
		}
	}
}

// down ends the process with the given function, and starts it again after the given time.
func (k *keeper) down(ctx context.Context, lasts time.Duration, end func(*lab.Process) error) error {
	process, err := k.up(ctx)
	if err != nil {
		return err
	}
	k.set(process, false)
	defer k.set(process, true)
	if err := end(process); err != nil {
		return err
	}
	pause(ctx, lasts)
	return nil
}

// hang suspends the process for the given time.
func (k *keeper) hang(ctx context.Context, lasts time.Duration) error {
	process, err := k.up(ctx)
	if err != nil {
		return err
	}
	if err := process.Pause(); err != nil {
		return err
	}
	pause(ctx, lasts)
	return process.Resume()
}

func ended(p *lab.Process) bool {
	select {
	case <-p.Exited():
		return true
	default:
		return false
	}
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
