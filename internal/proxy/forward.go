// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// memberURL is scheme and host of requests to a member. The tunnel needs them to be there and the agent to ignore them.
const memberURL = "http://member"

// errNoIdentity says that a request reached the transport without an identity. It is a fault of this program.
var errNoIdentity = errors.New("forward request: it has no identity")

// errNoAnswer says that a request that is not meant to last was not answered in time.
var errNoAnswer = fmt.Errorf("forward request: no answer: %w", context.DeadlineExceeded)

// call is an admitted request: who sends it, where it goes, and what the other side learns about the sender. It is
// complete before anything is forwarded.
type call struct {
	identity   identity.Identity
	target     target
	info       request.Info
	seat       *limit.Seat // released when the call is over
	transport  http.RoundTripper
	header     http.Header     // says who calls: Impersonate-* for a member, the caller's own Authorization for the hub
	base       *url.URL        // of the hub's API server, nil for a member
	tooLarge   atomic.Bool     // the body turned out to be larger than allowed
	clock      clock           // for the beginning of the answer
	look       clock           // for the next look at whether the call may go on
	revoked    context.Context // ends when its right is gone; nil for a call that is not meant to last
	endsItself atomic.Bool     // the response has begun and ends with revoked
}

type callKey struct{}

// callOf is the call that a forwarded request belongs to, nil if none.
func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// forward sends an admitted request and its answer, whatever happens on the way.
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
		over := h.lookAgain(r, c, cancel)
		defer over()
	}
	h.forwarder.ServeHTTP(guarded, r.WithContext(ctx))
}

// newForwarder makes the one proxy for all calls.
func (h *Handler) newForwarder() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      callTransport{},
		ModifyResponse: modifyAnswer,
		ErrorHandler:   h.forwardingFailed,
		BufferPool:     &request.Buffers{},
		// The interval stays zero: ReverseProxy flushes streams (watch, logs -f) at once anyway.
		ErrorLog: slog.NewLogLogger(logr.ToSlogHandler(h.log.V(1)), slog.LevelInfo),
	}
}

// rewrite makes the request that is sent. It has nothing left to decide: it can't refuse.
func rewrite(p *httputil.ProxyRequest) {
	out, c := p.Out, callOf(p.In.Context())
	if c == nil {
		return // callTransport refuses it
	}
	out.URL.RawQuery = p.In.URL.RawQuery // httputil drops what it can't parse; the API server shall judge
	out.Host, out.Trailer = "", nil
	c.target.write(out.URL, c.base)
	clean(out.Header, c.target.local)
	if c.base != nil {
		request.SetOrigin(out.Header, c.base)
	}
	for name, values := range c.header {
		out.Header[name] = values
	}
}

// write sets a URL to the target, behind base if there is one and else behind the agent's prefix.
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

// callTransport sends each request by its call's transport, and nothing that has no call with an identity.
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
	return response, err // httputil and forwardingFailed know the transport's errors
}

// modifyAnswer keeps an answer from acting on more than the request's own cluster.
func modifyAnswer(r *http.Response) error {
	c := callOf(r.Request.Context())
	if c == nil {
		return errNoIdentity
	}
	c.clock.end()
	c.info.FewWrites(r)
	request.StripAnswer(r.Header)
	if audit.From(r.Request.Context()) != nil {
		delete(r.Header, "Audit-Id") // it is the one that the answer has already
	}
	if len(r.Header["Location"]) == 0 {
		return nil
	}
	location, ok := c.target.relocate(r.Header.Get("Location"))
	if !ok {
		return refusal.New(http.StatusBadGateway, refusal.ReasonBadGateway,
			"the cluster redirects to somewhere outside of its API, which the hub does not follow").About(c.target.cluster)
	}
	r.Header.Set("Location", location)
	return nil
}

// forwardingFailed answers for a request of which nothing came back.
func (h *Handler) forwardingFailed(w http.ResponseWriter, r *http.Request, err error) {
	if g, ok := w.(*guardedWriter); ok && g.hijacked {
		return // the upgrade has begun and its connection is closed by now
	}
	var full *limit.FullError // at another replica
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

// isTimeout reports whether err is a timeout.
func isTimeout(err error) bool {
	var network net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &network) && network.Timeout()
}
