// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package limit

import "net/netip"

// Source returns the name under which connections from a host:port address are counted. It is the IPv4 address, or the
// /64 network of an IPv6 address, because one host has many IPv6 addresses. All clients behind a proxy that hides their
// addresses share one name.
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
