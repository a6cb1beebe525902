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
)

// Options configure a Runner.
type Options struct {
	// Client is for the API server. It decodes core types, Jobs and Plans.
	Client rest.Interface
	// Objects applies what plans need in the member, and reads metadata.
	Objects *kube.Objects
	// Topic is where the status of the hub's Plans is published.
	Topic *stream.Topic
	// Namespace is the agent's. No drain evicts the agent's pods.
	Namespace string
	// Registry returns what is put in front of images that name no registry. Nil means nothing.
	Registry func() string
	// Ask returns the version that a channel leads to. Its errors are shown on the Plan. The default is that of
	// release.Client, private addresses included: a user who may create Plans in a member can reach its network anyway.
	Ask func(ctx context.Context, url string) (string, error)
	// Await returns when a leader may begin, false if ctx ends before. Nil means at once.
	Await func(ctx context.Context) bool
	// Now is time.Now if it is nil.
	Now func() time.Time
	Log logr.Logger
}

// Runner runs the member's Plans while this replica leads.
type Runner struct {
	options    Options
	leadership atomic.Pointer[leadership] // nil while another replica leads
}

// New makes a Runner. Lead starts it.
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

// Lead runs Plans until ctx ends. Drains end with it. Jobs go on, and the next leader follows them.
func (r *Runner) Lead(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := newLeadership(r.options)
	r.leadership.Store(l)
	defer r.options.Topic.Reset()
	defer r.leadership.Store(nil)
	l.run(ctx)
}

// Retire releases all nodes and removes what Lead installed, unless Plans are left. It returns what could not be
// removed.
func (r *Runner) Retire(ctx context.Context) ([]string, error) {
	l := r.leadership.Load()
	if l == nil {
		return nil, leader.ErrNotLeading
	}
	return l.retire(ctx)
}
