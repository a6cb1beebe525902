// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"testing"

	"github.com/drover-dev/drover/internal/protocol"
)

func TestWithRegistry(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ registry, image, want string }{
		"no registry is set": {"", "rancher/k3s-upgrade", "rancher/k3s-upgrade"},
		"an image with a folder": {
			"reg.example.com", "rancher/k3s-upgrade:v1", "reg.example.com/rancher/k3s-upgrade:v1",
		},
		"an image without a folder": {
			"reg.example.com:5000/mirror", "drover:v1", "reg.example.com:5000/mirror/drover:v1",
		},
		"a tag is not a port":                 {"reg.example.com", "drover:5000", "reg.example.com/drover:5000"},
		"a digest":                            {"reg.example.com", "drover@sha256:00", "reg.example.com/drover@sha256:00"},
		"an image with a registry":            {"reg.example.com", "ghcr.io/a/b:v1", "ghcr.io/a/b:v1"},
		"an image with a registry and a port": {"reg.example.com", "mirror:5000/a/b", "mirror:5000/a/b"},
		"an image on this machine":            {"reg.example.com", "localhost/a", "localhost/a"},
		"an image with an IPv6 address":       {"reg.example.com", "[fd00::1]:5000/a", "[fd00::1]:5000/a"},
		"the registry itself":                 {"reg.example.com", "reg.example.com/a", "reg.example.com/a"},
		"a registry with a trailing slash":    {"reg.example.com/", "a", "reg.example.com/a"},
		"no image":                            {"reg.example.com", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := protocol.WithRegistry(tc.registry, tc.image); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}
