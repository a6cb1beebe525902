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

// routePatience is how long a request waits for another route after a member has lost its last route. It is counted
// from the start of the request. Most agents that lose a tunnel reconnect within a second, after one or two attempts.
const routePatience = 1500 * time.Millisecond

// leastPatience is the minimum time for which a request waits. It applies to requests that had been running for a long
// time when the tunnel ended.
const leastPatience = 500 * time.Millisecond

// attempts is the maximum number of times that a request is sent.
const attempts = 2

// Transports carries requests to members' agents. Each request selects its own tunnel, so a transport remains valid
// when tunnels are opened and closed.
type Transports struct{ table *table }

// Transport returns a transport to a connected member's agent, wherever its tunnel ends. It returns ErrNotConnected if
// the member is not connected, and ErrClones if two clusters share the member's identity.
//
// If a request's tunnel ended or moved before an agent saw the request, the request is sent once more through another
// tunnel. The same applies to a read-only request if its tunnel ended before the response arrived. If no other tunnel
// is opened within routePatience, the request fails with ErrNotConnected.
func (t *Transports) Transport(name types.NamespacedName) (http.RoundTripper, error) {
	t.table.mu.Lock()
	defer t.table.mu.Unlock()
	if err := t.table.servesLocked(name); err != nil {
		return nil, err
	}
	return way{transports: t, name: name}, nil
}

// Here returns a transport that uses the tunnel with the given ID. If id is empty, it uses the newest tunnel that ends
// at this replica, preferring tunnels of the agent's Deployment to tunnels of node agents. It returns ErrNotConnected
// if no such tunnel ends at this replica.
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

// way sends requests to one member. It selects the best tunnel for each request.
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
			return response, err // the error says what happened; the caller knows the member's name
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

// await returns the best route that is not in the tried list. If none is available, it waits until the given time.
func (t *Transports) await(
	ctx context.Context, name types.NamespacedName, tried []string, until time.Time,
) (route, error) {
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

// look returns the best route, or a channel that is closed when a new route may be available. It returns neither if the
// member is unknown. The lock is held throughout, so that no new route is missed.
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
