// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package connector defines how the issuer looks up users in an upstream: a directory, GitHub or an OpenID provider.
package connector

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"time"
)

// ErrRefused is returned when the upstream responds but refuses the user. The password may be wrong, or the user may be
// disabled or not in any allowed group. Every other error means that the upstream could not be queried.
var ErrRefused = errors.New("the provider refuses the user")

// User is an upstream's description of a user at a point in time.
type User struct {
	// ID is the upstream's ID for the user, such as sub, objectGUID, entryUUID, or the number of a GitHub account. The
	// upstream never assigns the ID to another user.
	ID string
	// Name and Groups are the names of the user and the user's groups, without the prefix that identifies the provider.
	Name   string
	Groups []string
	// Notice tells the user what the upstream omitted, such as groups, and what to do about it. It contains no text from
	// the upstream.
	Notice string
	// State is secret data that Refresh needs to query the user again, such as a refresh token from the upstream.
	State []byte
}

// Connector represents an upstream. Each connector also implements at least one of the other interfaces in this
// package. These interfaces represent different ways to query users.
type Connector interface {
	// Check reports whether the upstream can be queried. It does not need a user.
	Check(ctx context.Context) error
}

// Refresher is an upstream that can be queried again for a user who signed in before. If an upstream is not a
// Refresher, the sessions of its users end when their first token expires.
type Refresher interface {
	Connector
	// Refresh returns the current description of the user, or ErrRefused if the upstream no longer accepts the user.
	Refresh(ctx context.Context, last User) (User, error)
}

// Password is an upstream that accepts a name and a password.
type Password interface {
	Connector
	// Login returns the user with the given name and password, or ErrRefused.
	Login(ctx context.Context, name, password string) (User, error)
}

// Redirect is an upstream that has its own login page.
type Redirect interface {
	Connector
	// Begin returns the address of the login page. The upstream redirects the browser back to callback with state. private
	// is the data that Finish needs about this login, such as a nonce and a PKCE verifier. The caller keeps it sealed.
	Begin(ctx context.Context, callback, state string) (address string, private []byte, err error)
	// Finish returns the user whom the upstream's response identifies. The caller has checked the state.
	Finish(ctx context.Context, callback string, private []byte, answer url.Values) (User, error)
}

// PostCallback is a Redirect whose upstream uses a form to send the browser back, for example SAML.
type PostCallback interface {
	Redirect
	// StateField returns the name of the form field with the state, such as RelayState. The address of the login page
	// has a parameter with the same name.
	StateField() string
}

// MaxHeader is the maximum size of the header of an upstream's response, in bytes.
const MaxHeader = 64 << 10

// dialTimeout is the time limit for connecting to an upstream, and also for the TLS handshake.
const dialTimeout = 5 * time.Second

// Client returns an HTTP client for requests to an upstream. The timeout applies to each request, including its body.
// The client follows no redirects, because a redirect could send a token or a secret to another server.
func Client(roots *x509.CertPool, timeout time.Duration, connections int) *http.Client {
	return &http.Client{
		Timeout:       timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext,
			TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
			TLSHandshakeTimeout: dialTimeout, ForceAttemptHTTP2: true,
			MaxResponseHeaderBytes: MaxHeader,
			MaxConnsPerHost:        connections, MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute,
		},
	}
}
