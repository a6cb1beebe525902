// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// fetchTimeout is the timeout for requesting the CA bundle from one server.
const fetchTimeout = 15 * time.Second

// errNoPin is returned if the trust mode is Pinned but no checksum is set. The agent never trusts a hub on first use
// (CVE-2025-67601).
var errNoPin = errors.New("nothing to verify the hub's certificate with: set " + protocol.EnvCAChecksum +
	" to the checksum of the hub's CA, or " + protocol.EnvTrust + " to System for a hub with a certificate of a public CA")

// Manifest contains the hub configuration from the manifest that the member's operator has applied.
type Manifest struct {
	Mode      v1.Trust
	Servers   []string
	Checksums []string
}

// fingerprint returns a string that identifies a manifest, regardless of the order of the checksums.
func (m Manifest) fingerprint() string {
	m.Checksums = slices.Sorted(slices.Values(m.Checksums))
	raw, err := json.Marshal(m)
	if err != nil { // strings can always be marshaled
		panic(err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// Proxy returns the URL of the proxy for a request. An example is http.ProxyFromEnvironment.
type Proxy func(*http.Request) (*url.URL, error)

// Endpoint specifies where to connect, which proxy to use, and which certificates to accept.
type Endpoint struct {
	// Servers are the URLs of the hub, in the order in which they are tried.
	Servers []string
	// Roots contains the CA certificates that are used to verify the hub's certificate. If it is nil, the system's
	// roots are used.
	Roots *x509.CertPool
	// Proxy chooses the proxy for connections. If it is nil, no proxy is used.
	Proxy Proxy
}

func (e Endpoint) tls() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: e.Roots}
}

// client returns a client for single requests. The client follows no redirects, because requests must reach only the
// hub.
func (e Endpoint) client(timeout time.Duration) *http.Client {
	return newClient(e.Proxy, e.tls(), timeout)
}

func newClient(proxy Proxy, config *tls.Config, timeout time.Duration) *http.Client {
	return &http.Client{
		Timeout: timeout,
		Transport: &http.Transport{Proxy: proxy, OnProxyConnectResponse: byProxy, TLSClientConfig: config,
			DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// byProxy returns an error that names the proxy if the proxy refuses a connection. Without this error, an
// "Unauthorized" from the proxy would look like a response from the hub.
func byProxy(_ context.Context, proxy *url.URL, _ *http.Request, response *http.Response) error {
	if response.StatusCode == http.StatusOK {
		return nil
	}
	return fmt.Errorf("the proxy %s refused the connection with %s: check HTTPS_PROXY", proxy.Host, response.Status)
}

// bundleSource fetches the CA bundle from a server whose certificate has not been verified yet.
type bundleSource func(ctx context.Context, server string) ([]byte, error)

// fetchBundle returns a bundleSource that requests protocol.PathCACerts without verifying the server. The request
// contains no secrets, and the caller keeps only certificates whose checksums are pinned.
func fetchBundle(proxy Proxy) bundleSource {
	config := &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, //nolint:gosec // the bundle is checked against pinned checksums
	}
	client := newClient(proxy, config, fetchTimeout)
	return func(ctx context.Context, server string) ([]byte, error) {
		bundle, err := get(ctx, client, server+protocol.PathCACerts)
		if err != nil {
			return nil, fmt.Errorf("fetch CA bundle: %w", err)
		}
		return bundle, nil
	}
}

func get(ctx context.Context, client *http.Client, target string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s: check that %s is the hub's URL", target, resp.Status, protocol.EnvServer)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, protocol.MaxBody+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read answer of %s: %w", target, err)
	case len(body) > protocol.MaxBody:
		return nil, fmt.Errorf("%s answered more than %d bytes", target, protocol.MaxBody)
	}
	return body, nil
}

// resolve returns the endpoint to connect to. bundle is the manifest's CA bundle, and may be empty. settings are the
// settings in force, or nil if there are none. If the manifest has no CA bundle, resolve fetches one and keeps only the
// certificates that the manifest's checksums pin.
func resolve(ctx context.Context, m Manifest, bundle []byte, settings *protocol.Settings, fetch bundleSource) (Endpoint,
	error) {
	hub := Endpoint{Servers: m.Servers}
	if settings != nil && len(settings.Servers) > 0 {
		hub.Servers = settings.Servers
	}
	if m.Mode == v1.TrustSystem {
		return hub, nil
	}
	if settings != nil && settings.CABundle != "" {
		bundle = []byte(settings.CABundle)
		certs, err := protocol.ParseBundle(bundle)
		if err != nil {
			return Endpoint{}, fmt.Errorf("trust what the hub announced: %w", err)
		}
		// The CA is pinned, so it is safe to fall back to the manifest's servers if the announced servers are wrong.
		hub.Servers = union(hub.Servers, m.Servers)
		hub.Roots = pool(certs)
		return hub, nil
	}
	certs, err := fromManifest(ctx, m, bundle, fetch)
	if err != nil {
		return Endpoint{}, fmt.Errorf("trust hub: %w", err)
	}
	hub.Roots = pool(certs)
	return hub, nil
}

func fromManifest(ctx context.Context, m Manifest, bundle []byte, fetch bundleSource) ([]*x509.Certificate, error) {
	switch {
	case len(bundle) == 0 && len(m.Checksums) == 0:
		return nil, errNoPin
	case len(bundle) == 0:
		return fetched(ctx, m, fetch)
	case len(m.Checksums) == 0:
		return protocol.ParseBundle(bundle)
	}
	certs, err := protocol.PinnedCertificates(bundle, m.Checksums)
	if err != nil {
		return nil, fmt.Errorf("%s of Secret %s against %s: %w: apply the hub's manifest again",
			protocol.KeyCABundle, protocol.RegistrationSecret, protocol.EnvCAChecksum, err)
	}
	return certs, nil
}

func fetched(ctx context.Context, m Manifest, fetch bundleSource) ([]*x509.Certificate, error) {
	var errs []error
	for _, server := range m.Servers {
		bundle, err := fetch(ctx, server)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		certs, err := protocol.PinnedCertificates(bundle, m.Checksums)
		if err == nil {
			return certs, nil
		}
		errs = append(errs, fmt.Errorf("%s%s against %s: %w", server, protocol.PathCACerts, protocol.EnvCAChecksum, err))
	}
	return nil, errors.Join(errs...)
}

func pool(certs []*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, cert := range certs {
		p.AddCert(cert)
	}
	return p
}

func union(first, more []string) []string {
	out := slices.Clone(first)
	for _, s := range more {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
