// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
)

func TestParseLine(t *testing.T) {
	for name, tt := range map[string]struct {
		line string
		good bool
	}{
		"a member": {`{"member":{"namespace":"team-a","name":"prod"}}`, true},
		"a host":   {`{"member":{"namespace":"team-a","name":"host:rack1"}}`, true},
		"a host's name that leads out of its path": {`{"member":{"namespace":"team-a","name":"host:../x"}}`, false},
		"the end of the snapshot":                  {`{"complete":true}`, true},
		"fields of a later version": {
			`{"weather":"fine","member":{"namespace":"a","name":"b","mood":1}}`, true,
		},
		"no JSON":                           {`member`, false},
		"a member without a name":           {`{"member":{"namespace":"team-a"}}`, false},
		"a name that leads out of its path": {`{"member":{"namespace":"team-a","name":"../x"}}`, false},
		"a namespace with a slash":          {`{"member":{"namespace":"a/b","name":"x"}}`, false},
		"a member that is not an object":    {`{"member":["team-a","prod"]}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parse([]byte(tt.line)); (err == nil) != tt.good || err != nil && !errors.Is(err, errMalformed) {
				t.Errorf("got %v, want an error: %t", err, !tt.good)
			}
		})
	}
}

func FuzzParseLine(f *testing.F) {
	line, err := json.Marshal(message{Member: &members.Record{Namespace: "team-a", Name: "prod",
		Tunnels: []members.Peer{agentOf(member, "one")},
		Loss:    &members.Loss{At: time.Unix(1, 0), Because: "closed"}, Refusal: &members.Rejection{Reason: "X"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line)
	f.Add([]byte(`{"complete":true}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := parse(line)
		if err != nil || m.Member == nil {
			return
		}
		for _, p := range m.Member.Tunnels {
			if p.Name() != m.Member.Cluster() || p.ID == "" {
				t.Errorf("tunnel %+v of %s, want the Cluster and an ID", p, m.Member.Cluster())
			}
		}
		out, err := json.Marshal(m)
		if err != nil || len(out) > maxLine {
			t.Errorf("the message takes %d bytes, %v, want at most %d", len(out), err, maxLine)
		}
	})
}

// A malformed line ends a link for all members, so no member must cause a line that the other replica does not accept.
func TestLinesAreNeverLongerThanAReplicaAccepts(t *testing.T) {
	long := strings.Repeat("\u2028", maxLine/6) // six bytes in JSON, three in memory
	record := members.Record{Namespace: "team-a", Name: "prod",
		Report: &protocol.Report{DirectAuthority: long, Remnants: protocol.Remnants{Left: []string{long}}}}
	for range 1000 {
		p := agentOf(member, strings.Repeat("\x01", 128))
		p.ID = "tunnel"
		record.Tunnels = append(record.Tunnels, p)
	}
	var line bytes.Buffer
	if err := writeMessage(&line, message{Member: &record}); err != nil || line.Len() > maxLine {
		t.Fatalf("got a line of %d bytes, %v, want at most %d", line.Len(), err, maxLine)
	}
	got, err := parse(bytes.TrimSpace(line.Bytes()))
	if err != nil || got.Member == nil || got.Member.Report != nil || got.Member.ReportErr == "" ||
		len(got.Member.Tunnels) == 0 {
		t.Errorf("got %+v, %v, want the tunnels and the reason why there is no report", got.Member, err)
	}
	if len(record.Tunnels) != 1000 || record.Tunnels[999].ID == "" || record.Report == nil {
		t.Error("the record of the registry was changed, want it unchanged")
	}
}

func TestParseTarget(t *testing.T) {
	for raw, want := range map[string]target{
		"/v1/members/team-a/prod/v1/k8s/api":     {member: member, path: "/v1/k8s/api"},
		"/v1/members/team-a/prod//":              {member: member, path: "//"},
		"/v1/members/team-a/prod/a%2Fb//../c":    {member: member, path: "/a/b//../c", rawPath: "/a%2Fb//../c"},
		"/v1/members/team-a/prod/%e2%82%ac":      {member: member, path: "/€", rawPath: "/%e2%82%ac"},
		"/v1/members/team-a/prod":                {},
		"/v1/members/team-a/":                    {},
		"/v1/members/":                           {},
		"/v1/members//prod/x":                    {},
		"/v1/members/team-a%2Fprod/x/%2F":        {},
		"/v1/members/team%2da/prod/x":            {},
		"/v2/members/team-a/prod/x":              {},
		"/v1/members/team-a/prod%2Fv1/k8s/%2Fx/": {},
	} {
		t.Run(raw, func(t *testing.T) {
			u, err := url.ParseRequestURI(raw)
			if err != nil {
				t.Fatal(err)
			}
			got, err := parseTarget(u)
			if (err == nil) != (want.path != "") || got != want {
				t.Errorf("got %+v, %v, want %+v, or an error if that is empty", got, err, want)
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	port, other, name, otherName := int32(8444), int32(8443), portName, "https"
	slice := func(family discoveryv1.AddressType, endpoints ...discoveryv1.Endpoint) discoveryv1.EndpointSlice {
		return discoveryv1.EndpointSlice{AddressType: family, Endpoints: endpoints,
			Ports: []discoveryv1.EndpointPort{{Name: &otherName, Port: &other}, {Name: &name, Port: &port}}}
	}
	ready := false
	pod := func(name, address string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			TargetRef: &corev1.ObjectReference{Name: name, UID: types.UID(name)}}
	}
	for title, tt := range map[string]struct {
		slices []discoveryv1.EndpointSlice
		want   string
	}{
		"none": {nil, ""},
		"replicas that are not ready": {
			[]discoveryv1.EndpointSlice{slice(discoveryv1.AddressTypeIPv4, pod("b", "10.0.0.2"), pod("a", "10.0.0.1"))},
			"10.0.0.1:8444 10.0.0.2:8444",
		},
		"one address of each replica": {[]discoveryv1.EndpointSlice{
			slice(discoveryv1.AddressTypeIPv4, pod("a", "10.0.0.1")), slice(discoveryv1.AddressTypeIPv6, pod("a", "fd00::1"),
				pod("b", "fd00::2"))}, "10.0.0.1:8444 [fd00::2]:8444"},
		"no address without the port": {
			[]discoveryv1.EndpointSlice{{AddressType: discoveryv1.AddressTypeIPv4,
				Endpoints: []discoveryv1.Endpoint{pod("a", "10.0.0.1")}}}, "",
		},
	} {
		t.Run(title, func(t *testing.T) {
			if got := strings.Join(addresses(tt.slices), " "); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
