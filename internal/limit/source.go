// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package limit

import "net/netip"

// Source is what connections from an address with a port are counted by: the address, or the network of it where one host
// has many, as with IPv6. What is in front of the hub and hides its clients' addresses makes them one.
func Source(address string) string {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return address
	}
	host := at.Addr().Unmap().WithZone("")
	if host.Is4() {
		return host.String()
	}
	return netip.PrefixFrom(host, 64).Masked().String()
}
