// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/agent/leader"
	"github.com/drover-dev/drover/agent/stream"
	"github.com/drover-dev/drover/internal/release"
	"github.com/drover-dev/drover/internal/upgradecheck"
)

// Options configure a Runner.
type Options struct {
	// Client sends requests to the API server. It decodes core types, Jobs and Plans.
	Client rest.Interface
	// Objects applies the objects that plans need in the member, and reads metadata.
	Objects *kube.Objects
	// Topic publishes the status of the hub's Plans.
	Topic *stream.Topic
	// Namespace is the namespace of the agent. A drain does not evict the agent's pods.
	Namespace string
	// Registry returns the registry for images that do not specify one. If it is nil, there is no such registry.
	Registry func() string
	// Ask returns the current version of a channel. Its errors are shown on the Plan. The default is the Latest method of
	// a release.Client that also connects to private addresses. This is safe because users who can create Plans in a
	// member can reach the member's network anyway.
	Ask func(ctx context.Context, url string) (string, error)
	// Check checks whether the member can be upgraded to a version safely. By default, it reads the member's state with
	// Client.
	Check func(context.Context, *upgradecheck.Target) ([]upgradecheck.Finding, error)
	// Await blocks until a leader may start, and returns false if ctx is done first. If it is nil, a leader may start
	// immediately.
	Await func(ctx context.Context) bool
	// Now returns the current time. It defaults to time.Now.
	Now func() time.Time
	Log logr.Logger
}

// Runner runs the member's Plans while this replica is the leader.
type Runner struct {
	options    Options
	leadership atomic.Pointer[leadership] // nil while another replica is the leader
}

// New returns a Runner. Call Lead to start it.
func New(o Options) *Runner {
	if o.Registry == nil {
		o.Registry = func() string { return "" }
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Await == nil {
		o.Await = func(context.Context) bool { return true }
	}
	if o.Ask == nil {
		o.Ask = release.New(release.Private).Latest
	}
	return &Runner{options: o}
}

// Lead runs Plans until ctx is done. Drains are then canceled. Jobs continue, and the next leader tracks them.
func (r *Runner) Lead(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := newLeadership(r.options)
	r.leadership.Store(l)
	defer r.options.Topic.Reset()
	defer r.leadership.Store(nil)
	l.run(ctx)
}

// Retire releases all nodes and removes the objects that Lead installed, unless there are still Plans. It returns the
// objects that it could not remove.
func (r *Runner) Retire(ctx context.Context) ([]string, error) {
	l := r.leadership.Load()
	if l == nil {
		return nil, leader.ErrNotLeading
	}
	return l.retire(ctx)
}
