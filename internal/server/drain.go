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
	// lastWords is how long the server waits before it closes the port. During this time, responses are sent, and new
	// connections can send their first request.
	lastWords = time.Second
	// keepBeyond is the time for which agents keep a tunnel after this replica has stopped using it. It ensures that
	// the replica always closes the tunnel first.
	keepBeyond = 10 * time.Second
	// refusedFor is the maximum Retry-After, in seconds, for agents that connect while this replica is stopping. The
	// value is random, so that the agents do not all reconnect at the same time.
	refusedFor = 5
)

// Stop configures how a Server stops.
type Stop struct {
	// Delay is how long new requests are still served. Sessions is how long requests in progress may continue after
	// Delay.
	Delay, Sessions time.Duration
	// Calls counts the requests in progress for users and for other replicas.
	Calls *request.Group
	// Others returns the number of other replicas. If it is nil or returns 0, no agents are moved.
	Others func() int
	// Links maintains the links to other replicas until its context ends. The server cancels this context last. Links
	// may be nil.
	Links func(context.Context) error
}

// stop lets all work in progress finish. It calls the closing function when users' next requests should go to another
// replica. docs/design/0002-replicas-and-moves.md explains the order.
func (s *Server) stop(server *http.Server, closing func()) {
	s.telemetry.stop(time.Now())
	s.Log.Info("stopping", "delay", s.Stop.Delay.String(), "sessions", s.Stop.Sessions.String())
	pause(s.Stop.Delay / 2)
	closing()
	s.Stop.Calls.RenewWatches() // watches end now, while each connection still serves one last request
	pause(s.Stop.Delay - s.Stop.Delay/2)

	ctx, cancel := context.WithTimeout(context.Background(), s.Stop.Sessions)
	defer cancel()
	shut := make(chan struct{})
	go func() {
		defer close(shut)
		_ = server.Shutdown(context.Background()) // Shutdown returns at the latest when finish closes the server
	}()
	s.Stop.Calls.EndWatches()
	s.moveAgents()
	if s.Stop.Calls.Wait(ctx) != nil {
		s.cut()
	}
	finish(server, shut)
	s.Log.Info("stopped")
}

// pause waits for a fixed time, because there is no event that signals that clients have noticed the shutdown.
func pause(d time.Duration) { <-time.After(d) }

// moveAgents moves agents to other replicas. Requests in progress continue in the existing tunnels.
func (s *Server) moveAgents() {
	if s.Stop.Others == nil || s.Stop.Others() == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), config.MoveTime)
	defer cancel()
	begun := time.Now()
	moved, stayed := s.Members.Move(ctx, s.Stop.Sessions+keepBeyond)
	s.telemetry.movedAgents(moved, stayed)
	s.Log.Info("agents moved to other replicas", "moved", moved, "stayed", stayed, "took",
		time.Since(begun).Round(time.Millisecond).String())
}

// cut aborts the requests that have not finished in time.
func (s *Server) cut() {
	left := s.Stop.Calls.Counts()
	s.Log.Info("time is up for the requests in progress", "requests", left.Requests, "watches", left.Watches, "sessions",
		left.Sessions)
	s.Stop.Calls.Cut()
	ctx, cancel := context.WithTimeout(context.Background(), lastWords)
	defer cancel()
	_ = s.Stop.Calls.Wait(ctx) // requests that ignore the abort end with the process
}

// finish closes the port. Shutdown would wait 5 s for a connection without any request, such as a load balancer's
// probe.
func finish(server *http.Server, shut <-chan struct{}) {
	select {
	case <-shut:
	case <-time.After(lastWords):
		_ = server.Close() // the port is closed even if Close fails
		<-shut
	}
}

// refuseTunnel refuses a tunnel, so that the agent connects to another replica.
func refuseTunnel(w http.ResponseWriter) {
	w.Header().Set("Retry-After", strconv.Itoa(int(wait.Jitter(time.Second, refusedFor)/time.Second)))
	http.Error(w, "this replica of the hub is stopping: connect again to reach another one", http.StatusServiceUnavailable)
}
