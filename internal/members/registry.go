// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package members tracks the members that are connected to each replica of the hub, and provides transports to them.
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

// ErrNotConnected is returned if a member has no open tunnel.
var ErrNotConnected = errors.New("not connected")

// Reasons why the hub ends a tunnel.
var (
	// ErrRevoked is the reason for closing the tunnels of an agent that no longer belongs to the Cluster.
	ErrRevoked = errors.New("the agent is no longer the cluster's agent")
	// ErrTooManyTunnels is the reason for closing the oldest tunnel of a member that has more tunnels than Bounds
	// allows.
	ErrTooManyTunnels = errors.New("too many tunnels of one member")
	// ErrReportEnded is the reason for closing a tunnel after the agent has ended its report. An agent does this
	// before it stops.
	ErrReportEnded = errors.New("the agent ended its report")
	// ErrReportMalformed is the reason for closing a tunnel whose agent has sent an undecodable report.
	ErrReportMalformed = errors.New("the agent's report cannot be decoded")
	// ErrReplayed is the reason for closing a tunnel whose connect token had already been used with another replica.
	ErrReplayed = errors.New("the connect token was already used at another replica of the hub")
)

// ErrReplicaGone is the cause of a loss if the replica at which the member's tunnel ended is gone.
var ErrReplicaGone = errors.New("the replica of the hub that held the tunnel is gone")

// drainTimeout is how long requests to a disconnecting agent, including shells, may continue. An agent that is stopping
// allows them less time.
const drainTimeout = time.Hour

// RefusalMemory is how long the latest rejection of a client is reported. Rejected agents retry within five minutes.
const RefusalMemory = 10 * time.Minute

// Session is one open tunnel. tunnel.Session implements it.
type Session interface {
	http.RoundTripper
	// Done is closed when the tunnel has ended.
	Done() <-chan struct{}
	// Err returns why the tunnel ended.
	Err() error
	// Drain stops accepting requests, and closes the tunnel when the requests in progress have ended or ctx is done.
	Drain(ctx context.Context) error
	// Close ends the tunnel.
	Close() error
}

// Peer is the agent at the other end of a session.
type Peer struct {
	// Cluster is the Cluster of the agent. The agent has proved that it belongs to this Cluster.
	Cluster protocol.ClusterRef `json:"cluster"`
	// Key is the ID of the key that proved the agent's identity, as returned by registration.KeyID.
	Key string `json:"key"`
	// Instance distinguishes the agent's process from the other processes of its cluster. It is empty if the agent does
	// not send a name.
	Instance string `json:"instance,omitempty"`
	// NodeAgent is true if the process is a node agent. Its tunnel carries requests only while the member has no other
	// tunnel.
	NodeAgent bool `json:"nodeAgent,omitempty"`
	// Leads is true if the process claimed to be the leader in its last report. The replica that holds the tunnel
	// shares this information with the other replicas.
	Leads bool `json:"leads,omitempty"`
	// TokenID is the ID of the connect token that opened the tunnel. The same token must not open another tunnel.
	TokenID string `json:"tokenID,omitempty"`
	// ID is the ID of the tunnel. Registry.Add sets it.
	ID string `json:"id"`
	// Epoch orders tunnels. It is the time, in nanoseconds, at which the replica accepted the tunnel. If necessary, it
	// is increased to make it later than the epochs of all known tunnels of the Cluster. Registry.Add sets it.
	Epoch int64 `json:"epoch"`
}

// Name returns the name of the Cluster on the hub.
func (p Peer) Name() types.NamespacedName {
	return types.NamespacedName{Namespace: p.Cluster.Namespace, Name: p.Cluster.Name}
}

// Rejection describes why a client claiming to be a member was rejected.
type Rejection struct {
	// Reason is one of the Reason constants of api/v1.
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	At      time.Time `json:"at"`
	// Unproven is true if any client could have caused the rejection, because the client presented neither a token nor
	// a key of the member.
	Unproven bool `json:"unproven,omitempty"`
}

// Registry holds the tunnels that end in this process, and tracks the tunnels that end at other replicas. It consists
// of several parts, which share one table and its lock. A function should accept only the parts that it needs. Use New
// to create a Registry. All methods are safe for concurrent use.
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

// Reconciled contains the parts of a Registry that the controllers of Clusters and Hosts need.
type Reconciled struct {
	*States
	*Calls
	// Forget discards all data about a member whose Cluster or Host no longer exists.
	Forget func(name types.NamespacedName)
}

// Reconciled returns the parts of the registry that the Cluster and Host controllers use.
func (r *Registry) Reconciled() Reconciled {
	return Reconciled{States: r.States, Calls: r.Calls, Forget: r.Forget}
}

// New returns an empty Registry.
func New(log logr.Logger, now func() time.Time) *Registry {
	ctx, stop := context.WithCancel(context.Background())
	t := &table{log: log, now: now, ctx: ctx, stop: stop, members: map[types.NamespacedName]*member{}}
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
