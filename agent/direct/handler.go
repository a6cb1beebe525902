// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/drover-dev/drover/agent/forward"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/request"
)

// Limits on users' requests.
const (
	// maxOpen is the maximum number of requests in progress, and maxOpenUser is the maximum number for one user.
	maxOpen, maxOpenUser = 512, 128
	// maxBody is the maximum size of a request body, in bytes. It exceeds the 3 MiB that API servers accept.
	maxBody = 64 << 20
)

const impersonateUser = "Impersonate-User"

// bearerProtocol is the prefix of a WebSocket subprotocol that contains a token. API servers also accept tokens in this
// form.
const bearerProtocol = "base64url.bearer.authorization.k8s.io."

// open tracks the requests in progress. The zero value is ready to use.
type open struct {
	mu       sync.Mutex // guards the fields below
	requests map[*opened]struct{}
	users    map[string]int
}

// opened is a request in progress.
type opened struct {
	known
	end context.CancelCauseFunc
}

// enter adds a request unless a limit has been reached. It reports whether the request was added.
func (o *open) enter(r *opened) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.requests) >= maxOpen || o.users[r.Subject] >= maxOpenUser {
		return false
	}
	if o.requests == nil {
		o.requests, o.users = map[*opened]struct{}{}, map[string]int{}
	}
	o.requests[r] = struct{}{}
	o.users[r.Subject]++
	return true
}

func (o *open) leave(r *opened) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.requests, r)
	if o.users[r.Subject]--; o.users[r.Subject] == 0 {
		delete(o.users, r.Subject)
	}
}

// review ends requests in progress that would now be refused.
func (o *open) review(stands func(known) error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for r := range o.requests {
		if err := stands(r.known); err != nil {
			r.end(err)
		}
	}
}

// ServeHTTP forwards a request to the member's API, acting as the user named in the token.
func (e *Endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user, err := e.authenticate(r)
	if err != nil {
		code, count := http.StatusUnauthorized, &e.metrics.refusedToken
		if unusable(err) {
			code, count = http.StatusServiceUnavailable, &e.metrics.refusedAll
		}
		count.Add(1)
		w.Header().Set("Connection", "close") // a client without an accepted token cannot keep its connection
		e.complaints.Do(func() { e.options.Log.Info("request refused", "code", code, "reason", err.Error()) })
		forward.WriteStatus(w, code, err.Error())
		return
	}
	proven(r)
	if code, message := admissible(r); code != 0 {
		e.metrics.refusedRequest.Add(1)
		forward.WriteStatus(w, code, message)
		return
	}
	ctx, end := context.WithCancelCause(r.Context())
	defer end(nil)
	mine := &opened{known: user, end: end}
	if !e.open.enter(mine) {
		e.metrics.refusedPlace.Add(1)
		w.Header().Set("Retry-After", "1")
		forward.WriteStatus(w, http.StatusTooManyRequests,
			"too many requests are open at this cluster's agent: try again, or use the hub's address instead")
		return
	}
	defer e.open.leave(mine)
	if e.stands(user) != nil { // the data for direct access may have changed in the meantime
		e.metrics.refusedToken.Add(1)
		forward.WriteStatus(w, http.StatusUnauthorized, "the token was just refused")
		return
	}
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	}
	e.metrics.served.Add(1)
	e.options.Kubernetes.ServeHTTP(w, as(r.WithContext(ctx), user))
}

// authenticate returns the user identified by the bearer token of a request. A request must have exactly one bearer
// token.
func (e *Endpoint) authenticate(r *http.Request) (known, error) {
	current := e.access.Load()
	if current == nil {
		return known{}, errOff
	}
	values := r.Header["Authorization"]
	if len(values) != 1 {
		return known{}, errors.New(
			"the request must have one Authorization header, with a token from the hub for this cluster")
	}
	scheme, raw, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") || raw == "" {
		return known{}, errors.New("the request must have a bearer token from the hub for this cluster")
	}
	return current.verify(raw, e.options.Now())
}

// admissible returns the status code and the reason for refusing an authenticated request. The code is 0 if the request
// is served. Impersonation headers are rejected rather than dropped, because the sender intends to act as another user.
func admissible(r *http.Request) (code int, message string) {
	for name, values := range r.Header {
		if len(name) < len("Impersonate-") || !strings.EqualFold(name[:len("Impersonate-")], "Impersonate-") {
			continue
		}
		_, account := protocol.ParseServiceAccount(values[0])
		if name != impersonateUser || len(values) != 1 || !account {
			return http.StatusForbidden, "direct access only allows impersonating ServiceAccounts of the cluster, " +
				"and without other groups: leave out --as, or use the hub's address instead"
		}
	}
	bearer := func(line string) bool { return strings.Contains(strings.ToLower(line), bearerProtocol) }
	switch {
	case slices.ContainsFunc(r.Header["Sec-Websocket-Protocol"], bearer):
		return http.StatusBadRequest,
			"a token must not be among the subprotocols of a WebSocket: send it in the Authorization header"
	case r.Method == http.MethodConnect || !strings.HasPrefix(r.URL.Path, "/") || r.URL.Opaque != "":
		return http.StatusBadRequest, "the path does not begin with a slash"
	}
	return 0, ""
}

// as returns the request as the hub would send it on the user's behalf.
func as(r *http.Request, user known) *http.Request {
	out := r.Clone(r.Context())
	request.IgnoreUpgrade(out.Header)
	request.Strip(out.Header)
	if account := r.Header[impersonateUser]; account != nil { // admissible allows only a ServiceAccount here
		out.Header[protocol.HeaderServiceAccount] = account
	}
	out.Header[impersonateUser] = []string{user.Subject}
	out.Header["Impersonate-Uid"] = []string{user.UID}
	if len(user.Groups) > 0 {
		out.Header["Impersonate-Group"] = user.Groups
	}
	out.URL = &url.URL{Path: protocol.PathKubernetes + r.URL.Path, RawQuery: r.URL.RawQuery}
	if r.URL.RawPath != "" {
		out.URL.RawPath = protocol.PathKubernetes + r.URL.RawPath
	}
	return out
}
