// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"sync"
	"time"
)

// clock calls a function when an operation has taken too long, or when a check is due. The zero value never calls a
// function.
type clock struct {
	limit time.Duration

	mu    sync.Mutex // guards the fields below
	timer *time.Timer
	ended bool
}

// start starts the clock. The clock calls late after it has run for limit without a pause. Each resume starts the count
// again.
func (c *clock) start(limit time.Duration, late func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit, c.timer = limit, time.AfterFunc(limit, late)
}

// pause stops the clock while the proxy waits for the user. resume starts the clock again from zero.
func (c *clock) pause() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
}

func (c *clock) resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil && !c.ended {
		c.timer.Reset(c.limit)
	}
}

// end stops the clock permanently.
func (c *clock) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.timer != nil {
		c.timer.Stop()
	}
}
