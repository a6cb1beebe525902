// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// idleConns is how many connections to the API server are kept for the next request.
const idleConns = 64

// Transport reaches the API server with the agent's credentials over a pool of HTTP/1.1 connections: upgrades need
// HTTP/1.1, a reader that stalls then delays no other and costs one socket buffer rather than an HTTP/2 window. For
// small requests HTTP/2 is no faster (within noise of each other at 1 and 16 at once on a kube-apiserver). A token file
// is read again when it changes.
func Transport(cfg *rest.Config) (http.RoundTripper, error) {
	tc, err := cfg.TransportConfig()
	if err != nil {
		return nil, fmt.Errorf("read credentials for the API server: %w", err)
	}
	tlsConfig, err := transport.TLSConfigFor(tc)
	if err != nil {
		return nil, fmt.Errorf("read certificates for the API server: %w", err)
	}
	if tlsConfig != nil {
		tlsConfig.NextProtos = []string{"http/1.1"}
	}
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	pool := &http.Transport{
		DialContext:         dialer.DialContext,
		Proxy:               tc.Proxy,
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: 10 * time.Second,
		DisableCompression:  true, // bodies are passed on as they are
		MaxIdleConnsPerHost: idleConns,
		IdleConnTimeout:     90 * time.Second,
		WriteBufferSize:     16 << 10,
		ReadBufferSize:      16 << 10,
	}
	if tc.DialHolder != nil {
		pool.DialContext = tc.DialHolder.Dial
	}
	tc.UserAgent = "" // a user's request carries the user's
	rt, err := transport.HTTPWrappersForConfig(tc, pool)
	if err != nil {
		return nil, fmt.Errorf("read credentials for the API server: %w", err)
	}
	return rt, nil
}

// errNoUser means that a request would have reached the API server as the agent.
var errNoUser = errors.New("a request that names no user is not forwarded: it would have the rights of the agent")

// asUser is the last line of defence: it sends only requests that name exactly one user, as the API server will see it.
// The agent's own credentials, which the transport adds, have far more rights than those of any user.
type asUser struct{ http.RoundTripper }

// RoundTrip sends a request, or fails with errNoUser.
func (t asUser) RoundTrip(r *http.Request) (*http.Response, error) {
	if users := r.Header[impersonateUser]; len(users) != 1 || users[0] == "" {
		return nil, errNoUser
	}
	return t.RoundTripper.RoundTrip(r)
}

// BaseURL is the root of the API server.
func BaseURL(cfg *rest.Config) (*url.URL, error) {
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("read address of the API server: %w", err)
	}
	return base, nil
}
