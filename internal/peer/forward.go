// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/request"
	"github.com/drover-dev/drover/internal/tunnel"
)

const (
	// headerHop marks a response that comes from the other replica itself and not from the member.
	headerHop = "Drover-Hop"
	// headerTunnel is a request header with the ID of the tunnel that the request must use. The tunnel ends at the
	// other replica.
	headerTunnel = "Drover-Tunnel"
)

// Values of headerHop.
const (
	hopMisdirected = "misdirected" // the tunnel does not exist; no agent has seen the request
	hopFailed      = "failed"      // the tunnel failed at the other replica; the body contains the error
	hopTimeout     = "timeout"     // like hopFailed, but because of a timeout
	hopFull        = "full"        // no more requests are accepted; the body says which limit was reached
	hopHeader      = "header"      // the headers of the request exceed the size that the agent accepts
)

// maxReason is the maximum length of an error message from another replica, in bytes.
const maxReason = 1 << 10

// hop is the transport to a member whose tunnel ends at another replica. It sends requests to that replica, which
// forwards them to the member.
type hop struct {
	session   *tunnel.Session
	to        members.Peer
	forwarded func(result string)
}

// RoundTrip implements http.RoundTripper. The error is tunnel.ErrNotProcessed if no agent has seen the request.
func (h hop) RoundTrip(r *http.Request) (*http.Response, error) {
	out := new(http.Request)
	*out = *r
	target := *r.URL
	prefix := pathMembers + "/" + h.to.Cluster.Namespace + "/" + h.to.Cluster.Name
	target.Path = prefix + r.URL.Path
	if r.URL.RawPath != "" {
		target.RawPath = prefix + r.URL.RawPath
	}
	out.URL = &target
	out.Header = maps.Clone(r.Header)
	if out.Header == nil {
		out.Header = http.Header{}
	}
	out.Header.Set(headerTunnel, h.to.ID)
	response, err := h.session.RoundTrip(out)
	if err != nil {
		h.forwarded("failed")
		return nil, fmt.Errorf("through another replica: %w", err)
	}
	kind := response.Header.Get(headerHop)
	if kind == "" {
		h.forwarded("answered")
		response.Request = r
		return response, nil
	}
	defer response.Body.Close()
	if kind == hopMisdirected {
		h.forwarded("misdirected")
		return nil, fmt.Errorf("through another replica: %w: the tunnel has moved", tunnel.ErrNotProcessed)
	}
	if kind == hopFull {
		h.forwarded("refused")
		return nil, fmt.Errorf("through another replica: %w", full(response.Body))
	}
	h.forwarded("failed")
	if kind == hopHeader {
		return nil, fmt.Errorf("through another replica: %w", tunnel.ErrHeaderTooLarge)
	}
	reason, _ := io.ReadAll(io.LimitReader(response.Body, maxReason)) // if reading fails, the reason is incomplete
	return nil, &failure{reason: strings.TrimSpace(string(reason)), timeout: kind == hopTimeout}
}

// full returns the error for a response from a replica that has reached a limit.
func full(body io.Reader) error {
	scope, _ := io.ReadAll(io.LimitReader(body, maxReason)) // if reading fails, the scope is incomplete
	if strings.TrimSpace(string(scope)) == string(limit.ScopeAll) {
		return &limit.FullError{Scope: limit.ScopeAll}
	}
	return &limit.FullError{Scope: limit.ScopeMember}
}

// failure describes why a request failed at the other replica.
type failure struct {
	reason  string
	timeout bool
}

// Error implements error.
func (f *failure) Error() string { return "through another replica: " + f.reason }

// Timeout reports whether the failure is a timeout. It implements net.Error.
func (f *failure) Timeout() bool { return f.timeout }

// Temporary implements net.Error.
func (f *failure) Temporary() bool { return f.timeout }

var _ net.Error = (*failure)(nil)

// errNoMember is returned for a path that does not identify a member.
var errNoMember = errors.New("the path names no member")

