// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/tunnel"
)

// routePatience is how long after its beginning a request still waits for another way to a member whose last one has
// gone. Most agents that lost a tunnel are back after one or two attempts, within a second.
const routePatience = 1500 * time.Millisecond

// leastPatience is how long a request waits at least that was under way for longer when its tunnel ended.
const leastPatience = 500 * time.Millisecond

// attempts is how often a request is sent at most: a stale route is looked up once more, never in a loop.
const attempts = 2

// Transports carries requests to members' agents. Each request looks for its tunnel, so a transport stays good while
// tunnels come and go.
type Transports struct{ table *table }

// Transport carries requests to a connected member's agent, wherever its tunnel ends. It returns ErrNotConnected for
// any other member, and ErrClones for one that is two clusters.
//
// A request that no agent has seen, because its tunnel ended or had moved, or that only reads and whose tunnel ended
// before an answer, is sent once more by another way if there is one within routePatience, and else fails with
// ErrNotConnected.
func (t *Transports) Transport(name types.NamespacedName) (http.RoundTripper, error) {
	t.table.mu.Lock()
	defer t.table.mu.Unlock()
	if err := t.table.servesLocked(name); err != nil {
		return nil, err
	}
	return way{transports: t, name: name}, nil
}

// Here carries requests to a member's agent by the tunnel of that ID, or for an empty one by the newest that ends here,
// of the agent's Deployment if there is one. It returns ErrNotConnected if that tunnel, or none, ends here.
func (t *Transports) Here(name types.NamespacedName, id string) (http.RoundTripper, error) {
	t.table.mu.Lock()
	defer t.table.mu.Unlock()
	m := t.table.members[name]
	if m == nil || len(m.sessions) == 0 {
		return nil, ErrNotConnected
	}
	if id != "" {
		at := slices.IndexFunc(m.sessions, func(s *session) bool { return s.peer.ID == id })
		if at < 0 {
			return nil, ErrNotConnected
		}
		return m.sessions[at], nil
	}
	newest := m.sessions[len(m.sessions)-1]
	for _, s := range slices.Backward(m.sessions) {
		if !s.peer.NodeAgent {
			return s, nil
		}
	}
	return newest, nil
}

// way leads to one member, whichever its tunnels are at the moment.
type way struct {
	transports *Transports
	name       types.NamespacedName
}

// RoundTrip implements http.RoundTripper.
func (w way) RoundTrip(r *http.Request) (*http.Response, error) {
	body, patience := newReplay(r), time.Now().Add(routePatience)
	var cause error
	var tried []string
	for len(tried) < attempts {
		next, err := w.transports.await(r.Context(), w.name, tried, patience)
		if err != nil {
			body.discard()
			return nil, withCause(err, cause)
		}
		response, err := next.carrier.RoundTrip(body.attach(r))
		if err == nil || !errors.Is(err, tunnel.ErrNotProcessed) {
			body.commit()
			return response, err // it says what was done, and to whom is the caller's knowledge
		}
		tried, cause = append(tried, next.id), err
		if least := time.Now().Add(leastPatience); patience.Before(least) {
			patience = least
		}
		if !body.rewind() {
			break
		}
	}
	body.discard()
	return nil, withCause(ErrNotConnected, cause)
}

func withCause(err, cause error) error {
	if cause == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// await returns the best route that was not tried before, and waits for one until a time.
func (t *Transports) await(ctx context.Context, name types.NamespacedName, tried []string, until time.Time) (route, error) {
	if found, arrival := t.look(name, tried); found.carrier != nil {
		return found, nil
	} else if arrival == nil {
		return route{}, ErrNotConnected
	}
	waiting, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	for {
		found, arrival := t.look(name, tried)
		if found.carrier != nil {
			return found, nil
		}
		select {
		case <-arrival:
		case <-t.table.ctx.Done():
			return route{}, ErrNotConnected
		case <-waiting.Done():
			if ctx.Err() != nil {
				return route{}, ctx.Err()
			}
			return route{}, ErrNotConnected
		}
	}
}

// look returns the best route, or what is closed when there may be another; neither for a member that nothing is known
// of. It is one step: no arrival falls between.
func (t *Transports) look(name types.NamespacedName, tried []string) (route, <-chan struct{}) {
	t.table.mu.Lock()
	defer t.table.mu.Unlock()
	m := t.table.members[name]
	if m == nil {
		return route{}, nil
	}
	if found, ok := best(m.routes(), tried); ok {
		return found, nil
	}
	if m.arrival == nil {
		m.arrival = make(chan struct{})
	}
	return route{}, m.arrival
}
