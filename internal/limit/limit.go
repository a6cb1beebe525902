// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"context"
	"net/netip"
	"time"
)

// Settings configures a Limiter. docs/operations/limits.md explains the defaults.
type Settings struct {
	// Short limits requests that end with their response.
	Short Bounds
	// Long limits long-running requests. Such requests never wait for a seat.
	Long Bounds
	// Backlog limits the memory that unread responses occupy.
	Backlog BacklogBounds
}

// Defaults returns the settings for a replica with 1 GiB of memory.
func Defaults() Settings {
	return Settings{
		Short:   Bounds{User: 100, Member: 250, All: 2000, Queue: 2000, QueueUser: 400, Wait: 5 * time.Second},
		Long:    Bounds{User: 1000, Member: 2000, All: 5000},
		Backlog: BacklogBounds{Member: 64 << 20, All: 256 << 20, Grace: time.Second},
	}
}

// Observers contains the observers of a Limiter.
type Observers struct {
	Short, Long Observer
	// Cut is called each time a request is cut because of the backlog.
	Cut func(Scope)
}

// Limiter limits users' requests through one replica of the hub. Use New to create a Limiter.
type Limiter struct {
	short, long *Gate
	// Backlog counts the memory that unread responses occupy.
	Backlog *Backlog
}

// New returns a Limiter.
func New(s Settings, o Observers) *Limiter {
	s.Long.Queue = 0
	return &Limiter{short: NewGate(s.Short, o.Short), long: NewGate(s.Long, o.Long), Backlog: NewBacklog(s.Backlog, o.Cut)}
}

// Enter returns a seat for a short or a long request. See Gate.Enter.
func (l *Limiter) Enter(ctx context.Context, who Requester, long bool) (*Seat, error) {
	if long {
		return l.long.Enter(ctx, who)
	}
	return l.short.Enter(ctx, who)
}

// Load returns how many short and long requests are in progress, and how many short requests are waiting.
func (l *Limiter) Load() (short, long, waiting int) {
	short, waiting = l.short.Load()
	long, _ = l.long.Load()
	return short, long, waiting
}

// Source returns the name under which connections from a host:port address are counted. The name is the IPv4 address,
// or the /64 network of an IPv6 address, because a single host can have many IPv6 addresses. All clients behind the
// same proxy share a name if the proxy hides their addresses.
func Source(address string) string {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return address
	}
	host := at.Addr().Unmap().WithZone("")
	if host.Is4() {
		return host.String()
	}
	return netip.PrefixFrom(host, 64).Masked().String()
}
