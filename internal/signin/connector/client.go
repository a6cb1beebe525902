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

// dialTimeout limits how long connecting to an upstream and the TLS handshake may each take.
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
