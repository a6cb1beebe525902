// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/peer"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
)

// join connects the server to the other replicas, if other replicas are configured.
func (s *Server) join(mgr ctrl.Manager, cfg config.Config, hops *limit.Limiter, forwarded func(result string)) {
	if !cfg.Peers.Enabled() {
		return
	}
	find := peer.Static(cfg.Peers.Addresses)
	if cfg.Peers.Service != "" {
		find = peer.Endpoints(mgr.GetCache(), cfg.Namespace, cfg.Peers.Service)
	}
	s.Peers = peer.New(peer.Options{
		Listen: cfg.Peers.Listen, Members: s.Members.Replicas, Transports: s.Members.Transports, TLS: s.Trust.ReplicaTLS,
		Find: find, Memory: s.Tunnel.Memory,
		Calls: func(next http.Handler) http.Handler {
			return s.Stop.Calls.Handler(s.telemetry.hop(next))
		}, Limiter: hops, Forwarded: forwarded, Log: s.Log.WithName("peers"),
	})
	s.telemetry.watchLinks(s.Peers.Links)
	s.Stop.Links = s.Peers.Run
	s.Stop.Others = func() int {
		others, _ := s.Peers.Links()
		return others
	}
	s.Members.OnToken(refuseReplays(s.Registration))
}

// hopLimits limits the requests that other replicas forward to this one. These requests have separate seats, but the
// same number of seats as requests from this replica's users. The memory for both kinds of requests is counted in the
// same backlog. There are no limits per user, because the replica that received the request has already applied them.
func hopLimits(users *limit.Limiter, s limit.Settings, o limit.Observers) *limit.Limiter {
	s.Short.User, s.Long.User = 0, 0
	hops := limit.New(s, o)
	hops.Backlog = users.Backlog
	return hops
}

// refuseReplays returns a function that makes this replica refuse a connect token that has opened a tunnel to another
// replica.
func refuseReplays(r *registration.Server) func(members.Peer) {
	return func(p members.Peer) {
		if expires := tokenExpires(p, r.Now()); p.TokenID != "" && expires.After(r.Now()) {
			r.TokenUsed(p.Key, p.TokenID, expires)
		}
	}
}

// tokenExpires returns a time by which the token that opened a tunnel has expired on every replica. The clock of the
// replica that accepted the token is off by no more than the allowed skew. The result has an upper limit, because the
// tunnel's epoch may be ahead of all clocks, and the number of tokens that are stored per agent is limited.
func tokenExpires(p members.Peer, now time.Time) time.Time {
	const longest = protocol.ConnectTokenTTL + 2*protocol.ClockSkew
	expires := time.Unix(0, p.Epoch).Add(longest)
	if latest := now.Add(longest); expires.After(latest) {
		return latest
	}
	return expires
}

// Synced reports whether the members of other replicas are known. It also returns true if the server has stopped
// waiting for them.
func (s *Server) Synced() bool { return s.Peers == nil || s.Peers.Synced() }
