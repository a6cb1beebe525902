// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"sync"

	"github.com/drover-dev/drover/internal/rollout"
)

// drains holds drains in progress and finished drains, at most one for each node.
type drains struct {
	options Options
	ended   func() // called when a drain has ended

	mu  sync.Mutex // guards the fields below and their contents
	all map[string]*draining
}

// draining is a drain and its result.
type draining struct {
	drain
	cancel context.CancelFunc
	done   bool
	failed string
}

func newDrains(o Options, ended func()) *drains {
	return &drains{options: o, ended: ended, all: map[string]*draining{}}
}

// start starts a drain, and cancels any other drain of the node. The drain is added to the wait group running.
func (d *drains) start(ctx context.Context, running *sync.WaitGroup, wanted drain) {
	ctx, cancel := context.WithCancel(ctx)
	one := &draining{drain: wanted, cancel: cancel}
	d.mu.Lock()
	if before := d.all[wanted.node]; before != nil {
		before.cancel()
	}
	d.all[wanted.node] = one
	d.mu.Unlock()
	running.Go(func() {
		defer d.ended()
		defer cancel()
		err := Drain(ctx, d.options, wanted.node, wanted.spec)
		d.mu.Lock()
		defer d.mu.Unlock()
		if one.done = true; err != nil {
			one.failed = err.Error()
		}
	})
}

// follow cancels drains that no claim needs anymore, and returns the state of the remaining drains.
func (d *drains) follow(nodes []rollout.Node) map[string]rollout.Drain {
	wanted := map[string]bool{}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.all) == 0 {
		return nil
	}
	for i := range nodes {
		one := d.all[nodes[i].Name]
		if one == nil {
			continue
		}
		c, at := nodes[i].Claims[one.plan]
		wanted[one.node] = at && c.Hash == one.hash && c.Attempt == one.attempt && c.Failure == nil
	}
	known := map[string]rollout.Drain{}
	for node, one := range d.all {
		if !wanted[node] {
			one.cancel()
			delete(d.all, node)
			continue
		}
		known[node] = rollout.Drain{Hash: one.hash, Attempt: one.attempt, Done: one.done, Failed: one.failed}
	}
	return known
}
