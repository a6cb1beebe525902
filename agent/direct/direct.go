// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package direct serves users who connect to the member without going through the hub.
//
// These users authenticate with tokens that the hub's issuer has signed for this cluster. The agent either serves the
// users itself, or runs next to each of the member's API servers and reviews tokens for it. The hub delivers the data
// for verifying tokens in a Secret that each replica of the agent watches, so users' requests cause no requests to the
// hub.
package direct

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/internal/await"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/signin/token"
)

const (
	// again is the delay before the endpoint watches a Secret again, or tries again to listen on a port that was in
	// use.
	again = 2 * time.Second
	// reviewEvery is the interval at which requests in progress are reviewed and the certificate is checked.
	reviewEvery = 15 * time.Second
	// given is how long a certificate from a user's Secret is used before the Secret is read again.
	given = time.Minute
	// headerTimeout is the timeout for a handshake and for reading the headers of a request. idleTimeout is how long a
	// connection may stay open without a request.
	headerTimeout, idleTimeout = 10 * time.Second, 90 * time.Second
	maxHeader                  = 64 << 10
	maxStreams                 = 100 // per HTTP/2 connection
	// stopTimeout is how long requests in progress may continue when the endpoint stops.
	stopTimeout = 5 * time.Second
)

// Options configure an Endpoint. All fields are required, except that an Endpoint for an API server does not need
// Kubernetes or Changed.
type Options struct {
	// APIServer makes the endpoint serve the node's API server instead of users if the hub requests this.
	APIServer bool
	// Secrets accesses the Secrets in the agent's namespace.
	Secrets *kube.Secrets
	// Listen is the address to listen on while the hub requests direct access.
	Listen string
	// Kubernetes serves protocol.PathKubernetes. It forwards each request as the user named in the request's headers.
	Kubernetes http.Handler
	// Changed is called when the result of Endpoint.Authority has changed.
	Changed func()
	Now     func() time.Time
	Log     logr.Logger
}

// Endpoint serves users while the hub's Secret exists. Use New to create an Endpoint.
type Endpoint struct {
	options    Options
	access     atomic.Pointer[access] // nil while there is no usable Secret
	serving    atomic.Pointer[certificate]
	published  atomic.Pointer[string] // the PEM-encoded CA
	open       open
	metrics    metrics
	complaints rate.Sometimes
	soon       *time.Timer              // timer for the next check; used only by Run
	reviewing  chan struct{}            // has an element for each review in progress
	looks      chan struct{}            // signals that Run must check again whether to serve, and with which certificate
	address    atomic.Pointer[net.Addr] // the address on which the endpoint is listening; nil while it is not listening
}

// New returns an Endpoint.
func New(o Options) *Endpoint {
	return &Endpoint{options: o, complaints: rate.Sometimes{First: 1, Interval: time.Second},
		looks: make(chan struct{}, 1), reviewing: make(chan struct{}, maxReviews)}
}

// Authority returns the PEM-encoded CA of the agent's own certificate, or "" if the agent has not created a CA.
func (e *Endpoint) Authority() string {
	if ca := e.published.Load(); ca != nil {
		return *ca
	}
	return ""
}

// Run serves until ctx is done.
func (e *Endpoint) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() {
		// The error only means that ctx is done.
		_ = wait.PollUntilContextCancel(ctx, again, true,
			func(ctx context.Context) (bool, error) { e.watch(ctx); return false, nil })
	})
	tick := time.NewTicker(reviewEvery)
	defer tick.Stop()
	stop := func() {}
	defer func() { stop() }()
	for on := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-e.looks:
		}
		wanted := e.prepare(ctx)
		e.open.review(e.stands)
		switch {
		case wanted && !on:
			serving, end := context.WithCancel(ctx)
			stop = end
			running.Go(func() { e.serve(serving) })
		case !wanted && on:
			stop()
		}
		on = wanted
	}
}

// watch follows the Secret until the watch ends.
func (e *Endpoint) watch(ctx context.Context) {
	w, err := e.options.Secrets.Watch(ctx, protocol.DirectSecret)
	if err != nil {
		e.options.Log.V(1).Info("cannot watch the Secret of direct access", "error", err.Error())
		return
	}
	defer w.Stop()
	if _, err := e.options.Secrets.Get(ctx, protocol.DirectSecret); apierrors.IsNotFound(err) {
		e.set(nil) // the Secret may have been deleted while there was no watch
	}
	for event := range w.ResultChan() {
		secret, ok := event.Object.(*corev1.Secret)
		switch {
		case ok && event.Type == watch.Deleted:
			e.set(nil)
		case ok && (event.Type == watch.Added || event.Type == watch.Modified):
			e.set(secret)
		}
	}
}

