// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"errors"
	"runtime"
	"slices"
	"time"

	"github.com/drover-dev/drover/internal/limit"
)

// How fast connections are let in. Thousands of agents that lost the hub together come back within a second, and any
// client may open connections without end: their handshakes would leave nothing for users, open tunnels and the Lease.
const (
	agentsPerCore = 200 // a second; that many take about half of a core's time, with what follows them
	othersPerCore = 400 // a second; who reaches that is no user
	paceBurst     = 50

	// A client that would wait for longer is refused before anything is computed for it, and tries again: an agent after 4
	// s at least (agent/link). Of 10,000 agents that lost the hub for a minute, 667 come in the first second, and two
	// cores let in 400: after 12 s 1,600 are waiting, which is 4 s. One that were refused would come half a minute later.
	agentsPatience = 6 * time.Second
	othersPatience = 4 * time.Second
)

// errTooMany is what is sent away with.
var errTooMany = errors.New("too many connections are opened at the same time")

// handshakePace bounds the rate of TLS handshakes, those of agents apart from all others, so that neither can starve
// the other. In each queue the addresses that connections come from take turns: a client that opens them without end
// waits behind its own.
type handshakePace struct {
	agents, others *addressQueue
	refused        func() // called for each connection that is sent away
}

func newPace(refused func()) *handshakePace {
	cores := runtime.GOMAXPROCS(0)
	return &handshakePace{refused: refused, agents: newLane(agentsPerCore*cores, paceBurst, agentsPatience), others: newLane(othersPerCore*cores, paceBurst, othersPatience)}
}

// addressQueue lets in some handshakes a second. Each takes one of burst seats and gives it back after a fixed time,
// whatever becomes of it, as a client that stalls must not hold up others.
type addressQueue struct {
	gate *limit.Gate
	hold time.Duration
}

func newLane(perSecond, burst int, patience time.Duration) *addressQueue {
	// As many may wait as are served in time.
	bounds := limit.Bounds{All: burst, Queue: perSecond * int(patience/time.Second), Wait: patience}
	return &addressQueue{gate: limit.NewGate(bounds, limit.Observer{}), hold: time.Second * time.Duration(burst) / time.Duration(perSecond)}
}

func (l *addressQueue) enter(ctx context.Context, address string) error {
	seat, err := l.gate.Enter(ctx, limit.Requester{User: address})
	if err != nil {
		return err
	}
	time.AfterFunc(l.hold, seat.Release)
	return nil
}

// configFor is for tls.Config.GetConfigForClient, which is called before the costly part of a handshake. It changes no
// configuration.
func (p *handshakePace) configFor(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	in := p.others
	if soundsLikeAgent(hello.SupportedProtos) {
		in = p.agents
	}
	if in.enter(hello.Context(), limit.Source(hello.Conn.RemoteAddr().String())) != nil {
		p.refused()
		return nil, errTooMany
	}
	return nil, nil
}

// soundsLikeAgent distinguishes agents from others by the protocols that they offer: HTTP/1.1 alone, for the WebSocket.
// kubectl and browsers offer HTTP/2 first, the kubelet's probes nothing. Whoever poses as one or the other shares the
// queue of that one: this is no lock.
func soundsLikeAgent(protocols []string) bool {
	return slices.Equal(protocols, []string{"http/1.1"})
}
