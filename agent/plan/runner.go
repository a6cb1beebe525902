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

// Options of a Runner.
type Options struct {
	// Client for the API server; decodes core types, Jobs and Plans.
	Client rest.Interface
	// Objects applies what plans need in the member, and reads metadata.
	Objects Objects
	// Namespace of the agent, whose pods no drain evicts.
	Namespace string
	// Ask asks a channel which version it leads to. Its errors are shown on the Plan. Nil asks as release.Client does, private addresses
	// included: who makes Plans in a member may do more there than look at its network.
	Ask func(ctx context.Context, url string) (string, error)
	// Now is time.Now if it is nil.
	Now func() time.Time
	Log logr.Logger
}

// Runner runs the member's Plans while this replica leads. It is the http.Handler of protocol.PathPlans.
type Runner struct {
	options Options

	mu   sync.Mutex // guards the rest
	term *term      // nil while another replica leads
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

// Lead runs Plans until ctx ends. Drains end with it; Jobs go on, and the next to lead follows them.
func (r *Runner) Lead(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := newTerm(r.options)
	r.set(t)
	defer r.set(nil)
	t.run(ctx)
}

func (r *Runner) set(t *term) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.term = t
}

func (r *Runner) present() *term {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.term
}

// ErrNotLeading says that another replica leads.
var ErrNotLeading = errors.New("this replica of the agent does not lead: ask another")

// ServeHTTP answers as protocol.PathPlans says.
func (r *Runner) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		http.Error(w, "plans are read with GET", http.StatusMethodNotAllowed)
		return
	}
	t := r.present()
	if t == nil {
		http.Error(w, ErrNotLeading.Error(), http.StatusMisdirectedRequest)
		return
	}
	t.board.serve(w, req)
}

// Retire lets all nodes go and takes away what Lead installed, unless Plans are left; it returns what could not be removed.
func (r *Runner) Retire(ctx context.Context) ([]string, error) {
	t := r.present()
	if t == nil {
		return nil, ErrNotLeading
	}
	return t.retire(ctx)
}
