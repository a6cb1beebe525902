// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package limit

import "net/netip"

// Source returns the name by which connections from an address with a port are counted: the IPv4 address, or the /64
// network of an IPv6 address, since one host has many of these. All clients behind a proxy that hides their addresses
// have one name.
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
