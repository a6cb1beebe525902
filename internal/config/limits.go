// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/internal/limit"
)

// Limits of what users do through one replica, and of what a workspace may cost. The defaults are for 1 GiB of memory.
type Limits struct {
	// Short requests are answered and over. Defaults: user 100, member 250, all 2000.
	Short RequestLimits `json:"short,omitempty"`
	// Long ones are meant to last: watches, followed logs, sessions, and what is proxied to workloads. Defaults: user
	// 1000, member 2000, all 5000.
	Long RequestLimits `json:"long,omitempty"`
	// Queue of short requests that find no room. Long ones never wait.
	Queue Queue `json:"queue,omitempty"`
	// Backlog is what is held in memory for users who do not read.
	Backlog Backlog `json:"backlog,omitempty"`
	// Workspace bounds what the members of one workspace cost.
	Workspace Workspace `json:"workspace,omitempty"`
	// Connections to the port of one replica.
	Connections Connections `json:"connections,omitempty"`
}

// Workspace bounds what the members of one workspace cost the hub, whoever may create Clusters there.
type Workspace struct {
	// Clusters that get a join token. A Cluster beyond it says TooManyClusters; those that have joined stay. Default 1000.
	Clusters int `json:"clusters,omitempty"`
	// Tunnels of all of them at one replica. Default 4000: two agent replicas each, all of which open a new tunnel before
	// they close the old.
	Tunnels int `json:"tunnels,omitempty"`
	// ClusterTunnels of one of them at one replica. Default 12.
	ClusterTunnels int `json:"clusterTunnels,omitempty"`
}

// Connections bounds the connections to the port of one replica.
type Connections struct {
	// All of them, tunnels included. The next one waits to be accepted. Default 50000.
	All int `json:"all,omitempty"`
	// Source bounds those of one address (or IPv6 /64) on which neither a user nor an agent has been authenticated, and
	// those of one user or of the service accounts of one namespace. The next one is closed at once. Default 4000. Tunnels
	// do not count: behind a load balancer all agents come from one address.
	Source int `json:"source,omitempty"`
}

// RequestLimits bound the requests that are under way at once in one replica.
type RequestLimits struct {
	// User bounds those of one user. The service accounts of one namespace count as one.
	User int `json:"user,omitempty"`
	// Member bounds those to one member.
	Member int `json:"member,omitempty"`
	// All bounds all.
	All int `json:"all,omitempty"`
}

// Queue of short requests.
type Queue struct {
	// All bounds how many wait at once. Default 2000.
	All int `json:"all,omitempty"`
	// User bounds how many of one user. Default 400.
	User int `json:"user,omitempty"`
	// Wait is how long one may wait. Default 5s, at most 30s.
	Wait metav1.Duration `json:"wait,omitempty"`
}

// Backlog of answers that users do not read. Beyond a bound the oldest that has not moved for a second is cut, and at
// twice the bound the oldest, moving or not.
type Backlog struct {
	// MemberMiB bounds what is held of one member. Default 64.
	MemberMiB int64 `json:"memberMiB,omitempty"`
	// AllMiB bounds what is held of all. Default 256.
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
		add("limits.queue.wait", "want at most 30s: clients give up, and try again beside what waits")
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

// Settings returns the limits as package limit takes them.
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
