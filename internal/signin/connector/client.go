// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package connector

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"time"
)

// MaxHeader is the maximum size of the header of an upstream's response, in bytes.
const MaxHeader = 64 << 10

// dialTimeout bounds the time to connect to an upstream, and the time of the TLS handshake.
const dialTimeout = 5 * time.Second

// Client returns a client for requests to an upstream, with a timeout for each request, including the body. It follows
// no redirects, because a redirect would carry a token or a secret elsewhere.
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
