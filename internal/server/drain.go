// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/request"
)

const (
	// lastWords is what an answer gets to leave, and a connection to say what it was opened for, before the port is
	// closed.
	lastWords = time.Second
	// keepBeyond is added, in what the agent receives, to the time that this replica still uses its tunnel, so that it is
	// the replica that ends it.
	keepBeyond = 10 * time.Second
	// refusedFor bounds Retry-After for agents that come while this replica stops, in seconds. It is random, so they don't
	// come together.
	refusedFor = 5
)

// Stop says how a Server stops.
type Stop struct {
	// Delay is how long new requests are still served, Sessions how long those under way may last after that.
	Delay, Sessions time.Duration
	// Calls are the requests under way for users, and for other replicas, whose handler counts in here, too.
	Calls *request.Group
	// Others is how many other replicas there are at the moment. Nil, or 0, means that agents have nowhere to move.
	Others func() int
	// Links keeps up the links to other replicas until its context ends, which is after everything else. It may be nil.
	Links func(context.Context) error
}

// newStop is what the configuration says.
func newStop(d config.Drain) Stop {
	return Stop{Delay: d.Delay.Duration, Sessions: d.Sessions.Duration, Calls: request.NewGroup()}
}

// stop lets everything that is under way come to its end. docs/design/0002-replicas-and-moves.md has the order and the
// reasons. closing is called when users shall go elsewhere with their next request.
func (s *Server) stop(server *http.Server, closing func()) {
	s.telemetry.stop(time.Now())
	s.Log.Info("stopping", "delay", s.Stop.Delay.String(), "sessions", s.Stop.Sessions.String())
	pause(s.Stop.Delay / 2)
	closing()
	s.Stop.Calls.RenewWatches() // now, while the next request on their connections is still served, and told to be the last
	pause(s.Stop.Delay - s.Stop.Delay/2)

	ctx, cancel := context.WithTimeout(context.Background(), s.Stop.Sessions)
	defer cancel()
	shut := make(chan struct{})
	go func() {
		defer close(shut)
		_ = server.Shutdown(context.Background()) // ends at the latest when finish closes the server
	}()
	s.Stop.Calls.EndWatches()
	s.moveAgents()
	if s.Stop.Calls.Wait(ctx) != nil {
		s.cut()
	}
	finish(server, shut)
	s.Log.Info("stopped")
}

// pause waits although there is nothing to wait for but others who notice.
func pause(d time.Duration) { <-time.After(d) }

// moveAgents has agents open tunnels elsewhere while what is under way goes on in the present ones.
func (s *Server) moveAgents() {
	if s.Stop.Others == nil || s.Stop.Others() == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), config.MoveTime)
	defer cancel()
	begun := time.Now()
	moved, stayed := s.Members.Move(ctx, s.Stop.Sessions+keepBeyond)
	s.telemetry.movedAgents(moved, stayed)
	s.Log.Info("agents moved to other replicas", "moved", moved, "stayed", stayed, "took", time.Since(begun).Round(time.Millisecond).String())
}

// cut ends what has not ended in time.
func (s *Server) cut() {
	left := s.Stop.Calls.Counts()
	s.Log.Info("time is over for what is under way", "requests", left.Requests, "watches", left.Watches, "sessions", left.Sessions)
	s.Stop.Calls.Cut()
	ctx, cancel := context.WithTimeout(context.Background(), lastWords)
	defer cancel()
	_ = s.Stop.Calls.Wait(ctx) // what does not notice ends with the process
}

// finish closes the port. Shutdown would wait for 5 s for a connection on which nothing was ever asked, such as a load
// balancer's probe.
func finish(server *http.Server, shut <-chan struct{}) {
	select {
	case <-shut:
	case <-time.After(lastWords):
		_ = server.Close() // closes what there is to close
		<-shut
	}
}

// refuseTunnel sends an agent elsewhere.
func refuseTunnel(w http.ResponseWriter) {
	w.Header().Set("Retry-After", strconv.Itoa(int(wait.Jitter(time.Second, refusedFor)/time.Second)))
	http.Error(w, "this replica of the hub stops: connect again, another one answers then", http.StatusServiceUnavailable)
}
