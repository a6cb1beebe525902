// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/netutil"

	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/portal/page"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/proxy"
	"github.com/drover-dev/drover/internal/tunnel"
)

// Limits for connections to the port.
const (
	headerTimeout = 10 * time.Second
	// exchangeTimeout limits the time for reading a request and writing its response. The proxy lifts this limit for
	// admitted users, because they may send watch requests.
	exchangeTimeout = 30 * time.Second
	idleTimeout     = 2 * time.Minute
	// streamsPerUser is the maximum number of concurrent requests on one HTTP/2 connection of a user.
	streamsPerUser = 250
	// uploadWindow is the receive window of one HTTP/2 connection of a user, in bytes. It allows 5 MB/s with a
	// round-trip time of 50 ms.
	uploadWindow = 256 << 10
)

// Limits for a request's header, including its path, in bytes.
const (
	// maxHeaderBytes is the size of the largest header that is served.
	maxHeaderBytes = 64 << 10
	// maxReadHeaderBytes is the size of the largest header that is read. The response to a header between
	// maxHeaderBytes and this limit has status 431. The response to an even larger header also has status 431 in
	// HTTP/1.1. In HTTP/2, the connection is closed instead, because net/http stops decoding such a header and then
	// cannot continue to use the connection.
	maxReadHeaderBytes = 256 << 10
)

// connections limits the connections to the port before any work is done for a connection. It first checks the total
// number and then the number for the address.
func (s *Server) connections(l net.Listener) net.Listener {
	return newConnections(s.Connections.Source, s.telemetry.turnedAway.Inc).listener(netutil.LimitListener(smallBuffers{l},
		s.Connections.All))
}

// smallBuffers accepts connections and sets small send buffers for them, so that unread bytes are held where Drover's
// limits count them, rather than in the kernel.
type smallBuffers struct{ net.Listener }

// Accept implements net.Listener.
func (l smallBuffers) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		tunnel.KeepUnsentLow(conn)
	}
	return conn, err // net/http examines the listener's errors
}

// port returns the HTTP server for the port. It limits the rate of handshakes.
func (s *Server) port(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ConnContext:       withConnection,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       exchangeTimeout,
		WriteTimeout:      exchangeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxReadHeaderBytes,
		TLSConfig: &tls.Config{
			MinVersion:         tls.VersionTLS13,
			GetCertificate:     s.Trust.GetCertificate,
			GetConfigForClient: s.pace.configFor,
		},
		// A receive window limits the unread request bodies of one connection. The library's default of 1 MiB per
		// connection is too much.
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: streamsPerUser, MaxReceiveBufferPerConnection: uploadWindow,
			MaxReceiveBufferPerStream: uploadWindow,
		},
		ErrorLog: quietLog(s.Log),
	}
}

// handler returns the chain of handlers that a request passes through. The closing context is canceled when users' next
// requests should go to another replica.
func (s *Server) handler(ctx, closing context.Context) http.Handler {
	users := s.Stop.Calls.Handler(s.telemetry.serve(s.Proxy)) // requests in progress, metrics, tracing, and then the proxy
	return withinHeader(lastAnswers(closing, byAudience(s.Audiences, s.Audit.Wrap(byPath(users, s.others(ctx, closing))))))
}

// withinHeader responds with status 431 to a request whose header is too large.
func withinHeader(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		growStack(len(r.Method))
		if headerBytes(r) > maxHeaderBytes {
			http.Error(w, "the header of the request is larger than 64 KiB", http.StatusRequestHeaderFieldsTooLarge)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// growStack grows the stack of a request's goroutine to its final size early, while there is little to copy. Otherwise,
// the stack would grow when the request reaches the code for the tunnel, WebSocket and TLS. For a GET request, this
// would take a tenth of the manager's CPU time.
//
//go:noinline
func growStack(i int) byte {
	var room [10 << 10]byte
	return room[i%len(room)]
}

func headerBytes(r *http.Request) int {
	const perField = 32 // counted in the same way as in HTTP/2
	n := len(r.RequestURI) + len(r.Host)
	for name, values := range r.Header {
		for _, value := range values {
			n += len(name) + len(value) + perField
		}
	}
	return n
}

// lastAnswers makes each response the last one on its connection once closing has ended. Users then open new
// connections to another replica. Closing idle connections instead could make the next request on them fail.
func lastAnswers(closing context.Context, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if closing.Err() != nil && r.Header.Get("Upgrade") == "" { // an upgrade is always the last request on its connection
			w.Header().Set("Connection", "close") // net/http converts it into GOAWAY for HTTP/2
		}
		next.ServeHTTP(w, r)
	})
}

