// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/internal/protocol"
)

// Options configure an Applier.
type Options struct {
	Objects Objects
	Secrets Secrets
	// ReadOnly makes the Applier accept no sets and write nothing.
	ReadOnly bool
	// LeftChanged is called when Applier.Left changed. May be nil.
	LeftChanged func()
	// Now is time.Now if it is nil.
	Now func() time.Time
	Log logr.Logger
}

// Applier keeps sets true while its replica leads. It is the http.Handler of protocol.PathSets and below.
type Applier struct {
	options Options

	mu         sync.Mutex  // guards the rest
	leadership *leadership // nil while another replica leads
	left       []string
}

// New makes an Applier.
func New(o Options) *Applier {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Applier{options: o}
}

// Lead keeps sets true until ctx ends.
func (a *Applier) Lead(ctx context.Context) {
	l := newLeadership(ctx, a.options)
	a.setCurrent(l)
	defer a.setCurrent(nil)
	if !a.options.ReadOnly {
		l.run()
		return
	}
	l.publisher.setSynced()
	a.lookForLeft(ctx)
	l.close()
}

func (a *Applier) setCurrent(l *leadership) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leadership = l
}

func (a *Applier) current() *leadership {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.leadership
}

// ErrNotLeading is returned while another replica leads.
var ErrNotLeading = errors.New("this replica of the agent does not lead: ask another")

// removeTimeout bounds the wait until it is known what there is to remove.
const removeTimeout = 20 * time.Second

// RemoveAll removes all sets, and returns what could not be removed. It returns ErrNotLeading while another replica leads, which would
// put the sets back.
func (a *Applier) RemoveAll(ctx context.Context) ([]string, error) {
	if a.options.ReadOnly {
		return nil, nil
	}
	l := a.current()
	if l == nil {
		return nil, ErrNotLeading
	}
	timer := time.NewTimer(removeTimeout)
	defer timer.Stop()
	select {
	case <-l.ready:
	case <-l.ctx.Done():
		return nil, ErrNotLeading
	case <-timer.C:
		return nil, errors.New("remove sets: the API server does not say what there is: try again")
	case <-ctx.Done():
		return nil, fmt.Errorf("remove sets: %w", ctx.Err())
	}
	return l.removeAll(ctx), nil
}

// ServeHTTP serves protocol.PathSets.
func (a *Applier) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l := a.current()
	if l == nil {
		http.Error(w, ErrNotLeading.Error(), http.StatusMisdirectedRequest)
		return
	}
	if r.URL.Path == protocol.PathSets {
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			http.Error(w, "sets are read with GET", http.StatusMethodNotAllowed)
			return
		}
		l.publisher.serve(w, r)
		return
	}
	id, ok := protocol.SetOfPath(r.URL.Path)
	if !ok {
		http.Error(w, "the path names no set", http.StatusUnprocessableEntity)
		return
	}
	switch r.Method {
	case http.MethodPut:
		a.servePut(w, r, l, id)
	case http.MethodDelete:
		if a.options.ReadOnly {
			writeState(w, protocol.SetState{ID: id, Phase: protocol.SetDeleted})
			return
		}
		a.do(w, r, l, protocol.SetState{ID: id}, func(ctx context.Context) (protocol.SetState, error) { return l.remove(ctx, id) })
	default:
		w.Header().Set("Allow", "PUT, DELETE")
		http.Error(w, "a set is written with PUT and taken away with DELETE", http.StatusMethodNotAllowed)
	}
}

func (a *Applier) servePut(w http.ResponseWriter, r *http.Request, l *leadership, id string) {
	if a.options.ReadOnly {
		writeState(w, protocol.SetState{ID: id, Phase: protocol.SetReadOnly, Message: "the agent's profile is ReadOnly: it takes nothing; set spec.agent.profile of the Cluster to Full and apply the manifest again"})
		return
	}
	var set protocol.Set
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, protocol.MaxSet+1<<10)).Decode(&set)
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		http.Error(w, fmt.Sprintf("the set has more than %d bytes", protocol.MaxSet), http.StatusRequestEntityTooLarge)
		return
	}
	switch {
	case err != nil:
		err = errors.New("it cannot be read") // the cause may quote what is in it
	case set.ID != id:
		err = errors.New("the path names another set")
	}
	if err == nil {
		err = set.Check()
	}
	if err != nil {
		http.Error(w, "the agent refuses the set: "+protocol.Cut(err.Error(), 256), http.StatusUnprocessableEntity)
		return
	}
	a.do(w, r, l, protocol.SetState{ID: id, Digest: set.Digest}, func(ctx context.Context) (protocol.SetState, error) { return l.put(ctx, set) })
}

// do runs f and responds with its state, or with pending after protocol.SetTimeout. f continues when the hub disconnects. An error of f
// means that the replica no longer leads.
func (a *Applier) do(w http.ResponseWriter, r *http.Request, l *leadership, pending protocol.SetState, f func(context.Context) (protocol.SetState, error)) {
	type result struct {
		state protocol.SetState
		err   error
	}
	done := make(chan result, 1)
	begun := l.begin(func() {
		select {
		case <-l.ready:
		case <-l.ctx.Done():
			done <- result{err: errEnded}
			return
		}
		state, err := f(l.ctx)
		done <- result{state, err}
	})
	if !begun {
		http.Error(w, errEnded.Error(), http.StatusMisdirectedRequest)
		return
	}
	timer := time.NewTimer(protocol.SetTimeout)
	defer timer.Stop()
	select {
	case o := <-done:
		if o.err != nil {
			http.Error(w, o.err.Error(), http.StatusMisdirectedRequest)
			return
		}
		writeState(w, o.state)
	case <-timer.C:
		pending.Phase = protocol.SetPending
		writeState(w, pending)
	case <-r.Context().Done():
	}
}

func writeState(w http.ResponseWriter, state protocol.SetState) {
	state.Bound()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(state) // the reader is gone
}
