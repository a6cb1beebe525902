// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package subscribe streams changes to Drover's objects to users.
//
// Users receive the objects that they may watch, and some fields of the Clusters that they can reach.
//
// docs/guide/subscribe.md describes the protocol.
package subscribe

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/portal/catalog"
)

// Paths of the streams. Rancher's operators use the second path to check whether WebSockets work.
const (
	Path        = "/v1/subscribe"
	PathRancher = "/v3/subscribe"
)

// subprotocol is a subprotocol that a browser offers. A second subprotocol, offered at the same time, contains the
// browser's token.
const subprotocol = "v1.subscribe.drover.dev"

const (
	startLimit   = 15 * time.Second // timeout for the first read of a kind and for the first review of rights
	upgradeLimit = 10 * time.Second // for the response to the upgrade request
	mostOfUser   = 8                // concurrent streams per user
	mostOfAll    = 2000
)

// Options configures a Server. All fields except for Observer are required.
type Options struct {
	// Authenticate returns the user who sent a request. Its errors are refusals.
	Authenticate func(*http.Request) (identity.Identity, error)
	// Watch reports whether a user may watch one of Drover's resources in a namespace. If the namespace is empty, it
	// reports whether the user may watch the resource in all namespaces.
	Watch func(ctx context.Context, id identity.Identity, resource, namespace string) (bool, error)
	// Reach decides which members a user can reach. Some fields of these Clusters are visible to the user even if the
	// user is not allowed to watch them.
	Reach catalog.Ways
	// Unmanaged reports whether no manager is the leader. It returns false if the user is not allowed to know that.
	Unmanaged func(ctx context.Context, id identity.Identity) bool
	// Informers are the informers of the manager's cache.
	Informers cache.Informers
	// Live reads from the API server.
	Live client.Reader
	// Now returns the current time.
	Now func() time.Time
	Observer
}

// Observer contains functions that the server calls for metrics. Each function may be nil, and must not block.
type Observer struct {
	// Streams is called with 1 when a stream starts, and with -1 when it ends.
	Streams func(n int)
	// Ended is called with the reason why a stream has ended. The number of different reasons is small.
	Ended func(why string)
}

// Server serves the streams of one replica. Create one with New.
type Server struct {
	Options
	feeds map[string]*feed
	gate  *limit.Gate
	every time.Duration // the interval between reviews of a stream's rights
	pings time.Duration // the interval between a stream's pings
	doubt time.Duration // how long a stream may continue while its rights cannot be reviewed

	mu      sync.Mutex    // guards changed
	changed chan struct{} // closed at the next change
}

// New returns a Server. The server starts no watches until its first stream starts.
func New(o Options) *Server {
	s := &Server{Options: o, every: rightsEvery, pings: pingEvery, doubt: doubtLimit, feeds: map[string]*feed{},
		changed: make(chan struct{}), gate: limit.NewGate(limit.Bounds{User: mostOfUser, All: mostOfAll}, limit.Observer{})}
	for _, k := range subscribable() {
		s.feeds[k.Resource] = &feed{kind: k, changes: newChanges(o.Now), frames: newFrames(), parts: newFrames()}
	}
	return s
}

// Register adds the endpoints to a mux. When the closing context is canceled, the server ends all streams.
func (s *Server) Register(closing context.Context, mux *http.ServeMux) {
	serve := func(w http.ResponseWriter, r *http.Request) { s.serve(closing, w, r) }
	mux.HandleFunc("GET "+Path, serve)
	mux.HandleFunc("GET "+PathRancher, serve)
}

// wake makes all streams check for changes.
func (s *Server) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// next returns a channel that is closed at the next change.
func (s *Server) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *Server) serve(closing context.Context, w http.ResponseWriter, r *http.Request) {
	st, done, err := s.admit(closing, r)
	if err != nil {
		audit.From(r.Context()).Refused(string(refusal.Of(err).Status().Reason))
		refusal.Write(w, err)
		return
	}
	defer done()
	conn, err := upgrade(w, r)
	if err != nil {
		return // the upgrader has already responded
	}
	if s.Streams != nil {
		s.Streams(1)
		defer s.Streams(-1)
	}
	why := st.run(closing, conn)
	if s.Ended != nil {
		s.Ended(why)
	}
}

// admit checks a request and returns its stream. Its errors are refusals.
func (s *Server) admit(closing context.Context, r *http.Request) (st *stream, done func(), err error) {
	if closing.Err() != nil {
		return nil, nil, refusal.Unavailable("this replica of the hub is stopping; connect again to reach another one")
	}
	id, err := s.Authenticate(r)
	if err != nil {
		return nil, nil, err
	}
	if !id.Valid() {
		return nil, nil, refusal.Unauthorized("the request has no user")
	}
	audit.From(r.Context()).Identified(audit.User{Name: id.Hub.Username, UID: id.UID, Groups: id.Hub.Groups}, nil)
	if !websocket.IsWebSocketUpgrade(r) {
		return nil, nil, refusal.New(http.StatusUpgradeRequired, "UpgradeRequired",
			"this address streams changes over a WebSocket: request an upgrade; a proxy on the way may have removed it")
	}
	q, err := queryOf(r.URL.Query())
	if err != nil {
		return nil, nil, err
	}
	seat, err := s.gate.Enter(r.Context(), limit.Requester{User: id.Sharer()})
	if err != nil {
		return nil, nil, refusal.TooManyRequests(fmt.Sprintf("a user may have %d streams at once, and a replica %d; "+
			"close one", mostOfUser, mostOfAll), time.Minute).Because(err)
	}
	ctx, cancel := context.WithTimeout(r.Context(), startLimit)
	defer cancel()
	st = &stream{Server: s, request: r, id: id, query: q}
	for _, resource := range q.kinds {
		f := s.feeds[resource]
		if err := f.start(ctx, s); err != nil {
			seat.Release()
			return nil, nil, refusal.Unavailable("the hub could not read its " + resource + " in time; try again").Because(err)
		}
		st.kinds = append(st.kinds, &watched{feed: f})
	}
	st.begin(ctx)
	return st, seat.Release, nil
}

// upgrade upgrades the connection of a request to a WebSocket. It refuses requests from web pages that must not open a
// WebSocket.
func upgrade(w http.ResponseWriter, r *http.Request) (*websocket.Conn, error) {
	const key = "Sec-WebSocket-Key"
	if sent, err := base64.StdEncoding.DecodeString(r.Header.Get(key)); err == nil && len(sent) > 0 && len(sent) != 16 {
		// Rancher's operators send a key of 13 bytes for their check, and curl ignores the response to the key. The
		// library refuses keys that are not 16 bytes long.
		digest := sha256.Sum256(sent)
		r.Header.Set(key, base64.StdEncoding.EncodeToString(digest[:16]))
	}
	upgrader := websocket.Upgrader{
		HandshakeTimeout: upgradeLimit, ReadBufferSize: 256, WriteBufferSize: 4 << 10, WriteBufferPool: &buffers,
		Subprotocols: []string{subprotocol},
		CheckOrigin:  identity.MayOpen,
		Error: func(w http.ResponseWriter, r *http.Request, status int, reason error) {
			refusal.Write(w, refusal.New(status, "", reason.Error()))
		},
	}
	return upgrader.Upgrade(w, r, nil)
}

// buffers are the write buffers that all streams share.
var buffers sync.Pool

// errStopping is returned when this replica is stopping.
var errStopping = errors.New("this replica of the hub is stopping")
