// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/internal/limit"
)

// Limits restricts users' requests to one replica, and the resources that a workspace can use. The defaults are
// suitable for a replica with 1 GiB of memory.
type Limits struct {
	// Short limits requests that end with their response. Defaults: user 100, member 250, all 2000.
	Short RequestLimits `json:"short,omitempty"`
	// Long limits long-running requests, such as watches, followed logs, exec sessions, and requests that are proxied to
	// workloads. Defaults: user 1000, member 2000, all 5000.
	Long RequestLimits `json:"long,omitempty"`
	// Queue limits the short requests that wait because a limit has been reached. Long requests are never queued.
	Queue Queue `json:"queue,omitempty"`
	// Backlog limits the memory that is occupied by responses that users are not reading.
	Backlog Backlog `json:"backlog,omitempty"`
	// Workspace limits the resources that the members of one workspace can use.
	Workspace Workspace `json:"workspace,omitempty"`
	// Connections limits the connections to the port of one replica.
	Connections Connections `json:"connections,omitempty"`
}

// Workspace limits the resources that the members of one workspace can use. Without these limits, a tenant could create
// any number of Clusters.
type Workspace struct {
	// Clusters is the maximum number of Clusters that get a join token. Additional Clusters get the reason
	// TooManyClusters. Clusters that have joined are not affected. Default: 1000.
	Clusters int `json:"clusters,omitempty"`
	// Tunnels is the maximum number of tunnels to one replica for all Clusters of a workspace combined. Default: 4000.
	// This is enough for two agent replicas per Cluster, even while all of them open a new tunnel before they close the
	// old one.
	Tunnels int `json:"tunnels,omitempty"`
	// ClusterTunnels is the maximum number of tunnels to one replica for one Cluster. Default: 12.
	ClusterTunnels int `json:"clusterTunnels,omitempty"`
}

// Connections limits the connections to the port of one replica.
type Connections struct {
	// All is the maximum number of connections, including tunnels. Additional connections wait to be accepted. Default:
	// 50000.
	All int `json:"all,omitempty"`
	// Source is the maximum number of connections without an authenticated user or agent from one address (or IPv6
	// /64). It is also the maximum for one user, and for all service accounts of one namespace combined. Additional
	// connections are closed immediately. Tunnels do not count, because all agents behind a load balancer have the same
	// address. Default: 4000.
	Source int `json:"source,omitempty"`
}

// RequestLimits limits the concurrent requests to one replica.
type RequestLimits struct {
	// User is the limit for one user. The service accounts of one namespace count as one user.
	User int `json:"user,omitempty"`
	// Member is the limit for requests to one member.
	Member int `json:"member,omitempty"`
	// All is the limit for all requests combined.
	All int `json:"all,omitempty"`
}

// Queue limits the short requests that wait because a limit has been reached.
type Queue struct {
	// All is the maximum number of requests that may wait at the same time. Default: 2000.
	All int `json:"all,omitempty"`
	// User is the maximum number of requests from one user that may wait at the same time. Default: 400.
	User int `json:"user,omitempty"`
	// Wait is how long a request may wait. Default: 5s. Maximum: 30s.
	Wait metav1.Duration `json:"wait,omitempty"`
}

// Backlog limits the buffered responses that users are not reading. Above a limit, the hub aborts the oldest of the
// responses that have made no progress for a second. At twice the limit, the hub aborts the oldest response even if
// that response is making progress.
type Backlog struct {
	// MemberMiB is the limit for responses from one member. Default: 64.
	MemberMiB int64 `json:"memberMiB,omitempty"`
	// AllMiB is the limit for all responses combined. Default: 256.
	AllMiB int64 `json:"allMiB,omitempty"`
}

func (l *Limits) setDefaults() {
	d := limit.Defaults()
	l.Short.setDefaults(d.Short)
	l.Long.setDefaults(d.Long)
	setDefault(&l.Queue.All, d.Short.Queue)
	setDefault(&l.Queue.User, d.Short.QueueUser)
	setDefault(&l.Queue.Wait.Duration, d.Short.Wait)
	setDefault(&l.Backlog.MemberMiB, d.Backlog.Member>>20)
	setDefault(&l.Backlog.AllMiB, d.Backlog.All>>20)
	setDefault(&l.Workspace.Clusters, 1000)
	setDefault(&l.Workspace.Tunnels, 4000)
	setDefault(&l.Workspace.ClusterTunnels, 12)
	setDefault(&l.Connections.All, 50_000)
	setDefault(&l.Connections.Source, 4000)
}

func (r *RequestLimits) setDefaults(d limit.Bounds) {
	setDefault(&r.User, d.User)
	setDefault(&r.Member, d.Member)
	setDefault(&r.All, d.All)
}

func (l *Limits) validate(add func(field, format string, args ...any)) {
	for field, r := range map[string]RequestLimits{"limits.short": l.Short, "limits.long": l.Long} {
		if r.User < 1 || r.User > r.All || r.Member < 1 || r.Member > r.All {
			add(field, "want 1 ≤ user ≤ all and 1 ≤ member ≤ all")
		}
	}
	if l.Queue.User < 1 || l.Queue.User > l.Queue.All {
		add("limits.queue", "want 1 ≤ user ≤ all")
	}
	if l.Queue.Wait.Duration < 0 || l.Queue.Wait.Duration > 30*time.Second {
		add("limits.queue.wait", "want at most 30s: otherwise clients give up, and retry while the first request still waits")
	}
	if l.Backlog.MemberMiB < 1 || l.Backlog.MemberMiB > l.Backlog.AllMiB {
		add("limits.backlog", "want 1 ≤ memberMiB ≤ allMiB")
	}
	if w := l.Workspace; w.Clusters < 1 || w.ClusterTunnels < 2 || w.ClusterTunnels > 16 || w.ClusterTunnels > w.Tunnels {
		add("limits.workspace", "want 1 ≤ clusters and 2 ≤ clusterTunnels ≤ 16 and clusterTunnels ≤ tunnels: an agent that moves has two")
	}
	if c := l.Connections; c.Source < 1 || c.Source > c.All {
		add("limits.connections", "want 1 ≤ source ≤ all")
	}
}

// Settings returns the settings for package limit.
func (l Limits) Settings() limit.Settings {
	short, long := l.Short.bounds(), l.Long.bounds()
	short.Queue, short.QueueUser, short.Wait = l.Queue.All, l.Queue.User, l.Queue.Wait.Duration
	backlog := limit.Defaults().Backlog
	backlog.Member, backlog.All = l.Backlog.MemberMiB<<20, l.Backlog.AllMiB<<20
	return limit.Settings{Short: short, Long: long, Backlog: backlog}
}

func (r RequestLimits) bounds() limit.Bounds {
	return limit.Bounds{User: r.User, Member: r.Member, All: r.All}
}
