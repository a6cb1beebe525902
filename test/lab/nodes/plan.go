// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"fmt"
	"net/netip"
)

// dnsIP is the address of the DNS server in each cluster. It is one of the lab's Service addresses.
const dnsIP = "10.0.0.10"

// serviceSubnet returns the subnet of Service addresses in every cluster. Package lab configures the API servers with
// the same subnet.
func serviceSubnet() netip.Prefix { return netip.MustParsePrefix("10.0.0.0/24") }

// noCluster is the name of the cluster that hosts belong to.
const noCluster = ""

// plan contains the addresses of all nodes.
type plan struct {
	// gateway is the address of the bridge that all nodes are connected to. Each API server can be reached at this
	// address on its own port.
	gateway netip.Prefix
	nodes   []nodePlan
}

// nodePlan contains the addresses and routes of one node. The routes reach the pods of the other nodes in the node's
// cluster.
type nodePlan struct {
	Node
	// cluster is noCluster for a host.
	cluster string
	// link is the name of the node's network device on the bridge.
	link    string
	address netip.Prefix
	pods    netip.Prefix
	routes  []route
}

func (n nodePlan) isHost() bool { return n.cluster == noCluster }

// route is a route to the pods of another node.
type route struct {
	Pods netip.Prefix `json:"pods"`
	Via  netip.Addr   `json:"via"`
}

// newPlan assigns addresses to the nodes of a valid file, and then to its hosts. They are numbered from 1. Node i has
// address 9+i in the subnet and the i-th /24 of the pod subnet.
func newPlan(f File) plan {
	subnet, pods := netip.MustParsePrefix(f.Networking.Subnet), netip.MustParsePrefix(f.Networking.PodSubnet)
	p := plan{gateway: netip.PrefixFrom(plus(subnet.Addr(), 1), subnet.Bits())}
	add := func(cluster string, nodes []Node) {
		first := len(p.nodes)
		for _, n := range nodes {
			i := len(p.nodes) + 1
			p.nodes = append(p.nodes, nodePlan{
				Node: n, cluster: cluster, link: fmt.Sprintf("node%d", i),
				address: netip.PrefixFrom(plus(subnet.Addr(), 9+i), subnet.Bits()),
				pods:    netip.PrefixFrom(plus(pods.Addr(), i<<8), 24),
			})
		}
		connect(p.nodes[first:])
	}
	for _, c := range f.Clusters {
		add(c.Name, c.Nodes)
	}
	var hosts []Node
	for _, h := range f.Hosts {
		hosts = append(hosts, Node{Name: h.Name})
	}
	add(noCluster, hosts)
	return p
}

// connect gives each node of a cluster routes to the pods of all other nodes.
func connect(nodes []nodePlan) {
	for i := range nodes {
		for j, other := range nodes {
			if i != j {
				nodes[i].routes = append(nodes[i].routes, route{Pods: other.pods, Via: other.address.Addr()})
			}
		}
	}
}

func plus(address netip.Addr, n int) netip.Addr {
	b := address.As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v += uint32(n)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

// node returns the plan for the node with the given name.
func (p plan) node(name string) (nodePlan, error) {
	for _, n := range p.nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return nodePlan{}, fmt.Errorf("node %q is not in the lab's file", name)
}
