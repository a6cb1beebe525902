// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"strings"
	"testing"

	v1 "github.com/drover-dev/drover/api/v1"
)

func TestNodeGetsTheFirstAddressOfTheOtherFamily(t *testing.T) {
	t.Parallel()
	with := func(addresses ...string) *v1.HostMachine {
		return &v1.HostMachine{HostProperties: v1.HostProperties{Addresses: addresses}}
	}
	for name, tt := range map[string]struct {
		own     string
		machine *v1.HostMachine
		want    string
	}{
		"both":                {"10.1.0.1", with("10.0.2.15", "10.1.0.1", "fe80::1", "fd00::1", "fd00::2"), "10.1.0.1 fd00::1"},
		"both, IPv6 first":    {"fd00::1", with("10.1.0.1", "fd00::1"), "fd00::1 10.1.0.1"},
		"one family":          {"10.1.0.1", with("10.0.2.15"), "10.1.0.1"},
		"what is no address":  {"10.1.0.1", with("x", "::1"), "10.1.0.1"},
		"nothing is reported": {"10.1.0.1", nil, "10.1.0.1"},
		"none":                {"", nil, ""},
	} {
		if got := strings.Join(nodeIPs(tt.own, tt.machine), " "); got != tt.want {
			t.Errorf("%s: the node has %q, want %q", name, got, tt.want)
		}
	}
}
