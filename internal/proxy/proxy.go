// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package proxy serves a member's Kubernetes API to an identified user.
//
// The proxy first checks the form of the request, then the identity of the sender, the sender's right to reach the
// member, whether a seat is free, and finally whether the member exists and is connected. Then it creates a call, which
// holds the sender's identity. The transport sends only requests that belong to a call.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httputil"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/decision"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/request"
)

// Prefixes of the paths that a Handler serves.
const (
	// PathClusters equals protocol.PathClusters.
	PathClusters = protocol.PathClusters
	// PathLocal is followed by the path in the hub's own Kubernetes API.
	PathLocal = "/k8s/local"
)

// ErrUnknownCluster is returned when no Cluster has the given name.
var ErrUnknownCluster = errors.New("unknown cluster")

// ErrHeaderTooLarge is returned when a request's header, including the user and their groups, is larger than a member's
// agent accepts.
var ErrHeaderTooLarge = errors.New("header too large")

// NotConnectedError is returned when a Cluster has no open tunnel to any replica.
type NotConnectedError struct {
	// LastSeen is the time when the Cluster last had a tunnel. It is zero if this time is unknown or if the Cluster
	// has never had a tunnel.
	LastSeen time.Time
}

// Error returns a message that contains LastSeen.
func (e *NotConnectedError) Error() string {
	if e.LastSeen.IsZero() {
		return "not connected"
	}
	return "not connected since " + e.LastSeen.UTC().Format(time.RFC3339)
}

// Limits apply to each request. A zero value selects the default.
type Limits struct {
	// Body limits the body of a request, in bytes. The default is 16 MiB. The limit does not apply to upgraded
	// connections.
	Body int64
	// Stall is the time after which a stalling user is disconnected. A user stalls by not reading a chunk of a response,
	// which is at most 32 KiB long, or by not sending an announced request body. An idle watch or shell does not count as
	// stalling. The default is 3 minutes.
	Stall time.Duration
	// Answer limits how long a member may take to start its response to a request that is not long-running. The default is
	// 70 s. API servers time out after 60 s, so a member that takes longer is unresponsive and must not occupy seats that
	// other members need.
	Answer time.Duration
	// Look is the maximum time between two checks of the user's rights during a long-running request. The default is
	// 30 s.
	Look time.Duration
}

// Options configures a Handler. All fields are required except Limits, Limiter, Observer and Log.
type Options struct {
	// Authenticate identifies the sender of a request. All errors that it returns are refusals.
	Authenticate func(*http.Request) (identity.Identity, error)
	// Authorize checks whether a user may reach a member. All errors that Authorize returns are refusals. Authorize is
	// called before the proxy knows whether the member exists.
	Authorize func(context.Context, identity.Identity, types.NamespacedName) error
	// Transport returns the transport to a member's agent. The transport carries requests whose paths start with
	// protocol.PathKubernetes, and supports upgrades like http.Transport. Errors from the function match
	// ErrUnknownCluster or *NotConnectedError. Errors from the returned transport may match *NotConnectedError or
	// ErrHeaderTooLarge.
	Transport func(ctx context.Context, cluster types.NamespacedName) (http.RoundTripper, error)
	// Hub is the client configuration for the hub's own API server. The credentials in it are never used, because
	// each request carries the user's own credentials.
	Hub *rest.Config
	// Limits are the limits for each request.
	Limits Limits
	// Limiter distributes the hub's capacity among users and members. The default is a Limiter with default settings.
	Limiter *limit.Limiter
	// Observer is notified of events, for metrics.
	Observer Observer
	// Log is the logger for failures that only the hub's operator can fix.
	Log logr.Logger
}

// Handler serves PathClusters and PathLocal. Create it with New.
type Handler struct {
	authenticate   func(*http.Request) (identity.Identity, error)
	authorize      func(context.Context, identity.Identity, types.NamespacedName) error
	transport      func(ctx context.Context, cluster types.NamespacedName) (http.RoundTripper, error)
	local          *localAPI
	impersonations *decision.Cache[bool] // cached access reviews for impersonation
	limits         Limits
	observer       Observer
	limiter        *limit.Limiter
	log            logr.Logger
	forwarder      *httputil.ReverseProxy
}

