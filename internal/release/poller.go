// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Times between requests.
const (
	// Interval is how often a channel is asked, with a tenth of it as jitter.
	Interval = 15 * time.Minute
	// firstRetry is the wait after a failed request; it doubles up to Interval.
	firstRetry = 15 * time.Second
)

// maxRequests is how many channels are asked at once, and maxOwn how many of them for one workspace: a tenant whose channels answer slowly waits behind
// their own.
const (
	maxRequests = 8
	maxOwn      = 2
)

// Result is what is known of a channel.
type Result struct {
	// Version that was found last; empty if none was.
	Version string
	// Err is why the last request failed.
	Err error
	// Asked reports whether any request has ended.
	Asked bool
	// Next is when it is asked again.
	Next time.Time
}

// Poller caches the results of channels. It asks in the background when Result is called and the last result is old; no caller waits. NewPoller
// makes it. It may be used concurrently.
type Poller struct {
	ask   func(context.Context, string) (string, error)
	now   func() time.Time
	slots chan struct{}

	mu       sync.Mutex // guards what follows
	ctx      context.Context
	tasks    sync.WaitGroup
	own      map[string]*ownSlots // by workspace
	channels map[string]*channelState
	ended    []func(channel string)
}

// channelState is what the Poller knows of a channel. Poller.mu guards it.
type channelState struct {
	Result
	running  bool
	queued   map[string]bool // the workspaces for which it is about to be asked
	failures int
	wanted   time.Time
}

// ownSlots are those of a workspace. Poller.mu guards tasks.
type ownSlots struct {
	slots chan struct{}
	tasks int
}

// NewPoller makes a Poller that asks with ask, such as Client.Latest.
func NewPoller(ask func(context.Context, string) (string, error), now func() time.Time) *Poller {
	return &Poller{ask: ask, now: now, slots: make(chan struct{}, maxRequests), own: map[string]*ownSlots{}, channels: map[string]*channelState{}}
}

// OnPolled calls f after each request has ended. f must not block.
func (p *Poller) OnPolled(f func(channel string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = append(p.ended, f)
}

// Start sends requests until ctx ends, and returns when none is under way.
func (p *Poller) Start(ctx context.Context) error {
	p.mu.Lock()
	p.ctx = ctx
	ended := append([]func(string){}, p.ended...)
	var waiting []string
	for channel := range p.channels {
		waiting = append(waiting, channel)
	}
	p.mu.Unlock()
	for _, channel := range waiting {
		for _, f := range ended {
			f(channel)
		}
	}
	<-ctx.Done()
	p.mu.Lock()
	p.ctx = nil // nothing begins any more
	p.mu.Unlock()
	p.tasks.Wait()
	return nil
}

// Result returns what is known of a channel now. If a request is due, it starts one for a workspace. A channel that several workspaces read is asked once,
// for the first of them that has a slot.
func (p *Poller) Result(workspace, channel string) Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	c := p.channels[channel]
	if c == nil {
		p.forgetLocked(now)
		c = &channelState{queued: map[string]bool{}}
		p.channels[channel] = c
	}
	c.wanted = now
	if p.ctx != nil && p.ctx.Err() == nil && !c.running && !c.queued[workspace] && !now.Before(c.Next) {
		own := p.own[workspace]
		if own == nil {
			own = &ownSlots{slots: make(chan struct{}, maxOwn)}
			p.own[workspace] = own
		}
		c.queued[workspace] = true
		own.tasks++
		ctx := p.ctx
		p.tasks.Go(func() { p.run(ctx, workspace, own, channel) })
	}
	return c.Result
}

// forgetLocked drops channels whose Result was not called for long. p.mu is held.
func (p *Poller) forgetLocked(now time.Time) {
	for channel, c := range p.channels {
		if !c.running && len(c.queued) == 0 && now.Sub(c.wanted) > 2*Interval {
			delete(p.channels, channel)
		}
	}
}

// run asks a channel once there is a slot of the workspace and one of all.
func (p *Poller) run(ctx context.Context, workspace string, own *ownSlots, channel string) {
	defer p.leave(workspace, own)
	free := take(ctx, own.slots)
	if free {
		defer func() { <-own.slots }()
		if free = take(ctx, p.slots); free {
			defer func() { <-p.slots }()
		}
	}
	if p.begin(workspace, channel, free) {
		p.request(ctx, channel)
	}
}

func take(ctx context.Context, slots chan struct{}) bool {
	select {
	case slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// begin ends the wait of a workspace for slots, and reports whether the channel is to be asked now: no other workspace has asked it meanwhile.
func (p *Poller) begin(workspace, channel string, free bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.channels[channel]
	delete(c.queued, workspace)
	if !free || c.running || p.now().Before(c.Next) {
		return false
	}
	c.running = true
	return true
}

// leave forgets the slots of a workspace when no task needs them.
func (p *Poller) leave(workspace string, own *ownSlots) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if own.tasks--; own.tasks == 0 {
		delete(p.own, workspace)
	}
}

// request asks a channel, and records what it answers.
func (p *Poller) request(ctx context.Context, channel string) {
	version, err := p.ask(ctx, channel)
	p.mu.Lock()
	c := p.channels[channel]
	c.running, c.Asked, c.Err = false, true, err
	pause := Interval
	if err == nil {
		c.Version, c.failures = version, 0
	} else {
		if c.failures < 10 {
			pause = min(firstRetry<<c.failures, Interval)
		}
		c.failures++
	}
	c.Next = p.now().Add(jitter(pause))
	ended := append([]func(string){}, p.ended...)
	p.mu.Unlock()
	for _, f := range ended {
		f(channel)
	}
}

// jitter is a duration between nine and eleven tenths of d.
func jitter(d time.Duration) time.Duration { return wait.Jitter(d*9/10, 2.0/9) }
