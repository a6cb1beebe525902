// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Intervals between queries.
const (
	// Interval is the time between queries of a channel. A jitter of ten percent is added to or subtracted from it.
	Interval = 15 * time.Minute
	// firstRetry is the delay after the first failed request. The delay doubles with each failure, up to Interval.
	firstRetry = 15 * time.Second
)

// maxRequests is the maximum number of concurrent requests. maxOwn is the maximum for one workspace, so that slow
// channels delay only the requests of their own workspace.
const (
	maxRequests = 8
	maxOwn      = 2
)

// Result is the latest result for a channel.
type Result struct {
	// Version is the latest version that was found, or "" if none was found.
	Version string
	// Err is the error from the latest request, or nil if the request succeeded.
	Err error
	// Asked reports whether at least one request has ended.
	Asked bool
	// Next is the time at which the next query is due.
	Next time.Time
}

// Poller caches the results for channels. If the latest result is stale when Result is called, the Poller queries the
// channel in the background, so no caller has to wait. Use NewPoller to create a Poller. It is safe for concurrent
// use.
type Poller struct {
	ask   func(context.Context, string) (string, error)
	now   func() time.Time
	slots chan struct{}

	mu       sync.Mutex // guards the fields below
	ctx      context.Context
	tasks    sync.WaitGroup
	own      map[string]*ownSlots // slots by workspace
	channels map[string]*channelState
	ended    []func(channel string)
}

// channelState is the state of a channel in the Poller. It is guarded by Poller.mu.
type channelState struct {
	Result
	running  bool
	queued   map[string]bool // the workspaces that are waiting to query the channel
	failures int
	wanted   time.Time
}

// ownSlots are the slots of one workspace. The tasks field is guarded by Poller.mu.
type ownSlots struct {
	slots chan struct{}
	tasks int
}

// NewPoller returns a Poller that queries channels with ask, for example Client.Latest.
func NewPoller(ask func(context.Context, string) (string, error), now func() time.Time) *Poller {
	return &Poller{ask: ask, now: now, slots: make(chan struct{}, maxRequests), own: map[string]*ownSlots{},
		channels: map[string]*channelState{}}
}

// OnPolled registers f, which is called after each request has ended. f must not block.
func (p *Poller) OnPolled(f func(channel string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = append(p.ended, f)
}

// Start sends requests until ctx is done. It returns once no request is in progress.
func (p *Poller) Start(ctx context.Context) error {
	p.mu.Lock()
	p.ctx = ctx
	ended, waiting := slices.Clone(p.ended), slices.Collect(maps.Keys(p.channels))
	p.mu.Unlock()
	for _, channel := range waiting {
		for _, f := range ended {
			f(channel)
		}
	}
	<-ctx.Done()
	p.mu.Lock()
	p.ctx = nil // no more requests are started
	p.mu.Unlock()
	p.tasks.Wait()
	return nil
}

// Result returns the latest result for a channel. If a query is due, Result starts one on behalf of a workspace. If
// several workspaces use the channel, it is queried only once, on behalf of the first workspace that gets a slot.
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

// forgetLocked drops channels for which Result has not been called for a long time. The caller must hold p.mu.
func (p *Poller) forgetLocked(now time.Time) {
	for channel, c := range p.channels {
		if !c.running && len(c.queued) == 0 && now.Sub(c.wanted) > 2*Interval {
			delete(p.channels, channel)
		}
	}
}

// run queries a channel once both the workspace and the Poller have a free slot.
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

// begin records that a workspace is no longer waiting for slots. It reports whether the channel must still be
// queried. If another workspace has queried the channel in the meantime, it returns false.
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

// leave drops the slots of a workspace when no task needs them any longer.
func (p *Poller) leave(workspace string, own *ownSlots) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if own.tasks--; own.tasks == 0 {
		delete(p.own, workspace)
	}
}

// request queries a channel and stores the result.
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
	c.Next = p.now().Add(wait.Jitter(pause*9/10, 2.0/9)) // within ten percent of the pause
	ended := append([]func(string){}, p.ended...)
	p.mu.Unlock()
	for _, f := range ended {
		f(channel)
	}
}
