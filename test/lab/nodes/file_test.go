// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const header = "apiVersion: lab.drover.dev/v1\nkind: Lab\n"

func TestParseFile(t *testing.T) {
	for name, c := range map[string]struct {
		content string
		want    string // in the error, or "" if the file is good
	}{
		"a cluster without nodes":           {header + "name: a\nclusters: [{name: hub}]\n", ""},
		"nodes with labels":                 {header + "name: a\nclusters: [{name: hub, nodes: [{}, {name: x, labels: {zone: b}}]}]\n", ""},
		"networks of one's own":             {header + "name: a\nnetworking: {subnet: 172.20.0.0/24, podSubnet: 172.21.0.0/16}\nclusters: [{name: hub}]\n", ""},
		"another kind":                      {"apiVersion: kind.x-k8s.io/v1alpha4\nkind: Cluster\nname: a\nclusters: [{name: hub}]\n", "write lab.drover.dev/v1 and Lab"},
		"a field that is not known":         {header + "name: a\nnode: 3\nclusters: [{name: hub}]\n", `unknown field "node"`},
		"no name":                           {header + "clusters: [{name: hub}]\n", `name: ""`},
		"a name that leaves the folder":     {header + "name: ../a\nclusters: [{name: hub}]\n", `name: "../a"`},
		"no cluster":                        {header + "name: a\n", "name at least one"},
		"hosts alone":                       {header + "name: a\nhosts: [{name: m1}, {name: m2}]\nprograms: {v1/kubelet: /kubelet}\n", ""},
		"a host with the name of a node":    {header + "name: a\nclusters: [{name: hub, nodes: [{name: x}]}]\nhosts: [{name: x}]\n", "hosts[0].name: \"x\" is taken"},
		"a host without a name":             {header + "name: a\nhosts: [{}]\n", "hosts[0].name"},
		"two clusters of one name":          {header + "name: a\nclusters: [{name: hub}, {name: hub}]\n", "clusters[1].name: \"hub\" is taken"},
		"two nodes of one name":             {header + "name: a\nclusters: [{name: hub, nodes: [{name: x}]}, {name: b, nodes: [{name: x}]}]\n", "clusters[1].nodes[0].name: \"x\" is taken"},
		"a name that another has by itself": {header + "name: a\nclusters: [{name: hub, nodes: [{name: hub-2}, {}]}]\n", "is taken"},
		"a network of IPv6":                 {header + "name: a\nnetworking: {subnet: 'fd00::/16'}\nclusters: [{name: hub}]\n", "networking.subnet"},
		"a network with bits of a host":     {header + "name: a\nnetworking: {subnet: 10.90.0.1/16}\nclusters: [{name: hub}]\n", "networking.subnet"},
		"a network too small for the pods":  {header + "name: a\nnetworking: {podSubnet: 10.91.0.0/20}\nclusters: [{name: hub}]\n", "networking.podSubnet"},
		"networks that overlap":             {header + "name: a\nnetworking: {podSubnet: 10.90.0.0/16}\nclusters: [{name: hub}]\n", "overlaps"},
		"a port of the machine":             {header + "name: a\nnetworking: {machinePorts: [8443]}\nclusters: [{name: hub}]\n", ""},
		"a port that is none":               {header + "name: a\nnetworking: {machinePorts: [8443, 65536]}\nclusters: [{name: hub}]\n", "networking.machinePorts[1]: 65536"},
		"the network of Services":           {header + "name: a\nnetworking: {subnet: 10.0.0.0/16}\nclusters: [{name: hub}]\n", "overlaps with Service addresses"},
		"too many nodes":                    {header + "name: a\nclusters: [{name: hub, nodes: [" + strings.Repeat("{},", 101) + "]}]\n", "101 nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseFile([]byte(c.content))
			if c.want == "" && err != nil {
				t.Errorf("got %v, want no error", err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestReadFileMakesPathsAbsolute(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "lab.yaml")
	content := header + "name: a\nimages: [a.tar]\nclusters: [{name: hub, images: [b.tar, /c.tar]}]\n"
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(append(f.Images, f.Clusters[0].Images...), " ")
	if want := filepath.Join(dir, "a.tar") + " " + filepath.Join(dir, "b.tar") + " /c.tar"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestPlan(t *testing.T) {
	f, err := ParseFile([]byte(header + "name: a\nclusters: [{name: hub, nodes: [{}, {name: x}, {}]}, {name: b, nodes: [{}]}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	p := newPlan(f)
	if got := p.gateway.String(); got != "10.90.0.1/16" {
		t.Errorf("the bridge has %s", got)
	}
	var got []string
	for _, n := range p.nodes {
		routes := ""
		for _, r := range n.routes {
			routes += " " + r.Pods.String() + ">" + r.Via.String()
		}
		got = append(got, n.Name+" "+n.cluster+" "+n.link+" "+n.address.String()+" "+n.pods.String()+routes)
	}
	want := []string{
		"hub-1 hub node1 10.90.0.10/16 10.128.1.0/24 10.128.2.0/24>10.90.0.11 10.128.3.0/24>10.90.0.12",
		"x hub node2 10.90.0.11/16 10.128.2.0/24 10.128.1.0/24>10.90.0.10 10.128.3.0/24>10.90.0.12",
		"hub-3 hub node3 10.90.0.12/16 10.128.3.0/24 10.128.1.0/24>10.90.0.10 10.128.2.0/24>10.90.0.11",
		"b-1 b node4 10.90.0.13/16 10.128.4.0/24",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if _, err := p.node("y"); err == nil || !strings.Contains(err.Error(), `"y"`) {
		t.Errorf("a node that does not exist: %v", err)
	}
}

func TestAllNodesOfTheSmallestNetworksHaveAddressesWithinThem(t *testing.T) {
	f := File{
		Networking: Networking{Subnet: "10.90.1.0/24", PodSubnet: "10.64.128.0/17"},
		Clusters:   []Cluster{{Name: "hub", Nodes: make([]Node, maxNodes)}},
	}
	if err := f.Networking.validate(); err != nil {
		t.Fatal(err)
	}
	p := newPlan(f)
	last := p.nodes[maxNodes-1]
	if last.address.String() != "10.90.1.109/24" || last.pods.String() != "10.64.228.0/24" {
		t.Errorf("the last node has %s and %s", last.address, last.pods)
	}
}
