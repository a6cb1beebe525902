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

// Options of an Applier.
type Options struct {
	Objects Objects
	Secrets Secrets
	// ReadOnly takes no sets, and touches nothing.
	ReadOnly bool
	// LeftChanged is called when Applier.Left changed. Nil for nobody.
	LeftChanged func()
	// Now is time.Now if it is nil.
	Now func() time.Time
	Log logr.Logger
}

// Applier keeps sets true while its replica leads. It is the http.Handler of protocol.PathSets and below.
type Applier struct {
	options Options

	mu   sync.Mutex // guards the rest
	term *term      // nil while another replica leads
	left []string
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
	t := newTerm(ctx, a.options)
	a.turn(t)
	defer a.turn(nil)
	if !a.options.ReadOnly {
		t.run()
		return
	}
	t.board.sync()
	a.lookForLeft(ctx)
	t.close()
}

func (a *Applier) turn(t *term) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.term = t
}

func (a *Applier) present() *term {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.term
}

// ErrNotLeading says that another replica leads.
var ErrNotLeading = errors.New("this replica of the agent does not lead: ask another")

// removeTimeout is how long it may take to learn what there is to remove.
const removeTimeout = 20 * time.Second

// RemoveAll takes all sets away, and returns what could not be removed. It fails with ErrNotLeading where another replica would put
// back what this one removes.
func (a *Applier) RemoveAll(ctx context.Context) ([]string, error) {
	if a.options.ReadOnly {
		return nil, nil
	}
	t := a.present()
	if t == nil {
		return nil, ErrNotLeading
	}
	timer := time.NewTimer(removeTimeout)
	defer timer.Stop()
	select {
	case <-t.ready:
	case <-t.life.Done():
		return nil, ErrNotLeading
	case <-timer.C:
		return nil, errors.New("remove sets: the API server does not say what there is: try again")
	case <-ctx.Done():
		return nil, fmt.Errorf("remove sets: %w", ctx.Err())
	}
	return t.removeAll(ctx), nil
}

// ServeHTTP answers as protocol.PathSets says.
func (a *Applier) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t := a.present()
	if t == nil {
		http.Error(w, ErrNotLeading.Error(), http.StatusMisdirectedRequest)
		return
	}
	if r.URL.Path == protocol.PathSets {
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			http.Error(w, "sets are read with GET", http.StatusMethodNotAllowed)
			return
		}
		t.board.serve(w, r)
		return
	}
	id, ok := protocol.SetOfPath(r.URL.Path)
	if !ok {
		http.Error(w, "the path names no set", http.StatusUnprocessableEntity)
		return
	}
	switch r.Method {
	case http.MethodPut:
		a.servePut(w, r, t, id)
	case http.MethodDelete:
		if a.options.ReadOnly {
			writeState(w, protocol.SetState{ID: id, Phase: protocol.SetDeleted})
			return
		}
		a.do(w, r, t, protocol.SetState{ID: id}, func(ctx context.Context) (protocol.SetState, error) { return t.remove(ctx, id) })
	default:
		w.Header().Set("Allow", "PUT, DELETE")
		http.Error(w, "a set is written with PUT and taken away with DELETE", http.StatusMethodNotAllowed)
	}
}

func (a *Applier) servePut(w http.ResponseWriter, r *http.Request, t *term, id string) {
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
	a.do(w, r, t, protocol.SetState{ID: id, Digest: set.Digest}, func(ctx context.Context) (protocol.SetState, error) { return t.put(ctx, set) })
}

// do answers with what came of something, or that it is pending; it goes on when the hub has gone. An error of f says that the replica no
// longer leads.
func (a *Applier) do(w http.ResponseWriter, r *http.Request, t *term, pending protocol.SetState, f func(context.Context) (protocol.SetState, error)) {
	type outcome struct {
		state protocol.SetState
		err   error
	}
	done := make(chan outcome, 1)
	begun := t.begin(func() {
		select {
		case <-t.ready:
		case <-t.life.Done():
			done <- outcome{err: errEnded}
			return
		}
		state, err := f(t.life)
		done <- outcome{state, err}
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
	_ = json.NewEncoder(w).Encode(state) // nobody is left to tell
}