// byAudience sends a request whose path does not identify a member to the member in its token's audience. This serves
// clients that drop the path of a server's address, for example Flux. The token is verified later, together with the
// path that is set here.
func byAudience(audiences identity.Audiences, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isAPI(r.URL.Path) {
			if prefix := audiences.Named(r); prefix != "" {
				there, path := *r, *r.URL
				path.Path = prefix + path.Path
				if path.RawPath != "" {
					path.RawPath = prefix + path.RawPath
				}
				there.URL = &path
				r = &there
			}
		}
		next.ServeHTTP(w, r)
	})
}

// isAPI reports whether a path belongs to a Kubernetes API rather than to the hub itself.
func isAPI(path string) bool {
	root, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return root == "api" || root == "apis" || root == "openapi" || root == "version"
}

// byPath selects a handler by the path's prefix before any mux is involved. A mux would redirect paths that it
// considers unclean, and the redirect would lose a member's prefix.
func byPath(users, others http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, proxy.PathClusters) || strings.HasPrefix(r.URL.Path, proxy.PathLocal) {
			users.ServeHTTP(w, r)
			return
		}
		others.ServeHTTP(w, r)
	})
}

// others serves all paths except the clusters' APIs. Agents, browsers and load balancers use these paths.
func (s *Server) others(ctx, closing context.Context) http.Handler {
	mux := http.NewServeMux()
	s.Registration.Register(mux)
	mux.HandleFunc("GET "+protocol.PathConnect, func(w http.ResponseWriter, r *http.Request) {
		if ctx.Err() != nil {
			refuseTunnel(w)
			return
		}
		s.connect(w, r)
	})
	if s.SignIn != nil {
		s.SignIn.Register(mux)
	}
	if s.Catalog != nil {
		s.Catalog.Register(mux)
	}
	s.Changes.Register(closing, mux)
	page.Register(mux)
	s.probes(ctx, mux) // for load balancers, because they probe the port to which they forward
	return mux
}

func writeOK(w http.ResponseWriter) { _, _ = io.WriteString(w, "ok\n") }

func (s *Server) readiness(ctx context.Context) error {
	if ctx.Err() != nil {
		return errors.New("stopping")
	}
	// Without this check, users would get errors for members that are connected to other replicas.
	if !s.Synced() {
		return errors.New("other replicas have not reported their members yet")
	}
	return errors.Join(s.Trust.Ready(), s.Ready())
}

func (s *Server) connect(w http.ResponseWriter, r *http.Request) {
	agent, ok := s.Registration.Authenticate(w, r)
	if !ok {
		return
	}
	peer := members.Peer{Cluster: agent.Cluster, Key: agent.KeyID, Instance: agent.Instance, NodeAgent: agent.NodeAgent,
		TokenID: agent.TokenID}
	if after, err := s.Members.Admit(peer.Name()); err != nil {
		w.Header().Set("Retry-After", strconv.Itoa(int(after.Seconds())+1))
		http.Error(w, err.Error(), http.StatusTooManyRequests)
		return
	}
	session, err := tunnel.Accept(w, r, s.Tunnel)
	if err != nil {
		s.Log.V(1).Info("tunnel not opened", "cluster", agent.Cluster.String(), "cause", err.Error())
		return
	}
	heldByAgent(r.Context())
	s.Members.Add(peer, session)
}
