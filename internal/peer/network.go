// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package peer links the hub's replicas, so that each replica knows the members of all replicas and can forward
// requests to these members in one hop.
//
// Each replica dials every other replica with internal/tunnel, over mutual TLS, and offers its members. The dialed
// replica mirrors these members in its registry, and sends requests for them back through the same tunnel.
// docs/design/0002-replicas-and-moves.md explains the reasons.
package peer

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/internal/await"
	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/request"
	"github.com/drover-dev/drover/internal/tunnel"
)

// PathLink is the path of the WebSocket upgrade that establishes the link between two replicas.
const PathLink = "/v1/link"

// headerReplica is a header with the ID of the replica that is dialing or sending the request.
const headerReplica = "Drover-Replica"

// Limits on connections to the port.
const (
	headerTimeout  = 5 * time.Second
	maxHeaderBytes = 16 << 10
	maxConnections = 1000
	maxID          = 128
)

// SyncPatience is how long a replica waits for the other replicas when it starts.
const SyncPatience = 10 * time.Second

// Options configures a Network.
type Options struct {
	// Listen is the address of the port for other replicas.
	Listen string
	// Members reports the members of this replica to the other replicas, and receives the members of the other
	// replicas.
	Members *members.Replicas
	// Transports returns transports to the members of this replica.
	Transports *members.Transports
	// TLS returns the configuration of one connection, for either end. The configuration must admit only replicas.
	TLS func() (*tls.Config, error)
	// Find finds the replicas. It may also find this replica.
	Find Finder
	// Memory is shared with the tunnels of agents. If it is nil, the Network has its own.
	Memory *tunnel.Memory
	// Calls wraps the handler for requests that other replicas send to members through this replica. It may be nil.
	Calls func(http.Handler) http.Handler
	// Limiter limits the requests that other replicas send to each member. The seats for users who connect to this
	// replica are separate. Limiter defaults to a Limiter with the default settings.
	Limiter *limit.Limiter
	// Forwarded is called with the result of each request that was sent to another replica. The result is "answered",
	// "misdirected" if the member is no longer connected there, "refused" if a limit was reached, or "failed"
	// otherwise. Forwarded may be nil, and must not block.
	Forwarded func(result string)
	Log       logr.Logger
}

// Network manages the links between this replica and the others. Use New to create it. All methods are safe for
// concurrent use.
type Network struct {
	options   Options
	id        string // identifies this process
	forwarder http.Handler
	served    http.Handler // forwarder with its wrappers

	running sync.WaitGroup // counts goroutines

	mu         sync.Mutex // guards the following fields
	ctx        context.Context
	start      time.Time // when Serve was called
	discovered bool      // set when the addresses of the other replicas are known
	dials      map[string]*dial
	peers      map[string]*peer
}

// New returns a Network for a replica with a new ID.
func New(o Options) *Network {
	if o.Memory == nil {
		o.Memory = &tunnel.Memory{}
	}
	if o.Forwarded == nil {
		o.Forwarded = func(string) {}
	}
	if o.Limiter == nil {
		o.Limiter = limit.New(limit.Defaults(), limit.Observers{})
	}
	n := &Network{options: o, id: rand.Text(), dials: map[string]*dial{}, peers: map[string]*peer{}}
	n.forwarder, n.served = newForwarder(), http.HandlerFunc(n.serve)
	if o.Calls != nil {
		n.served = o.Calls(n.served)
	}
	return n
}

// Run listens and serves until ctx is done.
func (n *Network) Run(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", n.options.Listen)
	if err != nil {
		return fmt.Errorf("listen for replicas on %s: %w", n.options.Listen, err)
	}
	return n.Serve(ctx, listener)
}

// Serve links this replica with the other replicas until ctx is done, and returns when all links and goroutines of the
// Network have ended. It must be called only once.
func (n *Network) Serve(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer n.running.Wait()
	defer cancel()
	n.begin(ctx)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+PathLink, n.accept)
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: headerTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		TLSConfig: &tls.Config{
			MinVersion:         tls.VersionTLS13,
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return n.options.TLS() },
		},
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}, // a tunnel needs HTTP/1.1
		ErrorLog:     quietLog(n.options.Log),
	}
	n.options.Log.Info("serving replicas", "address", listener.Addr().String(), "id", n.id)
	served := make(chan error, 1)
	n.running.Go(func() { served <- server.ServeTLS(bound(listener), "", "") })
	n.running.Go(func() { n.find(ctx) })
	select {
	case err := <-served:
		return fmt.Errorf("serve replicas: %w", err)
	case <-ctx.Done():
		return server.Close()
	}
}

func (n *Network) begin(ctx context.Context) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ctx, n.start = ctx, time.Now()
}

// find runs the Finder until ctx is done, and restarts it when it fails. This replica therefore keeps track of the
// others when the API server is temporarily unavailable.
func (n *Network) find(ctx context.Context) {
	for ctx.Err() == nil {
		if err := n.options.Find(ctx, n.found); err != nil && ctx.Err() == nil {
			n.options.Log.Error(err, "looking for other replicas failed", "retryIn", longestWait.String())
		}
		await.Time(n.ctx, longestWait)
	}
}

// Synced reports whether the members of the other replicas are known, or whether this replica has stopped waiting for
// them. As long as Synced returns false, a member that is not connected to this replica may be connected to another
// one.
func (n *Network) Synced() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.start.IsZero():
		return false
	case time.Since(n.start) >= SyncPatience:
		return true
	case !n.discovered:
		return false
	}
	return !slices.ContainsFunc(slices.Collect(maps.Values(n.dials)), func(d *dial) bool {
		return d.wanted && !n.syncedLocked(d)
	})
}

func (n *Network) syncedLocked(d *dial) bool {
	p := n.peers[d.peer]
	return d.self || p != nil && p.complete
}

// Links returns the number of replicas whose members this replica knows (heard), and the number of replicas that know
// this replica's members (hearing).
func (n *Network) Links() (heard, hearing int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.peers {
		if p.current != nil && !p.current.down {
			heard++
		}
	}
	for _, d := range n.dials {
		if d.up {
			hearing++
		}
	}
	return heard, hearing
}

// config returns the settings of a link. With these settings, a peer that hangs is detected within eight seconds.
func (n *Network) config() tunnel.Config {
	return tunnel.Config{
		PingInterval:          pingInterval,
		PingTimeout:           pingTimeout,
		HandshakeTimeout:      headerTimeout,
		DrainTimeout:          drainTimeout,
		MaxHeaderBytes:        linkHeaderBytes,
		MaxRequestHeaderBytes: linkRequestBytes,
		Repeatable:            request.Repeatable,
		Memory:                n.options.Memory,
		ErrorLog:              quietLog(n.options.Log),
	}
}

// Settings that differ between a link and an agent's tunnel.
const (
	pingInterval = 3 * time.Second
	pingTimeout  = 5 * time.Second
	// drainTimeout is how long requests from other replicas may continue when this replica stops. It is short, because
	// these requests have already been given time to finish.
	drainTimeout = time.Second
	// linkHeaderBytes and linkRequestBytes leave room for the headers that a hop adds to a request, even if the request
	// is as large as an agent's tunnel allows.
	linkHeaderBytes, linkRequestBytes = 68 << 10, 1<<20 + 4<<10
)
