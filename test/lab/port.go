// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net"
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
	syscall.ForkLock.RLock() // no child may inherit the socket before it is marked
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("lease a port: %w", err)
	}
	lease := &portLease{fd: fd}
	if err := lease.bind(port); err != nil {
		lease.release()
		return nil, fmt.Errorf("lease port %d: %w", port, err)
	}
	return lease, nil
}

func (l *portLease) bind(port int) error {
	if err := syscall.SetsockoptInt(l.fd, syscall.SOL_SOCKET, soReusePort, 1); err != nil {
		return err
	}
	if err := syscall.Bind(l.fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	addr, err := syscall.Getsockname(l.fd)
	if err != nil {
		return err
	}
	bound, ok := addr.(*syscall.SockaddrInet4)
	if !ok {
		return fmt.Errorf("unexpected address %T", addr)
	}
	l.port = bound.Port
	return nil
}

func (l *portLease) release() { _ = syscall.Close(l.fd) }
