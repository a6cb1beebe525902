// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sim runs many agents in one process, each with a real tunnel to a hub and a simulated API server.
//
// The following parts are real: the key of each agent, its connect tokens, TLS and WebSocket to the hub, the HTTP/2
// server in the tunnel, and the agent's own loop that keeps the tunnel open, with its backoff. The cluster is
// simulated. An agent stores only the digest of the settings that the hub announces, so a simulated fleet does not
// survive a change of the hub's CA.
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

// Options are the options of a Sim.
type Options struct {
	// Server is the hub's base URL, and Bundle is the CA bundle to trust, as PEM.
	Server string
	Bundle []byte
	// Through contains addresses, in the format host:port, to connect to instead of the server's address. Each tunnel uses
	// the next one, as with a balancer. If it is empty, the server's address is used.
	Through []string
	// Members are the members to simulate, as created by Enrol.
	Members []Member
	// Latency is the latency between each member and the hub in each direction, and APILatency is the latency of each
	// response of the simulated API servers.
	Latency, APILatency time.Duration
	// Rates are the initial rates.
	Rates Rates
}

// Sim is a fleet of agents. Use New to create a Sim.
type Sim struct {
	server         string
	agents         []*agent
	dialer         *tunnel.Dialer
	api            *apiServer
	churn, changes *pacer

	attempts, ended atomic.Int64
	arrivals        arrivals
	decoded         decoded
	runs            runs
}

// New creates the agents. Run starts them.
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

// Run keeps the tunnels of all agents open until ctx ends, and returns when all of them have ended.
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

// Cut ends the tunnels of all agents except every spare-th, like a network failure. If spare is 0, it ends all tunnels.
// It returns the number of tunnels that it ended.
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
	// Agents is the number of agents. Connected counts the agents with an open tunnel, and Reporting counts the agents
	// whose reports the hub reads.
	Agents, Connected, Reporting int
	// LeastAttempts is the lowest number of attempts to connect of any agent.
	LeastAttempts int64
	// Attempts is the number of attempts to connect since the start, and Ended is the number of tunnels that have ended.
	Attempts, Ended int64
}

// State returns the current counts.
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
