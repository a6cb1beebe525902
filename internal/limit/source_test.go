// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package limit_test

import (
	"testing"

	"github.com/drover-dev/drover/internal/limit"
)

func TestSource(t *testing.T) {
	for name, tt := range map[string]struct{ address, want string }{
		"an IPv4 address is one source":                       {"192.0.2.7:1234", "192.0.2.7"},
		"an IPv4 address in IPv6 notation is the same source": {"[::ffff:192.0.2.7]:1", "192.0.2.7"},
		"an IPv6 network is one source":                       {"[2001:db8:1:2:3:4:5:6]:1", "2001:db8:1:2::/64"},
		"a zone changes nothing":                              {"[fe80::1%eth0]:1", "fe80::/64"},
		"anything else is unchanged":                          {"pipe", "pipe"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := limit.Source(tt.address); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
