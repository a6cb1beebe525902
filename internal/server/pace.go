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

// The rates at which connections are admitted. When thousands of agents lose their connection to the hub at the same
// time, they reconnect within a second. In addition, any client can open any number of connections. Without a limit,
// these handshakes would leave no CPU time for users, open tunnels and the Lease.
const (
	agentsPerCore = 200 // per second; the handshakes and the subsequent work take about half of a core's time
	othersPerCore = 400 // per second; no single user reaches this rate
	paceBurst     = 50

	// The maximum time that a client waits. A client that would have to wait longer is refused before any work is done
	// for it, and has to try again. An agent waits for at least 4 s before it tries again (agent/link). If 10,000
	// agents lose their connection to the hub for a minute, 667 connect in the first second, and a hub with two cores
	// admits 400 of them. After 12 s, 1,600 agents are waiting, and it takes 4 s to admit them. If these agents were
	// refused instead, they would connect half a minute later.
	agentsPatience = 6 * time.Second
	othersPatience = 4 * time.Second
)

// errTooMany is returned for connections that are refused.
var errTooMany = errors.New("too many connections are opened at the same time")

// handshakePace limits the rate of TLS handshakes. Agents and other clients have separate limits, so that neither can
// starve the other. In each queue, the source addresses take turns, so a client with many connections delays only its
// own connections.
type handshakePace struct {
	agents, others *addressQueue
	refused        func() // called for each refused connection
}

func newPace(refused func()) *handshakePace {
	cores := runtime.GOMAXPROCS(0)
	return &handshakePace{refused: refused, agents: newLane(agentsPerCore*cores, paceBurst, agentsPatience),
		others: newLane(othersPerCore*cores, paceBurst, othersPatience)}
}

// addressQueue admits a number of handshakes per second. Each handshake takes one of the burst seats. It returns the
// seat after a fixed time even if it has not finished, so a stalling client does not delay others.
type addressQueue struct {
	gate *limit.Gate
	hold time.Duration
}

func newLane(perSecond, burst int, patience time.Duration) *addressQueue {
	// The queue holds only as many handshakes as can be served in time.
	bounds := limit.Bounds{All: burst, Queue: perSecond * int(patience/time.Second), Wait: patience}
	return &addressQueue{gate: limit.NewGate(bounds, limit.Observer{}),
		hold: time.Second * time.Duration(burst) / time.Duration(perSecond)}
}

func (l *addressQueue) enter(ctx context.Context, address string) error {
	seat, err := l.gate.Enter(ctx, limit.Requester{User: address})
	if err != nil {
		return err
	}
	time.AfterFunc(l.hold, seat.Release)
	return nil
}

// configFor is used as tls.Config.GetConfigForClient. This function is called before the expensive part of a handshake.
// It does not change the configuration.
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

// soundsLikeAgent reports whether the offered protocols suggest that a client is an agent. An agent offers only
// HTTP/1.1, because it opens a WebSocket. kubectl and browsers offer HTTP/2 first, and the kubelet's probes offer no
// protocols. This is not a security check: a client that imitates an agent merely waits in the agents' queue.
func soundsLikeAgent(protocols []string) bool {
	return slices.Equal(protocols, []string{"http/1.1"})
}