// target identifies the member to which a request from another replica is forwarded. It also contains the path within
// that member.
type target struct {
	member        types.NamespacedName
	path, rawPath string
	transport     http.RoundTripper
}

// parseTarget splits a path into the member and the path within the member. It does not change the path within the
// member, because only the API server interprets that path.
func parseTarget(u *url.URL) (target, error) {
	rest, found := strings.CutPrefix(u.Path, pathMembers+"/")
	namespace, rest, slash := strings.Cut(rest, "/")
	name, path, more := strings.Cut(rest, "/")
	if !found || !slash || !more || namespace == "" || name == "" {
		return target{}, errNoMember
	}
	t := target{member: types.NamespacedName{Namespace: namespace, Name: name}, path: "/" + path}
	if u.RawPath == "" {
		return t, nil
	}
	raw, found := strings.CutPrefix(u.RawPath, pathMembers+"/"+namespace+"/"+name+"/")
	if !found { // a member's name needs no escaping
		return target{}, errNoMember
	}
	t.rawPath = "/" + raw
	return t, nil
}

type targetKey struct{}

func targetOf(ctx context.Context) *target {
	t, _ := ctx.Value(targetKey{}).(*target)
	return t
}

// forward forwards a request through a tunnel that ends at this replica. It never forwards a request to a third
// replica. If the tunnel is gone, a user's request goes to any of the member's agents. Any other request fails, because
// it is meant for one specific agent.
func (n *Network) forward(w http.ResponseWriter, r *http.Request) {
	t, err := parseTarget(r.URL)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	id := r.Header.Get(headerTunnel)
	r.Header.Del(headerTunnel)
	t.transport, err = n.options.Transports.Here(t.member, id)
	if err != nil && strings.HasPrefix(t.path, protocol.PathKubernetes+"/") {
		t.transport, err = n.options.Transports.Here(t.member, "")
	}
	if err != nil {
		misdirected(w)
		return
	}
	n.served.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), targetKey{}, &t)))
}

func misdirected(w http.ResponseWriter) {
	w.Header().Set(headerHop, hopMisdirected)
	http.Error(w, "the member is not connected to this replica", http.StatusMisdirectedRequest)
}

// newForwarder returns the proxy for all requests from other replicas.
func newForwarder() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			t := targetOf(p.In.Context())
			if t == nil {
				return // forwardTransport refuses it
			}
			p.Out.URL.Scheme, p.Out.URL.Host = "http", "member"
			p.Out.URL.Path, p.Out.URL.RawPath = t.path, t.rawPath
			p.Out.URL.RawQuery = p.In.URL.RawQuery // httputil drops parts of the query that it cannot parse
			p.Out.Host = p.In.Host
		},
		Transport: forwardTransport{},
		ModifyResponse: func(r *http.Response) error {
			r.Header.Del(headerHop) // only a replica may set this header
			request.EndResponse(r, r.Request)
			request.ReadToEnd(r)
			return nil
		},
		ErrorHandler: forwardFailed,
		BufferPool:   &request.Buffers{},
		ErrorLog:     log.New(io.Discard, "", 0), // callers notice interrupted responses themselves
	}
}

type forwardTransport struct{}

// RoundTrip implements http.RoundTripper.
func (forwardTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	t := targetOf(r.Context())
	if t == nil {
		return nil, errNoMember
	}
	return t.transport.RoundTrip(r) // forwardFailed examines the transport's errors
}

// forwardFailed responds to the other replica with the reason why the member sent no response.
func forwardFailed(w http.ResponseWriter, _ *http.Request, err error) {
	var network net.Error
	kind := hopFailed
	switch {
	case errors.Is(err, tunnel.ErrNotProcessed):
		misdirected(w)
		return
	case errors.Is(err, tunnel.ErrHeaderTooLarge):
		kind = hopHeader
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		kind = hopTimeout
	}
	w.Header().Set(headerHop, kind)
	http.Error(w, err.Error(), http.StatusBadGateway)
}
