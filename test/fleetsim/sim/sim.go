// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sim runs many agents in one process, each with a real tunnel to a hub and a faked API server behind it.
//
// These parts are real: the key of each agent, its connect tokens, TLS and WebSocket to the hub, the HTTP/2 server in
// the tunnel, and the agent's own loop that keeps the tunnel, with its back-off. The cluster is not real. An agent
// keeps the settings that the hub announces by their digest only, so a simulated fleet does not outlive a change of the
// hub's CA.
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
	// Through are addresses to connect to in place of the server's, as host:port: each tunnel takes the next one, as with
	// a balancer. None means the server's.
	Through []string
	// Members to simulate. Enrol makes them.
	Members []Member
	// Latency of the way from each member to the hub and of the way back, APILatency of each answer of the faked API
	// servers.
	Latency, APILatency time.Duration
	// Rates are the initial ones.
	Rates Rates
}

// Sim is a fleet of agents. New makes it.
type Sim struct {
	server         string
	agents         []*agent
	dialer         *tunnel.Dialer
	api            *apiServer
	churn, changes *pacer

	attempts, ended atomic.Int64
	arrivals        arrivals
	runs            runs
}

// New makes the agents. Run starts them.
func New(o Options) (*Sim, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(o.Bundle) {
		return nil, errors.New("simulate a fleet: the CA bundle has no certificate")
	}
	s := &Sim{
		server: o.Server, churn: newPulse(), changes: newPulse(), api: newAPIServer(o.APILatency),
		dialer: &tunnel.Dialer{
			Config: tunnel.Config{Memory: &tunnel.Memory{}, ErrorLog: log.New(io.Discard, "", 0)},
			TLS:    &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots},
		},
	}
	if o.Latency > 0 || len(o.Through) > 0 {
		s.dialer.DialSocket = (&dialer{through: o.Through, oneWay: o.Latency}).dial
	}
	for _, m := range o.Members {
		s.agents = append(s.agents, newAgent(s, m))
	}
	s.Set(o.Rates)
	return s, nil
}

// Run keeps the tunnels of all agents until ctx ends, and returns when all of them have ended.
func (s *Sim) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, a := range s.agents {
		running.Go(func() {
			link.New(link.Options{Target: a.Target, Changed: a.Changed, Handler: a, Log: logr.Discard()}).Run(ctx)
		})
	}
	running.Go(func() { s.churn.run(ctx, func() { s.random().cut() }) })
	running.Go(func() { s.changes.run(ctx, func() { s.random().change() }) })
	<-ctx.Done()
	for _, a := range s.agents {
		a.cut() // without the half minute that a real agent gives the requests under way
	}
	running.Wait()
}

// Set changes the rates of churn and changes.
func (s *Sim) Set(r Rates) {
	s.churn.set(r.Churn * float64(len(s.agents)))
	s.changes.set(r.Changes * float64(len(s.agents)))
}

// Cut ends the tunnels of all agents but each spare-th, as a network that breaks does. Spare 0 spares none. It returns
// how many it ended.
func (s *Sim) Cut(spare int) int {
	n := 0
	for i, a := range s.agents {
		if spare == 0 || i%spare != 0 {
			n += a.cut()
		}
	}
	return n
}

// State is the state of a fleet.
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
