// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strconv"
	"syscall"
)

// soReusePort is SO_REUSEPORT of Linux, which package syscall does not have on every architecture.
const soReusePort = 15

// A portLease keeps a TCP port of 127.0.0.1 for a server that we start: a socket that is bound but does not listen.
// The kernel gives such a port to no other socket, while our servers, which set SO_REUSEPORT like the lease, may listen
// on it, also again after a restart. If the socket were closed, another program could take the port before our server.
type portLease struct {
	port int
	fd   int
}

// leasePort takes the preferred port if it is free, else any free one.
func leasePort(preferred int) (*portLease, error) {
	if preferred != 0 && portIsFree(preferred) {
		if lease, err := bindPort(preferred); err == nil {
			return lease, nil
		}
	}
	return bindPort(0)
}

// portIsFree binds without SO_REUSEPORT, since two servers that both set it would silently share the port.
func portIsFree(port int) bool {
	l, err := net.Listen("tcp4", net.JoinHostPort(loopback, strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

func bindPort(port int) (*portLease, error) {
	return bind(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port)), soReusePort)
}

// FreeAddress returns an address on a loopback host for a server that we start, also again. The server sets
// SO_REUSEADDR, as Go's listeners and most other programs do. Until this process ends, a socket that is bound to the
// address and does not listen keeps it: the kernel gives the port to no other socket of any process that leaves the
// choice to it, neither to a server nor to a client.
func FreeAddress(host string) (string, error) {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	lease, err := bind(netip.AddrPortFrom(ip, 0), syscall.SO_REUSEADDR)
	if err != nil {
		return "", err
	}
	if runtime.GOOS != "linux" {
		lease.release() // other systems let no server listen beside it
	}
	return net.JoinHostPort(host, strconv.Itoa(lease.port)), nil
}

// bind returns a lease of an address, or of any free port where that is 0, for servers that set the same option.
func bind(address netip.AddrPort, option int) (*portLease, error) {
	family, where := syscall.AF_INET6, syscall.Sockaddr(&syscall.SockaddrInet6{Addr: address.Addr().As16(), Port: int(address.Port())})
	if address.Addr().Is4() {
		family, where = syscall.AF_INET, &syscall.SockaddrInet4{Addr: address.Addr().As4(), Port: int(address.Port())}
	}
	syscall.ForkLock.RLock() // no child may inherit the socket before it is marked
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("lease a port: %w", err)
	}
	lease := &portLease{fd: fd}
	if err := lease.bind(where, option); err != nil {
		lease.release()
		return nil, fmt.Errorf("lease %s: %w", address, err)
	}
	return lease, nil
}

func (l *portLease) bind(where syscall.Sockaddr, option int) error {
	if err := syscall.SetsockoptInt(l.fd, syscall.SOL_SOCKET, option, 1); err != nil {
		return err
	}
	if err := syscall.Bind(l.fd, where); err != nil {
		return err
	}
	addr, err := syscall.Getsockname(l.fd)
	if err != nil {
		return err
	}
	switch bound := addr.(type) {
	case *syscall.SockaddrInet4:
		l.port = bound.Port
	case *syscall.SockaddrInet6:
		l.port = bound.Port
	default:
		return fmt.Errorf("unexpected address %T", addr)
	}
	return nil
}

func (l *portLease) release() { _ = syscall.Close(l.fd) }
