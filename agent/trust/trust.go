// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package trust decides where the hub is and which certificates the agent accepts from it.
//
// Three sources name them: the manifest (environment and registration Secret), what the hub has announced through the tunnel since,
// and, for a manifest without a CA bundle, the hub's PathCACerts, of which only what the manifest's checksums pin is kept.
// What was announced is in force as long as the manifest is the one that it was announced under; when a person applies a manifest with
// other servers or checksums, that one wins.
package trust

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// ErrNoPin means that trust is Pinned and nothing is pinned. There is no trust on first use (CVE-2025-67601).
var ErrNoPin = errors.New("nothing to verify the hub's certificate with: set " + protocol.EnvCAChecksum +
	" to the checksum of the hub's CA, or " + protocol.EnvTrust + " to System for a hub with a certificate of a public CA")

// Manifest is what the operator of the member configured about the hub.
type Manifest struct {
	Mode      v1.Trust
	Servers   []string
	Checksums []string
}

// Fingerprint identifies a manifest. The order of checksums does not matter.
func (m Manifest) Fingerprint() string {
	m.Checksums = slices.Sorted(slices.Values(m.Checksums))
	raw, err := json.Marshal(m)
	if err != nil { // strings always marshal
		panic(err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// Announced is what the hub announced last, and the fingerprint of the manifest then in force.
type Announced struct {
	Settings *protocol.Settings
	After    string
}

// InForce returns the announced settings if they are in force under this manifest, else nil.
func (a Announced) InForce(m Manifest) *protocol.Settings {
	if a.Settings == nil || a.After != m.Fingerprint() {
		return nil
	}
	return a.Settings
}

// Hub is where to connect and what to accept there.
type Hub struct {
	// Servers to try in this order.
	Servers []string
	// Roots to verify the hub's certificate with; nil means the system's.
	Roots *x509.CertPool
}

// TLS is the configuration of a connection to the hub.
func (h Hub) TLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: h.Roots}
}

// Fetch gets the CA bundle from a server whose certificate is not verified yet.
type Fetch func(ctx context.Context, server string) ([]byte, error)

// Resolve returns the Hub to connect to. bundle is the CA bundle in the registration Secret, perhaps empty.
func Resolve(ctx context.Context, m Manifest, bundle []byte, a Announced, fetch Fetch) (Hub, error) {
	hub := Hub{Servers: m.Servers}
	settings := a.InForce(m)
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
			return Hub{}, fmt.Errorf("trust what the hub announced: %w", err)
		}
		// With the CA pinned, the manifest's servers are safe to fall back to when the announced ones turn out to be wrong.
		hub.Servers = union(hub.Servers, m.Servers)
		hub.Roots = pool(certs)
		return hub, nil
	}
	certs, err := fromManifest(ctx, m, bundle, fetch)
	if err != nil {
		return Hub{}, fmt.Errorf("trust hub: %w", err)
	}
	hub.Roots = pool(certs)
	return hub, nil
}

func fromManifest(ctx context.Context, m Manifest, bundle []byte, fetch Fetch) ([]*x509.Certificate, error) {
	switch {
	case len(bundle) == 0 && len(m.Checksums) == 0:
		return nil, ErrNoPin
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

func fetched(ctx context.Context, m Manifest, fetch Fetch) ([]*x509.Certificate, error) {
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
