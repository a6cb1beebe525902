// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package remote creates clients for clusters from untrusted kubeconfigs.
//
// Such a kubeconfig must not make the process connect to anything other than the cluster, or run anything locally.
package remote

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/drover-dev/drover/internal/release"
	"github.com/drover-dev/drover/internal/untrusted"
)

// Timeouts for requests to a server.
const (
	dialTimeout    = 5 * time.Second
	requestTimeout = 15 * time.Second
)

// errAddress is returned for all forbidden addresses. Its text is the same for each of them, so that it does not
// disclose the address.
var errAddress = errors.New("the server's address belongs to this machine, is link-local, or is reserved")

// ErrRedirect is returned if a server responds with a redirect. It does not contain the target of the redirect.
var ErrRedirect = errors.New("the server answered with a redirect, which Drover does not follow")

// bounds returns the limits on a kubeconfig. Even a kubeconfig with a hundred clusters is within the limits.
func bounds() untrusted.Bounds { return untrusted.Bounds{Bytes: 256 << 10, Nodes: 2048, Depth: 16} }

// Config reads the current context of a kubeconfig. It refuses a kubeconfig that would read local files, run local
// programs, connect through other servers, or trust any server. Its errors contain no part of the kubeconfig. The
// client checks addresses when it dials them. It does not follow redirects, and does not log warnings from the server.
func Config(content []byte, reach release.Reach) (*rest.Config, error) {
	plain, err := untrusted.AsJSON(content, bounds())
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig cannot be read: %w", err)
	}
	config, err := clientcmd.Load(plain)
	if err != nil {
		return nil, errors.New("it is not a kubeconfig")
	}
	current := config.Contexts[config.CurrentContext]
	if current == nil {
		return nil, errors.New("it does not have its current-context")
	}
	cluster, user := config.Clusters[current.Cluster], config.AuthInfos[current.AuthInfo]
	if cluster == nil || user == nil {
		return nil, errors.New("it does not have the cluster or the user of its current context")
	}
	if err := errors.Join(checkCluster(cluster), checkUser(user)); err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: dialTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil || !reach.Includes(to.Addr()) {
			return errAddress
		}
		return nil
	}}
	return &rest.Config{
		Host: cluster.Server, Dial: dialer.DialContext, Timeout: requestTimeout, Proxy: noProxy,
		WrapTransport: func(next http.RoundTripper) http.RoundTripper { return straight{next} }, WarningHandlerWithContext: rest.NoWarnings{},
		BearerToken: user.Token, Username: user.Username, Password: user.Password,
		TLSClientConfig: rest.TLSClientConfig{
			ServerName: cluster.TLSServerName, CAData: cluster.CertificateAuthorityData, CertData: user.ClientCertificateData, KeyData: user.ClientKeyData,
		},
	}, nil
}

// maxHeader is the maximum size of a response's headers, in bytes.
const maxHeader = 64 << 10

// Client creates an HTTP client for a configuration from Config. Unlike the usual clients, it does not send discovery
// requests and does not decode responses.
func Client(config *rest.Config) (*http.Client, error) {
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, errors.New("its certificates cannot be read") // the cause may quote the certificates
	}
	transport, err := rest.HTTPWrappersForConfig(config, &http.Transport{
		TLSClientConfig: tlsConfig, DialContext: config.Dial, Proxy: config.Proxy, TLSHandshakeTimeout: dialTimeout, MaxResponseHeaderBytes: maxHeader,
		DisableCompression: true, MaxIdleConnsPerHost: 1, IdleConnTimeout: requestTimeout,
	})
	if err != nil {
		return nil, errors.New("its user cannot be used")
	}
	return &http.Client{Transport: transport, Timeout: config.Timeout}, nil
}

func checkCluster(c *api.Cluster) error {
	server, err := url.Parse(c.Server)
	switch {
	case err != nil || server.Scheme != "https" || server.Host == "" || server.User != nil:
		return errors.New("its server is not an https URL")
	case c.InsecureSkipTLSVerify:
		return refused("insecure-skip-tls-verify")
	case c.CertificateAuthority != "":
		return refused("certificate-authority")
	case c.ProxyURL != "":
		return refused("proxy-url")
	}
	return nil
}

func checkUser(u *api.AuthInfo) error {
	switch {
	case u.Exec != nil:
		return refused("exec")
	case u.AuthProvider != nil:
		return refused("auth-provider")
	case u.TokenFile != "":
		return refused("tokenFile")
	case u.ClientCertificate != "":
		return refused("client-certificate")
	case u.ClientKey != "":
		return refused("client-key")
	case u.Impersonate != "" || u.ImpersonateUID != "" || len(u.ImpersonateGroups) > 0 || len(u.ImpersonateUserExtra) > 0:
		return refused("as")
	}
	return nil
}

func refused(field string) error {
	return fmt.Errorf("it has %s, which Drover does not accept: give certificates and tokens as data", field)
}

// noProxy makes the client dial the server directly. The dialer checks the server's address, but a proxy would not.
func noProxy(*http.Request) (*url.URL, error) { return nil, nil }

// straight refuses redirects. Otherwise, a server could redirect client-go to another address, and client-go would send
// the token to that address, possibly without TLS.
type straight struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (s straight) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := s.next.RoundTrip(req)
	if err == nil && resp.StatusCode >= 300 && resp.StatusCode < 400 {
		_ = resp.Body.Close()
		return nil, ErrRedirect
	}
	return resp, err
}