// set applies the data that the hub has delivered. If the data is unreadable, direct access ends, because with the
// previous data, the endpoint could accept sessions that the hub has ended.
func (e *Endpoint) set(secret *corev1.Secret) {
	var next *access
	if secret != nil {
		var err error
		if next, err = parse(secret); err != nil {
			e.options.Log.Error(err, "direct access ends, because its Secret cannot be used", "secret", protocol.DirectSecret)
		}
	}
	e.access.Store(next)
	e.look()
}

// look makes Run check again whether to serve users.
func (e *Endpoint) look() { await.Signal(e.looks) }

// stands returns the reason why a request in progress must end, or nil if it may continue.
func (e *Endpoint) stands(k known) error {
	current := e.access.Load()
	if current == nil {
		return errOff
	}
	now := e.options.Now()
	if !now.Before(k.Expiry.Time()) {
		// The list contains an ended session only until its tokens expire. After that, the request could no longer be ended.
		return fmt.Errorf("%w: it has expired", token.ErrToken)
	}
	return current.stands(k, now)
}

// prepare reports whether the endpoint should serve, and ensures that it has a certificate. The agent creates the CA
// even if it serves no users, because the process that serves an API server is not allowed to create it.
func (e *Endpoint) prepare(ctx context.Context) bool {
	current := e.access.Load()
	if current == nil || e.options.APIServer && !current.byAPIServer() {
		return false
	}
	wanted, before := e.options.APIServer == current.byAPIServer(), e.serving.Load()
	if !before.due(e.host(current), current.TLSSecret, e.options.Now()) {
		return wanted
	}
	next, authority, err := e.certify(ctx, current)
	if err != nil {
		e.options.Log.Error(err, "cannot renew the certificate of direct access")
		if e.soon != nil { // one timer is enough, regardless of what caused the check
			e.soon.Stop()
		}
		if e.options.APIServer && apierrors.IsNotFound(err) { // the agent has not created the CA yet
			e.soon = time.AfterFunc(again, e.look)
		}
		return wanted && before != nil
	}
	e.serving.Store(next)
	if authority != e.Authority() {
		e.published.Store(&authority)
		if e.options.Changed != nil {
			e.options.Changed()
		}
	}
	return wanted
}

// host returns the name or address that the certificate is for.
func (e *Endpoint) host(a *access) string {
	if !e.options.APIServer {
		return a.Host
	}
	host, _, _ := net.SplitHostPort(e.options.Listen) // cannot fail, because IsLoopback has accepted the address
	return host
}

func (e *Endpoint) serve(ctx context.Context) {
	_ = wait.PollUntilContextCancel(ctx, again, true, func(ctx context.Context) (bool, error) {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", e.options.Listen)
		if err == nil {
			address := listener.Addr()
			e.options.Log.Info("serving direct access", "address", address.String())
			e.address.Store(&address)
			err = e.serveAt(ctx, listener)
			e.address.Store(nil)
		}
		if err != nil {
			e.options.Log.Error(err, "cannot serve direct access: set "+protocol.EnvDirectListen+" to a free address")
		}
		return false, nil
	})
}

// serveAt serves on a listener until ctx is done.
func (e *Endpoint) serveAt(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: e, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ConnContext: withConnection, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ErrorLog: slog.NewLogLogger(logr.ToSlogHandler(e.options.Log.V(1)), slog.LevelInfo),
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate,
			error) {
			return &e.serving.Load().Certificate, nil // the certificate is set before the endpoint listens
		}},
	}
	bounded := &connections{Listener: listener, all: maxConnections, ofClient: maxClient, within: provenWithin,
		metrics: &e.metrics}
	if e.options.APIServer { // there are no streams, and all clients are on this machine
		bounded.all, bounded.ofClient, bounded.within = maxClient, maxClient, 0
		server.Handler, server.ReadTimeout, server.WriteTimeout = e.reviews(), headerTimeout, headerTimeout
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		e.open.review(func(known) error {
			if e.access.Load() == nil {
				return errOff
			}
			return nil
		})
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
	})
	err := server.ServeTLS(bounded, "", "")
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve users: %w", err)
}
