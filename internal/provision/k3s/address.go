// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

// pinAddresses keeps the address that each machine reported when it became a node. Hosts send the cluster's token to
// the addresses of servers, so later reports from a machine must not change its address. Only spec.internalAddress of
// the Host can change the address.
func (in *Input) pinAddresses() {
	for i := range in.Hosts {
		host := &in.Hosts[i]
		node, isNode := in.Stored.Nodes[host.Name]
		switch {
		case !isNode || node.UID != host.UID || len(host.NodeIPs) > 0:
		case node.Address != "":
			host.Address = node.Address
		default:
			node.Address = host.Address
			in.Stored.Nodes[host.Name] = node
		}
	}
}
