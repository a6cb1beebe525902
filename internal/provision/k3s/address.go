// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

// pinAddresses makes each node keep the address that its machine reported when it became a node. Hosts send the token
// of the cluster to the address of a server. So neither this machine nor another one in its place may change the
// address by a later report. Only spec.internalAddress of the Host changes it.
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
