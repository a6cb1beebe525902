// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/request"
)

// memberURL is the scheme and host of requests to a member. The tunnel requires them, and the agent ignores them.
const memberURL = "http://member"

// errNoIdentity is returned if a request without an identity reaches the transport. This indicates a bug in the hub.
var errNoIdentity = errors.New("forward request: it has no identity")

// errNoAnswer is returned if a short request gets no response in time.
var errNoAnswer = fmt.Errorf("forward request: no answer: %w", context.DeadlineExceeded)

// call is an admitted request: its sender, its target, and the header that identifies the sender to the target. All of
// its fields are set before the request is forwarded.
type call struct {
	identity  identity.Identity
	target    target
	info      request.Info
	seat      *limit.Seat // released at the end of the call
	transport http.RoundTripper
	header    http.Header // identifies the caller: Impersonate-* for a member, the caller's Authorization for the hub
	base      *url.URL    // the URL of the hub's API server; nil for a member
	tooLarge  atomic.Bool // set if the body was larger than allowed
	clock     clock       // limits the time until the response starts
	look      clock       // triggers the regular checks of the call's rights
	// ends when the user loses the right to the call; nil for a call that is not long-running
	revoked    context.Context
	endsItself atomic.Bool // set if the response has started and ends when revoked ends
}

type callKey struct{}

// callOf returns the call of a forwarded request, or nil if there is none.
func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// forward sends an admitted request to its target and copies the response to the client. It always releases the
// call's seat.
func (h *Handler) forward(w http.ResponseWriter, r *http.Request, c *call) {
	defer c.seat.Release()
	guarded, done := h.guard(w, r, c)
	defer done()
	ctx, cancel := context.WithCancelCause(context.WithValue(r.Context(), callKey{}, c))
	defer cancel(nil)
	if !c.info.Long {
		c.clock.start(h.limits.Answer, func() { cancel(errNoAnswer) })
		defer c.clock.end()
	} else {
		over := h.recheckRegularly(r, c, cancel)
		defer over()
	}
	h.forwarder.ServeHTTP(guarded, r.WithContext(ctx))
}

func (h *Handler) newForwarder() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      callTransport{},
		ModifyResponse: modifyAnswer,
		ErrorHandler:   h.forwardingFailed,
		BufferPool:     &request.Buffers{},
		// FlushInterval stays zero, because ReverseProxy always flushes streams (watch, logs -f) immediately.
		ErrorLog: slog.NewLogLogger(logr.ToSlogHandler(h.log.V(1)), slog.LevelInfo),
	}
}

// rewrite prepares the outgoing request. It makes no decisions, because it cannot refuse a request.
func rewrite(p *httputil.ProxyRequest) {
	out, c := p.Out, callOf(p.In.Context())
	if c == nil {
		return // callTransport refuses the request
	}
	// httputil drops parts of the query that it cannot parse; the API server decides how to handle them
	out.URL.RawQuery = p.In.URL.RawQuery
	out.Host, out.Trailer = "", nil
	c.target.write(out.URL, c.base)
	clean(out.Header, c.target.local)
	if c.base != nil {
		request.SetOrigin(out.Header, c.base)
	}
	maps.Copy(out.Header, c.header)
}

// write sets a URL to the target. The path is appended to base if base is set, and to the agent's prefix otherwise.
func (t target) write(u, base *url.URL) {
	u.Scheme, u.Host = "http", "member"
	before, rawBefore := protocol.PathKubernetes, protocol.PathKubernetes
	if base != nil {
		u.Scheme, u.Host = base.Scheme, base.Host
		before, rawBefore = strings.TrimSuffix(base.Path, "/"), strings.TrimSuffix(base.EscapedPath(), "/")
	}
	u.Path, u.RawPath = before+t.path, ""
	if t.rawPath != "" {
		u.RawPath = rawBefore + t.rawPath
	}
}

// callTransport sends each request through the transport of its call. It refuses a request that has no call, or whose
// call has no identity.
type callTransport struct{}

// RoundTrip implements http.RoundTripper.
func (callTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	c := callOf(r.Context())
	if c == nil || !c.identity.Valid() || len(c.header) == 0 {
		return nil, errNoIdentity
	}
	for name, values := range c.header {
		if len(values) == 0 || !slices.Equal(r.Header[name], values) {
			return nil, errNoIdentity
		}
	}
	response, err := c.transport.RoundTrip(r)
	if err == nil && c.info.Long {
		c.endsItself.Store(request.EndResponse(response, r, c.revoked))
	}
	return response, err // httputil and forwardingFailed handle the transport's errors
}

// modifyAnswer removes everything from a response that could affect other clusters.
func modifyAnswer(r *http.Response) error {
	c := callOf(r.Request.Context())
	if c == nil {
		return errNoIdentity
	}
	c.clock.end()
	c.info.FewWrites(r)
	request.ReadToEnd(r)
	request.StripAnswer(r.Header)
	if audit.From(r.Request.Context()) != nil {
		delete(r.Header, "Audit-Id") // the hub's response already has the same ID
	}
	if len(r.Header["Location"]) == 0 {
		return nil
	}
	location, ok := c.target.relocate(r.Header.Get("Location"))
	if !ok {
		return refusal.New(http.StatusBadGateway, refusal.ReasonBadGateway,
			"the cluster redirects to a location outside its API, and the hub does not pass this on").About(c.target.cluster)
	}
	r.Header.Set("Location", location)
	return nil
}

// forwardingFailed writes the response to a request that could not be forwarded.
func (h *Handler) forwardingFailed(w http.ResponseWriter, r *http.Request, err error) {
	if g, ok := w.(*guardedWriter); ok && g.hijacked {
		return // the upgrade has started; its connection is already closed
	}
	var full *limit.FullError // the error comes from another replica
	c := callOf(r.Context())
	if cause := context.Cause(r.Context()); errors.Is(cause, errNoAnswer) || refused(cause) {
		err = cause
	}
	switch {
	case c == nil, refused(err):
		h.refuse(w, r, err)
	case c.tooLarge.Load():
		h.refuse(w, r, tooLarge(h.limits.Body))
	case c.target.local:
		h.refuse(w, r, hubError(err))
	case errors.As(err, &full):
		h.refuse(w, r, tooMany(c, full))
	default:
		h.refuse(w, r, memberError(c, err))
	}
}

func isTimeout(err error) bool {
	var network net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &network) && network.Timeout()
}
