// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package forward forwards requests from users of the hub to the member's API server.
//
// It impersonates these users.
package forward

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/request"
)

// Handler forwards requests below protocol.PathKubernetes.
type Handler struct {
	proxy *httputil.ReverseProxy
	base  *url.URL
	log   logr.Logger
	// Namespace is the agent's own namespace. No user can act as a ServiceAccount in that namespace.
	Namespace string
	// reads makes the Handler forward only read requests. It forwards them as protocol.Viewer.
	reads bool
}

// NewReadOnly returns a Handler that forwards only read requests. It forwards the requests of all users as
// protocol.Viewer, because a read-only agent is not permitted to impersonate other users. The member's RBAC
// determines what protocol.Viewer can see.
func NewReadOnly(ctx context.Context, base *url.URL, transport http.RoundTripper, log logr.Logger) *Handler {
	h := New(ctx, base, transport, log)
	h.reads = true
	return h
}

// New returns a Handler for the API server at base. The transport adds the agent's own credentials, and must not change
// requests in any other way. When ctx is done, watches end between two events, and other requests continue.
func New(ctx context.Context, base *url.URL, transport http.RoundTripper, log logr.Logger) *Handler {
	h := &Handler{base: base, log: log}
	h.proxy = &httputil.ReverseProxy{
		Rewrite:   h.rewrite,
		Transport: asUser{transport},
		ModifyResponse: func(resp *http.Response) error {
			if request.IsWatch(resp.Request) {
				request.EndWatch(ctx, resp)
			}
			request.ReadToEnd(resp)
			request.StripAnswer(resp.Header)
			request.Of(resp.Request,
				strings.TrimPrefix(resp.Request.URL.Path, strings.TrimRight(base.Path, "/"))).FewWrites(resp)
			return nil
		},
		BufferPool:   &request.Buffers{},
		ErrorHandler: h.failed,
		ErrorLog:     slog.NewLogLogger(logr.ToSlogHandler(log.V(1)), slog.LevelInfo),
	}
	return h
}

// ServeHTTP forwards a request or denies it with a Status. FlushInterval is 0, so that small responses need fewer
// frames. ReverseProxy still flushes streams, such as watches and logs, after each write.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if d := h.checkPath(r.URL); d != nil {
		WriteStatus(w, d.status, d.message)
		return
	}
	if d := check(r.Header); d != nil {
		h.log.Info("request denied", "code", d.status, "reason", d.message)
		WriteStatus(w, d.status, d.message)
		return
	}
	if d := checkRead(r); h.reads && d != nil {
		WriteStatus(w, d.status, d.message)
		return
	}
	if names := r.Header[protocol.HeaderServiceAccount]; names != nil {
		out, d := h.asAccount(r, names)
		if d != nil {
			h.log.Info("request denied", "code", d.status, "reason", d.message)
			WriteStatus(w, d.status, d.message)
			return
		}
		r = out
	}
	h.proxy.ServeHTTP(w, r)
}

// checkPath ensures that a request stays under the root of the API server. If the API server's URL has a base path,
// ".." could escape from it. Without a base path, no path can escape, so the path is forwarded unchanged and the API
// server evaluates it.
func (h *Handler) checkPath(u *url.URL) *denial {
	path := u.EscapedPath()
	if u.Opaque != "" || !strings.HasPrefix(path, protocol.PathKubernetes+"/") {
		return deny(http.StatusBadRequest, "the path does not begin with %s/", protocol.PathKubernetes)
	}
	if strings.Trim(h.base.Path, "/") == "" {
		return nil
	}
	for segment := range strings.FieldsFuncSeq(u.Path, func(r rune) bool { return r == '/' || r == '\\' }) {
		if segment == ".." {
			return deny(http.StatusBadRequest, "the path has .. in it")
		}
	}
	return nil
}

// rewrite turns an incoming request into a request to the API server. It cannot reject requests, so ServeHTTP checks
// them first. ReverseProxy has already removed the hop-by-hop headers.
func (h *Handler) rewrite(pr *httputil.ProxyRequest) {
	out := pr.Out
	base := strings.TrimRight(h.base.Path, "/")
	escaped := strings.TrimPrefix(pr.In.URL.EscapedPath(), protocol.PathKubernetes)
	out.URL.Scheme, out.URL.Host, out.URL.User = h.base.Scheme, h.base.Host, nil
	out.URL.Path = base + strings.TrimPrefix(pr.In.URL.Path, protocol.PathKubernetes)
	out.URL.RawPath = strings.TrimRight(h.base.EscapedPath(), "/") + escaped
	out.URL.RawQuery = pr.In.URL.RawQuery // unchanged, because the API server parses it in its own way
	out.Host = ""
	for name := range out.Header {
		if notForwarded(name) || h.reads && isImpersonation(name) {
			delete(out.Header, name)
		}
	}
	request.SetOrigin(out.Header, h.base)
	if h.reads {
		out.Header[impersonateUser] = []string{protocol.Viewer}
	}
}

// notForwarded reports whether a header is intended for the hub, or would carry the agent's identity instead of the
// user's.
func notForwarded(name string) bool {
	switch name {
	case "Authorization", "Cookie", "Priority":
		return true
	}
	return strings.HasPrefix(name, "X-Remote-")
}

// failed responds to the client if the request to the API server has failed.
func (h *Handler) failed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil { // the hub has canceled the request
		WriteStatus(w, http.StatusServiceUnavailable, "the request was canceled")
		return
	}
	if errors.Is(err, errNoUser) {
		h.log.Error(err, "cannot forward a request")
		WriteStatus(w, http.StatusForbidden, err.Error())
		return
	}
	h.log.V(1).Info("the API server did not answer", "error", err.Error())
	status, message := upstreamFailure(err)
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	WriteStatus(w, status, message)
}

// upstreamFailure returns the status and message for a user when the API server cannot be reached.
func upstreamFailure(err error) (status int, message string) {
	var dial *net.OpError
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout,
			"the cluster's API server did not answer its agent in time: try again, or check the API server"
	case errors.As(err, &dial) && dial.Op == "dial":
		return http.StatusServiceUnavailable,
			fmt.Sprintf("the cluster's agent cannot reach its API server (%v): try again, or check the API server", dial.Err)
	}
	return http.StatusBadGateway, fmt.Sprintf("the cluster's agent got no answer from its API server (%v): try again", err)
}

// WriteStatus responds in the same way as an API server does, so that kubectl prints the message properly.
func WriteStatus(w http.ResponseWriter, code int, message string) {
	body, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure,
		Code:     int32(code),
		Reason:   apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", "", 0, false).ErrStatus.Reason,
		Message:  message,
	})
	if err != nil { // cannot fail, because a Status contains only strings and a number
		http.Error(w, message, code)
		return
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	_, _ = w.Write(body) // an error means that the client has disconnected
}
