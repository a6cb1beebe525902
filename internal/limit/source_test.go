// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package limit_test

import (
	"testing"

	"github.com/drover-dev/drover/internal/limit"
)

func TestSource(t *testing.T) {
	for name, tt := range map[string]struct{ address, want string }{
		"an address of IPv4 is one":               {"192.0.2.7:1234", "192.0.2.7"},
		"one that is written as IPv6 is the same": {"[::ffff:192.0.2.7]:1", "192.0.2.7"},
		"a network of IPv6 is one":                {"[2001:db8:1:2:3:4:5:6]:1", "2001:db8:1:2::/64"},
		"a zone changes nothing":                  {"[fe80::1%eth0]:1", "fe80::/64"},
		"anything else is itself":                 {"pipe", "pipe"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := limit.Source(tt.address); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
