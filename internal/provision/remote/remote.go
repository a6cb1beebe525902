// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package remote makes clients of clusters by kubeconfigs that others have written, which may lead to no other place
// and run nothing here.
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

// Times that a server may take.
const (
	dialTimeout    = 5 * time.Second
	requestTimeout = 15 * time.Second
)

// errAddress is the same for each address, so that it does not disclose it.
var errAddress = errors.New("the server's address is of this machine, of its link or reserved")

// ErrRedirect is the error of a request that a server answered with a redirect. It does not say where to.
var ErrRedirect = errors.New("the server answered with a redirect, which is not followed")

// bounds of a kubeconfig. One with a hundred clusters has fewer values.
func bounds() untrusted.Bounds { return untrusted.Bounds{Bytes: 256 << 10, Nodes: 2048, Depth: 16} }

// Config reads the current context of a kubeconfig. It refuses all that would read files here, run programs here, lead
// through other servers, or trust any server. Its errors have nothing of the kubeconfig in them. Addresses are checked
// when they are dialed, redirects are not followed, and warnings of the server are not logged.
func Config(content []byte, reach release.Reach) (*rest.Config, error) {
	plain, err := untrusted.AsJSON(content, bounds())
	if err != nil {
		return nil, fmt.Errorf("it is no kubeconfig that is read here: %w", err)
	}
	config, err := clientcmd.Load(plain)
	if err != nil {
		return nil, errors.New("it is no kubeconfig")
	}
	current := config.Contexts[config.CurrentContext]
	if current == nil {
		return nil, errors.New("its current-context is not there")
	}
	cluster, user := config.Clusters[current.Cluster], config.AuthInfos[current.AuthInfo]
	if cluster == nil || user == nil {
		return nil, errors.New("the cluster or the user of its current context is not there")
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

// maxHeader bounds the header of an answer, in bytes.
const maxHeader = 64 << 10

// Client makes an HTTP client of what Config has read. It asks nothing by itself, unlike the clients that learn the
// kinds of a server first, and decodes nothing.
func Client(config *rest.Config) (*http.Client, error) {
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, errors.New("its certificates cannot be read") // the cause may quote them
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
		return errors.New("its server is no https URL")
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
	return fmt.Errorf("it has %s, which is not used here: give certificates and tokens as data", field)
}

// noProxy has the server dialed directly: the dialer checks its address, and a proxy would not.
func noProxy(*http.Request) (*url.URL, error) { return nil, nil }

// straight refuses redirects: a server would choose what else is asked, without TLS too, and client-go would send it
// the token.
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