// New returns a Handler. It fails if Hub is not a valid configuration.
func New(o Options) (*Handler, error) {
	if o.Authenticate == nil || o.Authorize == nil || o.Transport == nil || o.Hub == nil {
		return nil, errors.New("make proxy: Authenticate, Authorize, Transport and Hub are required")
	}
	local, err := newLocalAPI(o.Hub)
	if err != nil {
		return nil, fmt.Errorf("make proxy: %w", err)
	}
	if o.Limits.Body <= 0 {
		o.Limits.Body = 16 << 20
	}
	if o.Limits.Stall <= 0 {
		o.Limits.Stall = 3 * time.Minute
	}
	if o.Limits.Answer <= 0 {
		o.Limits.Answer = 70 * time.Second
	}
	if o.Limits.Look <= 0 {
		o.Limits.Look = 30 * time.Second
	}
	if o.Limiter == nil {
		o.Limiter = limit.New(limit.Defaults(), limit.Observers{})
	}
	h := &Handler{
		authenticate: o.Authenticate, authorize: o.Authorize, transport: o.Transport, local: local,
		impersonations: decision.New[bool](), limits: o.Limits, observer: o.Observer, limiter: o.Limiter, log: o.Log,
	}
	h.forwarder = h.newForwarder()
	return h, nil
}

// ServeHTTP serves one request. The request must be unmodified. Because http.ServeMux redirects paths that it
// considers unclean, the handler must be selected by prefix, before any mux.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, err := h.admit(r)
	if err != nil {
		h.refuse(w, r, err)
		return
	}
	h.forward(w, r, c)
}

// admit turns a request into a call, or returns the reason why the request is refused. The package comment documents
// the order of the checks.
func (h *Handler) admit(r *http.Request) (*call, error) {
	to, err := parseTarget(r)
	if err != nil {
		return nil, err
	}
	request.IgnoreUpgrade(r.Header)
	info := request.Of(r, to.path)
	audit.From(r.Context()).About(to.member(), info)
	if err := checkForm(r, h.limits); err != nil {
		return nil, err
	}
	id, err := h.authenticate(r)
	if err != nil {
		return nil, err
	}
	if !id.Valid() {
		return nil, refusal.Unauthorized("the request has no user")
	}
	audited(r, id)
	c := &call{identity: id, target: to, info: info}
	wanted, err := h.judge(r, c)
	if err != nil {
		return nil, err
	}
	if c.seat, err = h.enter(r.Context(), c); err != nil {
		return nil, err
	}
	routed := false
	defer func() {
		if !routed {
			c.seat.Release()
		}
	}()
	if to.local {
		err = h.local.route(r, c)
	} else {
		err = h.routeMember(r.Context(), c, wanted)
	}
	routed = err == nil
	return c, err
}

// judge refuses a user who is not allowed to reach a member. Otherwise, it returns the user whom the caller wants to
// impersonate in the member, or nil if there is none. For the hub itself, the hub's API server makes these decisions
// instead.
func (h *Handler) judge(r *http.Request, c *call) (*impersonation, error) {
	if c.target.local {
		return nil, nil
	}
	wanted, err := parseImpersonation(r.Header)
	if err != nil {
		return nil, err
	}
	return wanted, h.authorize(r.Context(), c.identity, c.target.cluster)
}

func (h *Handler) routeMember(ctx context.Context, c *call, wanted *impersonation) error {
	transport, err := h.transport(ctx, c.target.cluster)
	if err != nil {
		return memberError(c, err)
	}
	c.transport, c.header = transport, impersonate(c.identity)
	if wanted == nil {
		return nil
	}
	if err := h.mayImpersonate(ctx, c, wanted); err != nil {
		return err
	}
	c.header = impersonateOther(c.identity, wanted)
	return nil
}

// refuse responds with a Status. It logs failures that only the hub's operator can fix.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(context.Cause(r.Context()), context.Canceled) {
		panic(http.ErrAbortHandler) // the caller has disconnected; net/http ends the connection silently
	}
	e := refusal.Of(err)
	if status := e.Status(); status.Code >= http.StatusInternalServerError && e.Unwrap() != nil {
		if _, ok := errors.AsType[*NotConnectedError](e); !ok { // the Cluster's conditions contain the reason
			h.log.Error(e, "could not serve a request", "code", e.Status().Code)
		}
	}
	audit.From(r.Context()).Refused(string(e.Status().Reason))
	if isDiscovery(r.URL.Path) {
		warn(w, e.Status().Message)
	}
	refusal.Write(w, e)
}

// isDiscovery reports whether a path is one of the two paths that clients request before anything else.
func isDiscovery(path string) bool {
	return strings.HasSuffix(path, "/api") || strings.HasSuffix(path, "/apis")
}

// warn also adds the message as a Warning header. When discovery is refused, kubectl ignores the Status but prints each
// warning once.
func warn(w http.ResponseWriter, message string) {
	if value, err := utilnet.NewWarningHeader(299, "drover", message); err == nil {
		w.Header().Set("Warning", value)
	}
}
