// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

// pinAddresses has each node keep the address that its machine reported when it became a node. Hosts send the token of
// the cluster to the address of a server, so a machine, or another one in its place, must not move that by what it
// reports later. spec.internalAddress of its Host does.
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
