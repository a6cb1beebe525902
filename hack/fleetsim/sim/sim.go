// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sim runs many agents in one process, each with a real tunnel to a hub and a faked API server behind it.
//
// What is real: the key of each agent, its connect tokens, TLS and WebSocket to the hub, the HTTP/2 server in the tunnel, and the
// agent's own loop that keeps the tunnel, with its back-off. What is not: the cluster. An agent keeps the settings that the hub
// announces by their digest only, so a simulated fleet does not outlive a change of the hub's CA.
package sim

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/agent/link"
	"github.com/drover-dev/drover/internal/tunnel"
)

// Options of a Sim.
type Options struct {
	// Server is the hub's base URL, Bundle the CA bundle to trust, as PEM.
	Server string
	Bundle []byte
	// Members to simulate. Enrol makes them.
	Members []Member
	// Latency of each answer of the faked API servers.
	Latency time.Duration
	// Churn is how many tunnels are cut each second, Changes how many members report something new each minute.
	Churn, Changes float64
}

// Sim is a fleet of agents. New makes it.
type Sim struct {
	server  string
	agents  []*agent
	dialer  *tunnel.Dialer
	api     *apiServer
	churn   float64 // per second
	changes float64 // per minute

	attempts, ended atomic.Int64
}

// New makes the agents. Run starts them.
func New(o Options) (*Sim, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(o.Bundle) {
		return nil, errors.New("simulate a fleet: the CA bundle has no certificate")
	}
	s := &Sim{
		server: o.Server, churn: o.Churn, changes: o.Changes, api: newAPIServer(o.Latency),
		dialer: &tunnel.Dialer{
			Config: tunnel.Config{WriteBuffers: &tunnel.WriteBuffers{}, ErrorLog: log.New(io.Discard, "", 0)},
			TLS:    &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots},
		},
	}
	for _, m := range o.Members {
		s.agents = append(s.agents, newAgent(s, m))
	}
	return s, nil
}

// Run keeps the tunnels of all agents until ctx ends, and returns when all of them have ended.
func (s *Sim) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, a := range s.agents {
		running.Go(func() {
			link.New(link.Options{Identity: a, Handler: a, Log: logr.Discard()}).Run(ctx)
		})
	}
	running.Go(func() { every(ctx, s.churn, func() { s.random().cut() }) })
	running.Go(func() { every(ctx, s.changes/60, func() { s.random().change() }) })
	<-ctx.Done()
	for _, a := range s.agents {
		a.cut() // without the half minute that a real agent gives the requests under way
	}
	running.Wait()
}

// Cut ends the tunnels of all agents but each spare-th, as a network that breaks does. Spare 0 spares none. It returns how many it ended.
func (s *Sim) Cut(spare int) int {
	n := 0
	for i, a := range s.agents {
		if (spare == 0 || i%spare != 0) && a.cut() {
			n++
		}
	}
	return n
}

// State is how a fleet is.
type State struct {
	// Agents there are, those with an open tunnel, and those whose report the hub reads.
	Agents, Connected, Reporting int
	// LeastAttempts is how often the agent with the fewest attempts has tried to connect.
	LeastAttempts int64
	// Attempts to connect and tunnels that ended, since the start.
	Attempts, Ended int64
}

// State counts.
func (s *Sim) State() State {
	state := State{Agents: len(s.agents), Attempts: s.attempts.Load(), Ended: s.ended.Load()}
	for i, a := range s.agents {
		attempts, connected, reporting := a.state()
		if i == 0 || attempts < state.LeastAttempts {
			state.LeastAttempts = attempts
		}
		if connected {
			state.Connected++
		}
		if reporting {
			state.Reporting++
		}
	}
	return state
}

func (s *Sim) random() *agent { return s.agents[rand.N(len(s.agents))] }

// every calls f so many times a second on average until ctx ends. A rate of 0 is never.
func every(ctx context.Context, perSecond float64, f func()) {
	if perSecond <= 0 {
		return
	}
	timer := time.NewTicker(max(time.Nanosecond, time.Duration(float64(time.Second)/perSecond)))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			f()
		}
	}
}
