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

// Limits of the port.
const (
	headerTimeout = 10 * time.Second
	// exchangeTimeout bounds reading a request and writing its answer. The proxy lifts it for those it lets in, who may
	// watch.
	exchangeTimeout = 30 * time.Second
	idleTimeout     = 2 * time.Minute
	// streamsPerUser bounds the requests of one HTTP/2 connection of a user.
	streamsPerUser = 250
	// uploadWindow in bytes of one HTTP/2 connection of a user: 5 MB/s at a round trip of 50 ms.
	uploadWindow = 256 << 10
)

// Bounds of a request's header, with its path, in bytes.
const (
	// maxHeaderBytes is what is served.
	maxHeaderBytes = 64 << 10
	// maxReadHeaderBytes is what is read. Between the two the answer is 431. Beyond it HTTP/1.1 answers 431 as well, and
	// HTTP/2 ends the connection: net/http stops to decode a header as soon as it is too large, and cannot go on with the
	// connection then.
	maxReadHeaderBytes = 256 << 10
)

// connections are those that come to the port, bounded before anything is computed for them: in all, then by address.
func (s *Server) connections(l net.Listener) net.Listener {
	return newConnections(s.Connections.Source, s.telemetry.turnedAway.Inc).listener(netutil.LimitListener(smallBuffers{l}, s.Connections.All))
}

// smallBuffers accepts connections with small send buffers: bytes that a user does not read are held where a bound of
// ours counts them, not in the kernel.
type smallBuffers struct{ net.Listener }

// Accept implements net.Listener.
func (l smallBuffers) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		tunnel.KeepUnsentLow(conn)
	}
	return conn, err // net/http knows the listener's errors
}

// port is the server of the port. Its handshakes are admitted at a pace.
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
		// A connection may hold so much of bodies that are not read yet: the library's 1 MiB, times those who may connect, is
		// too much.
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: streamsPerUser, MaxReceiveBufferPerConnection: uploadWindow, MaxReceiveBufferPerStream: uploadWindow},
		ErrorLog: quietLog(s.Log),
	}
}

// handler is what a request passes, in this order. closing ends when users shall go elsewhere with their next request.
func (s *Server) handler(ctx, closing context.Context) http.Handler {
	users := s.Stop.Calls.Handler(s.telemetry.serve(s.Proxy)) // requests in progress, metrics, span; then the proxy
	return withinHeader(lastAnswers(closing, byAudience(s.Audiences, s.Audit.Wrap(byPath(users, s.others(ctx, closing))))))
}

// withinHeader answers 431 to a request with a header that is too large.
func withinHeader(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		growStack(len(r.Method))
		if headerBytes(r) > maxHeaderBytes {
			http.Error(w, "the header of the request has more than 64 KiB", http.StatusRequestHeaderFieldsTooLarge)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// growStack makes the stack of a request's goroutine as large as it will become, while there is little on it to copy:
// at the end of the way are the tunnel, WebSocket and TLS, and to grow there is a tenth of the manager's CPU for a GET.
//
//go:noinline
func growStack(i int) byte {
	var room [10 << 10]byte
	return room[i%len(room)]
}

func headerBytes(r *http.Request) int {
	const perField = 32 // as HTTP/2 counts
	n := len(r.RequestURI) + len(r.Host)
	for name, values := range r.Header {
		for _, value := range values {
			n += len(name) + len(value) + perField
		}
	}
	return n
}

// lastAnswers makes each answer the last one of its connection once closing has ended, so that users come back by a new
// one, which leads elsewhere. Of a connection that was closed while they had nothing to ask, they learn only by a
// request that fails.
func lastAnswers(closing context.Context, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if closing.Err() != nil && r.Header.Get("Upgrade") == "" { // an upgrade is the last answer of its connection anyway
			w.Header().Set("Connection", "close") // for HTTP/2 net/http makes GOAWAY of it
		}
		next.ServeHTTP(w, r)
	})
}

// byAudience sends a request whose path has no member to the one that its token is made for. Clients that drop the path
// of a server's address, as Flux does, reach their member so. The token is verified later, with the path that is made
// here.
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

// isAPI reports whether a path is one of a Kubernetes API that the hub's port itself has not.
func isAPI(path string) bool {
	root, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return root == "api" || root == "apis" || root == "openapi" || root == "version"
}

// byPath chooses by prefix before any mux, which would redirect paths that it finds untidy and so leave a member's
// prefix.
func byPath(users, others http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, proxy.PathClusters) || strings.HasPrefix(r.URL.Path, proxy.PathLocal) {
			users.ServeHTTP(w, r)
			return
		}
		others.ServeHTTP(w, r)
	})
}

// others serves all but the API of a cluster: agents, load balancers, and what the hub itself has for users.
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
	s.probes(ctx, mux) // for load balancers, which check the port that they forward to
	return mux
}

func writeOK(w http.ResponseWriter) { _, _ = io.WriteString(w, "ok\n") }

func (s *Server) readiness(ctx context.Context) error {
	if ctx.Err() != nil {
		return errors.New("stopping")
	}
	if !s.Synced() { // users would get the error that members are not connected which are connected to other replicas
		return errors.New("other replicas have not said yet which members they hold")
	}
	return errors.Join(s.Trust.Ready(), s.Ready())
}

// connect makes a tunnel of an agent's request.
func (s *Server) connect(w http.ResponseWriter, r *http.Request) {
	agent, ok := s.Registration.Authenticate(w, r)
	if !ok {
		return
	}
	peer := members.Peer{Cluster: agent.Cluster, Key: agent.KeyID, Instance: agent.Instance, NodeAgent: agent.NodeAgent, TokenID: agent.TokenID}
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
