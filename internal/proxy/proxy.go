// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package proxy serves a member's Kubernetes API to an identified user.
//
// A request is refused before anything is sent: first its form is judged, then who sends it, then whether they may
// reach the member, then whether there is room for the request, then whether there is such a member and it is
// connected. Only then a call is made of it, a value that holds the identity; the transport sends nothing that belongs
// to no call.
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

// Prefixes of what a Handler serves.
const (
	// PathClusters is protocol.PathClusters.
	PathClusters = protocol.PathClusters
	// PathLocal is followed by the path in the hub's own Kubernetes API.
	PathLocal = "/k8s/local"
)

// ErrUnknownCluster says that there is no Cluster of that name.
var ErrUnknownCluster = errors.New("unknown cluster")

// ErrHeaderTooLarge says that the header of a request, with the user and their groups, is larger than a member's agent
// takes.
var ErrHeaderTooLarge = errors.New("header too large")

// NotConnectedError says that a Cluster has no open tunnel anywhere.
type NotConnectedError struct {
	// LastSeen is when it last had one, zero if that is unknown or never happened.
	LastSeen time.Time
}

// Error says since when.
func (e *NotConnectedError) Error() string {
	if e.LastSeen.IsZero() {
		return "not connected"
	}
	return "not connected since " + e.LastSeen.UTC().Format(time.RFC3339)
}

// Limits bound what one request may take. Zero values mean the defaults.
type Limits struct {
	// Body of a request, in bytes. 16 MiB by default. Upgraded connections are not bound by it.
	Body int64
	// Stall is how long a user may take for one piece of an answer, at most 32 KiB, or send nothing of a body that they
	// announced, before they are cut off. 3 minutes by default. A silent watch or shell is not stalled.
	Stall time.Duration
	// Answer is how long a member may take to begin its answer to a request that is not meant to last. 70 s by default: an
	// API server gives up after 60 s by itself, so whoever takes longer hangs, and must not hold the seats of others.
	Answer time.Duration
	// Look is after how long, at most, it is looked again whether a request that lasts may go on. 30 s by default.
	Look time.Duration
}

// Options of a Handler. All but Limits and Limiter are needed.
type Options struct {
	// Authenticate identifies who sends a request. Errors are refusals.
	Authenticate func(*http.Request) (identity.Identity, error)
	// Authorize admits a user to a member. Errors are refusals. It is asked before it is known whether the member exists.
	Authorize func(context.Context, identity.Identity, types.NamespacedName) error
	// Transport returns what carries requests whose path begins with protocol.PathKubernetes to a member's agent. It
	// does upgrades like http.Transport. Errors match ErrUnknownCluster or *NotConnectedError, those of the transport
	// may match the latter or ErrHeaderTooLarge.
	Transport func(ctx context.Context, cluster types.NamespacedName) (http.RoundTripper, error)
	// Hub is how to reach the hub's own API server. Its credentials are never used: each user's own are.
	Hub *rest.Config
	// Limits of requests.
	Limits Limits
	// Limiter shares the hub among users and members. Its defaults by default.
	Limiter *limit.Limiter
	// Observer receives what metrics need.
	Observer Observer
	// Log receives what only the operator of the hub can repair.
	Log logr.Logger
}

// Handler serves PathClusters and PathLocal. New makes it.
type Handler struct {
	authenticate func(*http.Request) (identity.Identity, error)
	authorize    func(context.Context, identity.Identity, types.NamespacedName) error
	transport    func(ctx context.Context, cluster types.NamespacedName) (http.RoundTripper, error)
	local        *localAPI
	granted      *decision.Cache[bool] // who may impersonate whom in which member
	limits       Limits
	observer     Observer
	limiter      *limit.Limiter
	log          logr.Logger
	forwarder    *httputil.ReverseProxy
}

// New makes a Handler. It fails if Hub is no usable configuration.
func New(o Options) (*Handler, error) {
	if o.Authenticate == nil || o.Authorize == nil || o.Transport == nil || o.Hub == nil {
		return nil, errors.New("make proxy: Authenticate, Authorize, Transport and Hub must be given")
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
		granted: decision.New[bool](), limits: o.Limits, observer: o.Observer, limiter: o.Limiter, log: o.Log,
	}
	h.forwarder = h.newForwarder()
	return h, nil
}

// ServeHTTP serves one request. Give it the request as it came: http.ServeMux redirects paths that it finds untidy, so
// choose the handler by prefix before any mux.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, err := h.admit(r)
	if err != nil {
		h.refuse(w, r, err)
		return
	}
	h.forward(w, r, c)
}

// admit makes a call of a request, or says why not. Its order is the package's promise.
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

// judge refuses a user who may not reach a member, and returns whom the user wants to impersonate there, nil for no
// one. The hub's API server decides on its callers by itself.
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

// routeMember completes a call to a member.
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

// refuse answers with a Status. What only the operator can mend goes to the log.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(context.Cause(r.Context()), context.Canceled) {
		panic(http.ErrAbortHandler) // the caller is gone; net/http ends the connection without a word
	}
	e := refusal.Of(err)
	if status := e.Status(); status.Code >= http.StatusInternalServerError && e.Unwrap() != nil {
		h.logFailure(e)
	}
	audit.From(r.Context()).Refused(string(e.Status().Reason))
	if isDiscovery(r.URL.Path) {
		warn(w, e.Status().Message)
	}
	refusal.Write(w, e)
}

// isDiscovery reports whether a path is one of the two that clients ask before anything else.
func isDiscovery(path string) bool {
	return strings.HasSuffix(path, "/api") || strings.HasSuffix(path, "/apis")
}

// warn says the message in a header too: of a refused discovery kubectl drops the Status, but it prints warnings, once.
func warn(w http.ResponseWriter, message string) {
	if value, err := utilnet.NewWarningHeader(299, "drover", message); err == nil {
		w.Header().Set("Warning", value)
	}
}

func (h *Handler) logFailure(e *refusal.Error) {
	var gone *NotConnectedError
	if errors.As(e, &gone) {
		return // the Cluster's conditions say it
	}
	h.log.Error(e, "request not served", "code", e.Status().Code)
}
