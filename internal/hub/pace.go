// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"crypto/tls"
	"errors"
	"runtime"
	"slices"
	"time"

	"golang.org/x/time/rate"
)

// How fast agents are let in. Thousands that lost the hub together come back within a second, and their handshakes would leave
// nothing for users, for the tunnels that stand, and for the Lease.
const (
	agentsPerCore = 200 // a second; that many handshakes take about an eighth of a core's time, with what follows them
	agentBurst    = 50
	agentPatience = 4 * time.Second // an agent that would wait for longer is sent away before anything is computed for it, and comes back
)

// errTooManyAgents is what an agent is sent away with.
var errTooManyAgents = errors.New("too many agents connect at the same time")

// pace bounds the rate of TLS handshakes of agents.
type pace struct {
	limiter  *rate.Limiter
	patience time.Duration
}

func newPace() *pace {
	return &pace{limiter: rate.NewLimiter(rate.Limit(agentsPerCore*runtime.GOMAXPROCS(0)), agentBurst), patience: agentPatience}
}

// hello is for tls.Config.GetConfigForClient, which is called before the costly part of a handshake. It changes no configuration.
func (p *pace) hello(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	if !soundsLikeAgent(hello.SupportedProtos) {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(hello.Context(), p.patience)
	defer cancel()
	if p.limiter.Wait(ctx) != nil {
		return nil, errTooManyAgents
	}
	return nil, nil
}

// soundsLikeAgent tells agents from others by the protocols that they offer: HTTP/1.1 alone, for the WebSocket. kubectl and browsers
// offer HTTP/2 first, the kubelet's probes nothing. Whoever poses as one or the other is merely paced or not: this is no lock.
func soundsLikeAgent(protocols []string) bool {
	return slices.Equal(protocols, []string{"http/1.1"})
}
