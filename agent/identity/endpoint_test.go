// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/agenttest"
)

func noFetch(context.Context, string) ([]byte, error) { return nil, errors.New("must not fetch") }

func serves(bundle string) bundleSource {
	return func(context.Context, string) ([]byte, error) { return []byte(bundle), nil }
}

// trusts returns which of the CAs a hub trusts, by trying each of them.
func trusts(t *testing.T, hub Endpoint, cas map[string]*agenttest.Authority) []string {
	t.Helper()
	var names []string
	for name, ca := range cas {
		server := agenttest.NewHub(t, ca)
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: hub.tls(), DisableKeepAlives: true}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+protocol.PathCACerts, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			if verification := (*tls.CertificateVerificationError)(nil); !errors.As(err, &verification) {
				t.Fatal(err)
			}
			continue
		}
		_ = resp.Body.Close()
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func TestResolve(t *testing.T) {
	t.Parallel()
	a, b := agenttest.NewAuthority(t, "a"), agenttest.NewAuthority(t, "b")
	cas := map[string]*agenttest.Authority{"a": a, "b": b}
	both := a.Bundle() + b.Bundle()
	pinned := func(sums ...string) Manifest {
		return Manifest{Mode: v1.TrustPinned, Servers: []string{"https://m"}, Checksums: sums}
	}
	announced := func(m Manifest, bundle string) identity {
		return identity{Settings: &protocol.Settings{Servers: []string{"https://new"}, CABundle: bundle},
			After: m.fingerprint()}
	}
	for name, tc := range map[string]struct {
		manifest  Manifest
		bundle    string
		announced identity
		fetch     bundleSource
		trusts    []string
		servers   []string
		err       error
	}{
		"a bundle that matches its checksum": {
			manifest: pinned(a.Checksum()), bundle: a.Bundle(), trusts: []string{"a"},
		},
		"of a bundle only what matches": {
			manifest: pinned(b.Checksum()), bundle: both, trusts: []string{"b"},
		},
		"several checksums": {
			manifest: pinned(a.Checksum(), b.Checksum()), bundle: both, trusts: []string{"a", "b"},
		},
		"a bundle that does not match is an error": {
			manifest: pinned(a.Checksum()), bundle: b.Bundle(), err: protocol.ErrUntrustedBundle,
		},
		"a bundle from the operator needs no checksum": {
			manifest: pinned(), bundle: a.Bundle(), trusts: []string{"a"},
		},
		"CVE-2025-67601: neither bundle nor checksum is an error, not trust on first use": {
			manifest: pinned(), fetch: serves(a.Bundle()), err: errNoPin,
		},
		"without a bundle, what the hub serves and the checksum pins": {
			manifest: pinned(b.Checksum()), fetch: serves(both), trusts: []string{"b"},
		},
		"without a bundle, what the hub serves and nothing pins is an error": {
			manifest: pinned(b.Checksum()), fetch: serves(a.Bundle()), err: protocol.ErrUntrustedBundle,
		},
		"what was announced under this manifest wins, with the manifest's servers to fall back to": {
			manifest: pinned(a.Checksum()), bundle: a.Bundle(), announced: announced(pinned(a.Checksum()), b.Bundle()),
			trusts: []string{"b"}, servers: []string{"https://new", "https://m"},
		},
		"a manifest with other checksums wins over what was announced before": {
			manifest: pinned(b.Checksum()), bundle: b.Bundle(), announced: announced(pinned(a.Checksum()), a.Bundle()),
			trusts: []string{"b"},
		},
		"announced servers without a bundle keep the manifest's trust": {
			manifest: pinned(a.Checksum()), bundle: a.Bundle(), announced: announced(pinned(a.Checksum()), ""),
			trusts: []string{"a"}, servers: []string{"https://new"},
		},
		"an announced bundle that is broken is an error, not less trust": {
			manifest: pinned(a.Checksum()), bundle: a.Bundle(), announced: announced(pinned(a.Checksum()), "junk"), err: errAny,
		},
		"System ignores bundles and trusts no private CA": {
			manifest: Manifest{Mode: v1.TrustSystem, Servers: []string{"https://m"}}, bundle: a.Bundle(), trusts: nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fetch := tc.fetch
			if fetch == nil {
				fetch = noFetch
			}
			hub, err := resolve(t.Context(), tc.manifest, []byte(tc.bundle), tc.announced.inForce(tc.manifest), fetch)
			if tc.err != nil {
				if err == nil || !errors.Is(tc.err, errAny) && !errors.Is(err, tc.err) {
					t.Errorf("error %v, want %v", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := trusts(t, hub, cas); !slices.Equal(got, tc.trusts) {
				t.Errorf("trusts %v, want %v", got, tc.trusts)
			}
			servers := tc.servers
			if servers == nil {
				servers = []string{"https://m"}
			}
			if !slices.Equal(hub.Servers, servers) {
				t.Errorf("servers %v, want %v", hub.Servers, servers)
			}
		})
	}
}

var errAny = errors.New("any")

func TestFingerprint(t *testing.T) {
	t.Parallel()
	base := Manifest{Mode: v1.TrustPinned, Servers: []string{"https://a"}, Checksums: []string{"1", "2"}}
	same := Manifest{Mode: v1.TrustPinned, Servers: []string{"https://a"}, Checksums: []string{"2", "1"}}
	if base.fingerprint() != same.fingerprint() {
		t.Error("the order of checksums matters")
	}
	for name, other := range map[string]Manifest{
		"trust":     {Mode: v1.TrustSystem, Servers: base.Servers, Checksums: base.Checksums},
		"servers":   {Mode: v1.TrustPinned, Servers: []string{"https://b"}, Checksums: base.Checksums},
		"checksums": {Mode: v1.TrustPinned, Servers: base.Servers, Checksums: []string{"1"}},
	} {
		if other.fingerprint() == base.fingerprint() {
			t.Errorf("%s do not matter", name)
		}
	}
}

func TestFetchBundle(t *testing.T) {
	t.Parallel()
	ca := agenttest.NewAuthority(t, "ca")
	hub := agenttest.NewHub(t, ca)
	bundle, err := fetchBundle(nil)(t.Context(), hub.URL)
	if err != nil || string(bundle) != ca.Bundle() {
		t.Errorf("the bundle is %q, %v, want that of the CA", bundle, err)
	}
	for _, r := range hub.Seen() {
		if r.Header.Get("Authorization") != "" {
			t.Error("something secret was sent to a hub that was not verified")
		}
	}
}

// TestCVE2024_22030 covers a hub's domain that another owner has registered. The system trusts the new owner's
// certificate.
func TestCVE2024_22030(t *testing.T) {
	ours, public := agenttest.NewAuthority(t, "ours"), agenttest.NewAuthority(t, "public")
	store := filepath.Join(t.TempDir(), "system.pem")
	if err := os.WriteFile(store, []byte(public.Bundle()), 0o600); err != nil {
		t.Fatal(err)
	}
	if os.Getenv("DROVER_TEST_SYSTEM_ROOTS") == "" {
		t.Skip("run by TestCVE2024_22030InAProcessOfItsOwn: system roots are read once in a process")
	}
	t.Setenv("SSL_CERT_FILE", store)
	t.Setenv("SSL_CERT_DIR", t.TempDir())
	cas := map[string]*agenttest.Authority{"ours": ours, "public": public}
	system, err := resolve(t.Context(), Manifest{Mode: v1.TrustSystem, Servers: []string{"https://m"}}, nil, nil, noFetch)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(trusts(t, system, cas), ","); got != "public" {
		t.Fatalf("the system trusts %q, so this test would prove nothing", got)
	}
	m := Manifest{Mode: v1.TrustPinned, Servers: []string{"https://m"}, Checksums: []string{ours.Checksum()}}
	pinned, err := resolve(t.Context(), m, []byte(ours.Bundle()), nil, noFetch)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(trusts(t, pinned, cas), ","); got != "ours" {
		t.Errorf("trusts %q, want ours alone", got)
	}
}
