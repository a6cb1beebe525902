// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package members knows which members are connected to which replica of the hub, yields a transport to each and wakes
// those who wait for a change.
package members

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/protocol"
)

// ErrNotConnected says that a member has no open tunnel.
var ErrNotConnected = errors.New("not connected")

// Reasons for the hub to end a tunnel.
var (
	// ErrRevoked ends tunnels of an agent that is no longer the Cluster's.
	ErrRevoked = errors.New("the agent is no longer the cluster's agent")
	// ErrTooManyTunnels ends the oldest tunnel of a member that has more than Bounds allow.
	ErrTooManyTunnels = errors.New("too many tunnels of one member")
	// ErrReportEnded ends a tunnel whose agent stopped reporting, as an agent does that is about to stop.
	ErrReportEnded = errors.New("the agent ended its report")
	// ErrReportMalformed ends a tunnel whose agent reported what cannot be read.
	ErrReportMalformed = errors.New("the agent's report cannot be read")
	// ErrReplayed ends a tunnel that was opened with a connect token that had opened one at another replica before.
	ErrReplayed = errors.New("the connect token was used at another replica of the hub before")
)

// ErrReplicaGone is why a member is lost whose tunnel ended at a replica that is gone.
var ErrReplicaGone = errors.New("the hub's replica that held the tunnel is gone")

// drainTimeout is how long the requests of an agent that disconnects may continue, shells included. The agent itself
// gives them less time when it stops.
const drainTimeout = time.Hour

// RefusalMemory is how long a refusal is shown after it last happened. Refused agents come back within five minutes.
const RefusalMemory = 10 * time.Minute

// Session is one open tunnel. tunnel.Session is one.
type Session interface {
	http.RoundTripper
	// Done is closed when the tunnel has ended.
	Done() <-chan struct{}
	// Err is why it ended.
	Err() error
	// Drain takes no more requests, and ends the tunnel when those under way are done or ctx ends.
	Drain(ctx context.Context) error
	// Close ends it.
	Close() error
}

// Peer is the agent at the other end of a session.
type Peer struct {
	// Cluster that the agent proved to be the agent of.
	Cluster protocol.ClusterRef `json:"cluster"`
	// Key that it proved it with, as registration.KeyID has it.
	Key string `json:"key"`
	// Instance names the agent's process among those of its cluster. Empty if it does not say.
	Instance string `json:"instance,omitempty"`
	// NodeAgent reports whether the process is a node agent: its tunnel carries requests while the member has no other.
	NodeAgent bool `json:"nodeAgent,omitempty"`
	// Leads reports whether the process said in its last report that it leads. The replica at which the tunnel ends
	// tells the others.
	Leads bool `json:"leads,omitempty"`
	// TokenID is the ID of the connect token that opened the tunnel, which nothing else may open.
	TokenID string `json:"tokenID,omitempty"`
	// ID of the tunnel. Registry.Add makes it.
	ID string `json:"id"`
	// Epoch orders tunnels: when it was accepted, in nanoseconds of the replica's clock, but later than all that were
	// known of the Cluster there. Registry.Add makes it.
	Epoch int64 `json:"epoch"`
}

// Name of the Cluster on the hub.
func (p Peer) Name() types.NamespacedName {
	return types.NamespacedName{Namespace: p.Cluster.Namespace, Name: p.Cluster.Name}
}

// Rejection is why a client that claimed to be a member was turned away.
type Rejection struct {
	// Reason is one of the Reason constants of api/v1.
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	At      time.Time `json:"at"`
	// Unproven reports whether any client may have caused it: the client has shown neither a token nor a key of the
	// member.
	Unproven bool `json:"unproven,omitempty"`
}

// Registry holds the tunnels that end in this process, and knows the tunnels that end at other replicas. It is composed
// of a part for each subject, which share one table and its lock. Take only the parts that you need. New makes a
// Registry. All methods may be called concurrently.
type Registry struct {
	*Tunnels
	*Admission
	*States
	*Transports
	*Calls
	*Followers
	*Notices
	*Replicas
}

// New makes an empty registry.
func New(log logr.Logger, now func() time.Time) *Registry {
	t := newTable(log, now)
	r := &Registry{States: &States{t}, Transports: &Transports{t}}
	r.Notices = &Notices{table: t, feeds: map[*Feed]struct{}{}}
	r.Admission = &Admission{table: t, notices: r.Notices, bounds: DefaultBounds(), workspaces: map[string]int{}}
	r.Followers = &Followers{table: t, admission: r.Admission}
	r.Tunnels = &Tunnels{table: t, notices: r.Notices, admission: r.Admission, followers: r.Followers}
	r.Calls = &Calls{table: t, transports: r.Transports, notices: r.Notices}
	r.Replicas = &Replicas{table: t, notices: r.Notices}
	leaders := &leaders{table: t, notices: r.Notices}
	r.first = []func(types.NamespacedName){
		r.followFarLocked, leaders.examineLocked, leaders.awaitLeaderLocked,
	}
	return r
}
