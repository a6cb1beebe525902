// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/internal/release"
)

// Options configure a Runner.
type Options struct {
	// Client is for the API server. It decodes core types, Jobs and Plans.
	Client rest.Interface
	// Objects applies what plans need in the member, and reads metadata.
	Objects Objects
	// Namespace is the agent's. No drain evicts the agent's pods.
	Namespace string
	// Ask returns the version that a channel leads to. Its errors are shown on the Plan. The default is that of release.Client, private
	// addresses included: a user who may create Plans in a member can reach its network anyway.
	Ask func(ctx context.Context, url string) (string, error)
	// Now is time.Now if it is nil.
	Now func() time.Time
	Log logr.Logger
}

// Runner runs the member's Plans while this replica leads. It is the http.Handler of protocol.PathPlans.
type Runner struct {
	options Options

	mu         sync.Mutex  // guards the rest
	leadership *leadership // nil while another replica leads
}

// New makes a Runner. Lead starts it.
func New(o Options) *Runner {
	if o.Now == nil {
		o.Now = time.Now
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
	r.setCurrent(l)
	defer r.setCurrent(nil)
	l.run(ctx)
}

func (r *Runner) setCurrent(l *leadership) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leadership = l
}

func (r *Runner) current() *leadership {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leadership
}

// ErrNotLeading is returned while another replica leads.
var ErrNotLeading = errors.New("this replica of the agent does not lead: ask another")

// ServeHTTP serves protocol.PathPlans.
func (r *Runner) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		http.Error(w, "plans are read with GET", http.StatusMethodNotAllowed)
		return
	}
	l := r.current()
	if l == nil {
		http.Error(w, ErrNotLeading.Error(), http.StatusMisdirectedRequest)
		return
	}
	l.publisher.serve(w, req)
}

// Retire releases all nodes and removes what Lead installed, unless Plans are left. It returns what could not be removed.
func (r *Runner) Retire(ctx context.Context) ([]string, error) {
	l := r.current()
	if l == nil {
		return nil, ErrNotLeading
	}
	return l.retire(ctx)
}
