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

// soReusePort is SO_REUSEPORT on Linux. Package syscall does not define it for every architecture.
const soReusePort = 15

// portLease reserves a TCP port on 127.0.0.1 for a server of the lab. It is a socket that is bound to the port but
// does not listen. While the socket exists, the kernel does not assign the port to any other socket. The lab's
// servers can listen on the port, even after a restart, because they set SO_REUSEPORT like the lease. If the socket
// were closed, another program could take the port before the server does.
type portLease struct {
	port int
	fd   int
}

// leasePort leases the preferred port if it is free, and any free port otherwise.
func leasePort(preferred int) (*portLease, error) {
	if preferred != 0 && portIsFree(preferred) {
		if lease, err := bindPort(preferred); err == nil {
			return lease, nil
		}
	}
	return bindPort(0)
}

// portIsFree binds to the port without SO_REUSEPORT, because two servers that both set SO_REUSEPORT would silently
// share the port.
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

// FreeAddress returns a free address on a loopback host for a server that sets SO_REUSEADDR, as Go's listeners and
// most other programs do. The address is reserved until this process ends, so the server can also be restarted.
//
// The reservation is a socket that is bound to the address but does not listen. The kernel then never chooses the
// port for another socket, whether of a server or of a client.
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
		lease.release() // on other systems, no server can listen on a leased port
	}
	return net.JoinHostPort(host, strconv.Itoa(lease.port)), nil
}

// bind leases an address for servers that set the given socket option. If the port is 0, it leases any free port.
func bind(address netip.AddrPort, option int) (*portLease, error) {
	family, where := syscall.AF_INET6, syscall.Sockaddr(&syscall.SockaddrInet6{Addr: address.Addr().As16(), Port: int(address.Port())})
	if address.Addr().Is4() {
		family, where = syscall.AF_INET, &syscall.SockaddrInet4{Addr: address.Addr().As4(), Port: int(address.Port())}
	}
	syscall.ForkLock.RLock() // no child may inherit the socket before close-on-exec is set
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
