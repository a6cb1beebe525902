// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apply applies the hub's sets in the member and repairs drift.
//
// A set is a group of objects that the hub sends. The agent stores each set as a Secret, applies the set's objects,
// and removes objects that are no longer in the set. The agent also works while the hub is unreachable: it reacts
// when namespaces are created or deleted, when objects drift, and when sets expire.
// docs/design/0015-how-the-agent-applies.md explains the reasons for this design.
package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/agent/leader"
	"github.com/drover-dev/drover/agent/stream"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

// Options configure an Applier.
type Options struct {
	// Client sends requests to the API server. It decodes only the metadata of objects.
	Client  rest.Interface
	Objects *kube.Objects
	Kube    *kube.Client  // applies the objects of Baselines as their users
	Secrets *kube.Secrets // Secrets in the agent's namespace
	// Topic receives the states of sets for publication.
	Topic *stream.Topic
	// ReadOnly makes the Applier refuse all sets and write nothing.
	ReadOnly bool
	// LeftChanged is called when the result of Applier.Left or Applier.Unclaimed has changed. It may be nil.
	LeftChanged func()
	// Await blocks until a leader may start, and returns false if ctx is done first. If it is nil, a leader may start
	// immediately.
	Await func(ctx context.Context) bool
	// Now returns the current time. It defaults to time.Now.
	Now func() time.Time
	Log logr.Logger
}

// Applier applies sets and repairs drift while its replica is the leader. It is the http.Handler for paths under
// protocol.PathSets.
type Applier struct {
	options    Options
	leadership atomic.Pointer[leadership] // nil while another replica leads

	mu        sync.Mutex // guards the fields below
	left      []string
	unclaimed []string
}

// New returns an Applier.
func New(o Options) *Applier {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Await == nil {
		o.Await = func(context.Context) bool { return true }
	}
	return &Applier{options: o}
}

// Lead applies sets and repairs drift until ctx is done.
func (a *Applier) Lead(ctx context.Context) {
	l := newLeadership(ctx, a.options)
	l.unclaimed = a.setUnclaimed
	a.leadership.Store(l)
	defer a.options.Topic.Reset()
	defer a.leadership.Store(nil)
	defer a.setUnclaimed(nil)
	if !a.options.ReadOnly {
		l.run(ctx)
		return
	}
	l.publisher.Sync()
	a.lookForLeft(ctx)
}

// removeTimeout is how long RemoveAll waits for the leader to read the existing sets and objects.
const removeTimeout = 20 * time.Second

// RemoveAll removes all sets and returns the objects that it could not remove. It returns leader.ErrNotLeading while
// another replica is the leader, because that replica would apply the sets again.
func (a *Applier) RemoveAll(ctx context.Context) ([]string, error) {
	if a.options.ReadOnly {
		return nil, nil
	}
	l := a.leadership.Load()
	if l == nil {
		return nil, leader.ErrNotLeading
	}
	select {
	case <-l.ready:
	case <-l.ended:
		return nil, leader.ErrNotLeading
	case <-time.After(removeTimeout):
		return nil, errors.New("remove sets: the objects could not be read from the API server: try again")
	case <-ctx.Done():
		return nil, fmt.Errorf("remove sets: %w", ctx.Err())
	}
	return l.removeAll(ctx), nil
}

// ServeHTTP serves requests to the paths under protocol.PathSets.
func (a *Applier) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l := a.leadership.Load()
	if l == nil {
		http.Error(w, leader.ErrNotLeading.Error(), http.StatusMisdirectedRequest)
		return
	}
	id, ok := protocol.SetOfPath(r.URL.Path)
	if !ok {
		http.Error(w, "the path names no set", http.StatusUnprocessableEntity)
		return
	}
	if !a.options.ReadOnly {
		l.reached(r.URL.Query())
	}
	switch r.Method {
	case http.MethodPut:
		a.servePut(w, r, l, id)
	case http.MethodDelete:
		if a.options.ReadOnly {
			writeState(w, protocol.SetState{ID: id, Phase: protocol.SetDeleted})
			return
		}
		a.do(w, r, protocol.SetState{ID: id},
			func(ctx context.Context) (protocol.SetState, error) { return l.remove(ctx, id) })
	default:
		w.Header().Set("Allow", "PUT, DELETE")
		http.Error(w, "a set is written with PUT and removed with DELETE", http.StatusMethodNotAllowed)
	}
}

func (a *Applier) servePut(w http.ResponseWriter, r *http.Request, l *leadership, id string) {
	if a.options.ReadOnly {
		writeState(w,
			protocol.SetState{ID: id, Phase: protocol.SetReadOnly,
				Message: "the agent's profile is ReadOnly, so it accepts no sets: set spec.agent.profile of the Cluster to Full " +
					"and apply the manifest again"})
		return
	}
	raw, ok := protocol.ReadPut(w, r, "set", set.MaxSize+1<<10)
	if !ok {
		return
	}
	wanted, content, err := set.Parse(raw)
	if err == nil && wanted.ID != id {
		err = errors.New("the path names another set")
	}
	if err != nil {
		http.Error(w, "the agent refuses the set: "+protocol.Cut(err.Error(), 256), http.StatusUnprocessableEntity)
		return
	}
	a.do(w, r, protocol.SetState{ID: id, Digest: wanted.Digest},
		func(ctx context.Context) (protocol.SetState, error) { return l.put(ctx, wanted, content) })
}

// do responds with the state that f returns. If f takes longer than protocol.SetTimeout, the response is pending
// instead, and the request remains queued. An error from f means that the replica is no longer the leader or that the
// hub has disconnected.
func (a *Applier) do(w http.ResponseWriter, r *http.Request, pending protocol.SetState,
	f func(context.Context) (protocol.SetState, error)) {
	ctx, cancel := context.WithTimeout(r.Context(), protocol.SetTimeout)
	defer cancel()
	state, err := f(ctx)
	switch {
	case errors.Is(err, errEnded):
		http.Error(w, err.Error(), http.StatusMisdirectedRequest)
		return
	case err != nil:
		state = pending
		state.Phase = protocol.SetPending
	}
	writeState(w, state)
}

func writeState(w http.ResponseWriter, state protocol.SetState) {
	state.Bound()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(state) // an error means that the reader has disconnected
}
