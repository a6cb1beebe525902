// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// A portLease keeps a TCP port of 127.0.0.1 for a server that we start: a socket that is bound but does not listen.
// The kernel gives such a port to nobody else, while our servers, which set SO_REUSEPORT like the lease, may listen on
// it, also again after a restart. Choosing a free port and closing it would leave a gap for somebody else.
type portLease struct {
	port int
	fd   int
}

// leasePort takes the preferred port if nobody has it, else any free one.
func leasePort(preferred int) (*portLease, error) {
	if preferred != 0 && portIsFree(preferred) {
		if lease, err := bindPort(preferred); err == nil {
			return lease, nil
		}
	}
	return bindPort(0)
}

// portIsFree binds without SO_REUSEPORT: two servers that both set it would silently share the port.
func portIsFree(port int) bool {
	l, err := net.Listen("tcp4", net.JoinHostPort(loopback, strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

func bindPort(port int) (*portLease, error) {
	syscall.ForkLock.RLock() // no child may inherit the socket before it is marked
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fd)
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
	if err := unix.SetsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return err
	}
	if err := unix.Bind(l.fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	addr, err := unix.Getsockname(l.fd)
	if err != nil {
		return err
	}
	bound, ok := addr.(*unix.SockaddrInet4)
	if !ok {
		return fmt.Errorf("unexpected address %T", addr)
	}
	l.port = bound.Port
	return nil
}

func (l *portLease) release() { _ = unix.Close(l.fd) }
