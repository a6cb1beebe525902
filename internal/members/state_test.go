// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestNodeAgentsDoNotCountAsReplicas(t *testing.T) {
	for name, tt := range map[string]struct {
		peers       []Peer
		agents      int
		byNodeAgent bool
	}{
		"a member that is not connected":   {nil, 0, false},
		"two replicas, one of them moving": {[]Peer{{Instance: "a"}, {Instance: "a"}, {Instance: "b"}}, 2, false},
		"replicas without a name":          {[]Peer{{}, {}}, 2, false},
		"only a node agent":                {[]Peer{{Instance: "n", NodeAgent: true}}, 0, true},
		"only a node agent without a name": {[]Peer{{NodeAgent: true}}, 0, true},
		"a node agent and a replica":       {[]Peer{{Instance: "n", NodeAgent: true}, {Instance: "a"}}, 1, false},
		"two node agents": {
			[]Peer{{Instance: "n", NodeAgent: true}, {Instance: "m", NodeAgent: true}}, 0, true,
		},
		"a node agent and a replica without a name": {[]Peer{{Instance: "n", NodeAgent: true}, {}}, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := State{Peers: tt.peers}
			if s.Agents() != tt.agents || s.ByNodeAgent() != tt.byNodeAgent {
				t.Errorf("%d agents, by node agent %t, want %d, %t", s.Agents(), s.ByNodeAgent(), tt.agents, tt.byNodeAgent)
			}
		})
	}
}

func TestHerePrefersReplicas(t *testing.T) {
	name := types.NamespacedName{Namespace: "a", Name: "b"}
	tunnelOf := func(instance string, nodeAgent bool) *session {
		return &session{peer: Peer{Instance: instance, NodeAgent: nodeAgent}}
	}
	for what, tt := range map[string]struct {
		sessions []*session
		want     string
	}{
		"the newest replica":                  {[]*session{tunnelOf("a", false), tunnelOf("b", false)}, "b"},
		"a replica before a newer node agent": {[]*session{tunnelOf("a", false), tunnelOf("n", true)}, "a"},
		"the newest node agent":               {[]*session{tunnelOf("m", true), tunnelOf("n", true)}, "n"},
	} {
		t.Run(what, func(t *testing.T) {
			r := Transports{&table{members: map[types.NamespacedName]*member{name: {sessions: tt.sessions}}}}
			carrier, err := r.Here(name, "")
			if err != nil {
				t.Fatal(err)
			}
			if s, is := carrier.(*session); !is || s.peer.Instance != tt.want {
				t.Errorf("got the route %+v, want %s", carrier, tt.want)
			}
		})
	}
}
