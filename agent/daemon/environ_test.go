// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"reflect"
	"strings"
	"testing"

	v1 "github.com/drover-dev/drover/api/v1"
)

func lookup(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	sum := strings.Repeat("ab", 32)
	colons := strings.TrimSuffix(strings.Repeat("AB:", 32), ":")
	base := func(mutate func(*Environ)) Environ {
		e := Environ{
			Servers: []string{"https://hub.example.com"}, Trust: v1.TrustPinned, Profile: v1.ProfileFull,
			Namespace: "drover-agent", Listen: ":8080", DirectListen: ":6443", Socket: "/run/x.sock",
		}
		mutate(&e)
		return e
	}
	for name, tc := range map[string]struct {
		vars map[string]string
		want Environ
	}{
		"only a server: all defaults apply": {
			vars: map[string]string{"DROVER_SERVER": "https://hub.example.com"},
			want: base(func(*Environ) {}),
		},
		"lists are split at commas, and trailing slashes are removed": {
			vars: map[string]string{"DROVER_SERVER": "https://a.example/, https://b.example:8443/hub/ ,",
				"DROVER_CA_CHECKSUM": sum + "," + colons},
			want: base(func(e *Environ) {
				e.Servers, e.Checksums = []string{"https://a.example", "https://b.example:8443/hub"}, []string{sum, colons}
			}),
		},
		"a hub with an IPv6 address": {
			vars: map[string]string{"DROVER_SERVER": "https://[fd00::1]:8443,https://[::1]"},
			want: base(func(e *Environ) { e.Servers = []string{"https://[fd00::1]:8443", "https://[::1]"} }),
		},
		"the variable names of Rancher are accepted": {
			vars: map[string]string{"CATTLE_SERVER": "https://hub.example.com", "CATTLE_CA_CHECKSUM": sum,
				"CATTLE_DEBUG": "true", "CATTLE_TUNNEL_DATA_DEBUG": "1"},
			want: base(func(e *Environ) { e.Checksums, e.Debug, e.TunnelDataDebug = []string{sum}, true, true }),
		},
		"a DROVER name wins over its alias": {
			vars: map[string]string{"CATTLE_SERVER": "https://old.example", "DROVER_SERVER": "https://hub.example.com",
				"CATTLE_DEBUG": "true", "DROVER_DEBUG": "false"},
			want: base(func(*Environ) {}),
		},
		"an empty DROVER name does not override its alias": {
			vars: map[string]string{"CATTLE_SERVER": "https://hub.example.com", "DROVER_SERVER": ""},
			want: base(func(*Environ) {}),
		},
		"other values are used unchanged": {
			vars: map[string]string{"DROVER_SERVER": "https://hub.example.com", "DROVER_TRUST": "System",
				"DROVER_NAMESPACE": "ns", "DROVER_LISTEN": "127.0.0.1:1", "DROVER_DIRECT_LISTEN": "127.0.0.1:2"},
			want: base(func(e *Environ) {
				e.Trust, e.Namespace, e.Listen, e.DirectListen = v1.TrustSystem, "ns", "127.0.0.1:1", "127.0.0.1:2"
			}),
		},
		"on the network of its node, an agent takes no port of an API server": {
			vars: map[string]string{"DROVER_SERVER": "https://hub.example.com", "DROVER_HOST_NETWORK": "true"},
			want: base(func(e *Environ) { e.HostNetwork, e.DirectListen = true, "127.0.0.1:0" }),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.vars["DROVER_SOCKET"] = "/run/x.sock"
			got, err := ReadEnviron(lookup(tc.vars))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		vars map[string]string
		says []string
		not  string
	}{
		"no server": {vars: nil, says: []string{"DROVER_SERVER is not set", "https://drover.example.com"}},
		"a server without TLS": {vars: map[string]string{"DROVER_SERVER": "http://hub"},
			says: []string{"DROVER_SERVER", `"http://hub" is not an https URL`}},
		"a bad alias, under its own name": {vars: map[string]string{"CATTLE_SERVER": "hub"}, says: []string{"CATTLE_SERVER"}},
		"a server without a host": {vars: map[string]string{"DROVER_SERVER": "https:///x"},
			says: []string{"has no host"}},
		"a password in the URL, unprinted": {
			vars: map[string]string{"DROVER_SERVER": "https://u:hunter2@hub"}, says: []string{"before the @"}, not: "hunter2",
		},
		"a password in a URL that does not parse, unprinted": {
			vars: map[string]string{"DROVER_SERVER": "https://u:hunter2@hub:port"}, says: []string{"is not a URL"},
			not: "hunter2",
		},
		"a password before a host without a scheme, unprinted": {
			vars: map[string]string{"DROVER_SERVER": "bob:hunter2@hub"}, says: []string{"not an https URL"}, not: "hunter2",
		},
		"a password in a URL without a host, unprinted": {
			vars: map[string]string{"DROVER_SERVER": "https:bob:hunter2@hub"}, says: []string{"has no host"}, not: "hunter2",
		},
		"a query, unprinted": {vars: map[string]string{"DROVER_SERVER": "https://hub?token=hunter2"}, says: []string{"query"},
			not: "hunter2"},
		"a checksum that is too short": {vars: map[string]string{"DROVER_SERVER": "https://hub",
			"DROVER_CA_CHECKSUM": "abcd"},
			says: []string{"DROVER_CA_CHECKSUM", "SHA-256"}},
		"an unknown trust": {vars: map[string]string{"DROVER_SERVER": "https://hub", "DROVER_TRUST": "pinned"},
			says: []string{"DROVER_TRUST", "Pinned or System"}},
		"several problems at once": {
			vars: map[string]string{"DROVER_DEBUG": "maybe", "CATTLE_TUNNEL_DATA_DEBUG": "perhaps",
				"DROVER_SERVER": "https://hub"},
			says: []string{"DROVER_DEBUG", "CATTLE_TUNNEL_DATA_DEBUG", "true or false"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ReadEnviron(lookup(tc.vars))
			if err == nil {
				t.Fatal("got no error, want one")
			}
			for _, want := range tc.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got the error %q, want %q in it", err, want)
				}
			}
			if tc.not != "" && strings.Contains(err.Error(), tc.not) {
				t.Errorf("got the error %q, want it without %q", err, tc.not)
			}
		})
	}
}
