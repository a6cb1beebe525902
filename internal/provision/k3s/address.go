// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

// pinAddresses fixes each node's address to the address that its machine reported when it became a node. Hosts send the
// cluster's token to the address of a server, so neither this machine nor a replacement may change the address with a
// later report. The address can be changed only with spec.internalAddress of the Host.
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
