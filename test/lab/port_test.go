// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"testing"
)

func TestPortLease(t *testing.T) {
	lease, err := leasePort(0)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.release()
	address := net.JoinHostPort(loopback, strconv.Itoa(lease.port))

	t.Run("no other socket can take the port", func(t *testing.T) {
		if portIsFree(lease.port) {
			t.Error("it is free")
		}
	})
	t.Run("a server that shares ports listens on it and gets the connections, again and again", func(t *testing.T) {
		sharing := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
			var err error
			return cmpErr(c.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, soReusePort, 1) }), &err)
		}}
		for range 20 {
			l, err := sharing.Listen(context.Background(), "tcp4", address)
			if err != nil {
				t.Fatal(err)
			}
			conn, err := net.Dial("tcp4", address)
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.Close()
			_ = l.Close()
		}
	})
	t.Run("a preferred port that is taken is replaced", func(t *testing.T) {
		other, err := leasePort(lease.port)
		if err != nil {
			t.Fatal(err)
		}
		defer other.release()
		if other.port == lease.port {
			t.Error("it was leased twice")
		}
	})
	t.Run("a preferred port that is free is kept", func(t *testing.T) {
		first, err := leasePort(0)
		if err != nil {
			t.Fatal(err)
		}
		first.release()
		again, err := leasePort(first.port)
		if err != nil {
			t.Fatal(err)
		}
		defer again.release()
		if again.port != first.port {
			t.Errorf("got %d, want %d", again.port, first.port)
		}
	})
}

func cmpErr(err error, inner *error) error {
	if err != nil {
		return err
	}
	return *inner
}

func TestFreeAddress(t *testing.T) {
	for _, host := range []string{loopback, "::1"} {
		t.Run(host, func(t *testing.T) {
			first, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
			if err != nil {
				t.Skipf("this machine has no address %s: %v", host, err)
			}
			_ = first.Close()
			address, err := FreeAddress(host)
			if err != nil {
				t.Fatal(err)
			}
			for range 20 { // a server that starts again and again, with connections that its end leaves behind
				l, err := net.Listen("tcp", address)
				if err != nil {
					t.Fatal(err)
				}
				conn, err := net.Dial("tcp", address)
				if err != nil {
					t.Fatal(err)
				}
				accepted, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				_, _ = accepted.Close(), conn.Close()
				_ = l.Close()
			}
			if conn, err := net.Dial("tcp", address); err == nil {
				_ = conn.Close()
				t.Error("what keeps the address accepts connections")
			}
		})
	}
	t.Run("no socket that leaves the choice to the kernel gets it", func(t *testing.T) {
		address, err := FreeAddress(loopback)
		if err != nil {
			t.Fatal(err)
		}
		port := netip.MustParseAddrPort(address).Port()
		other, err := net.Listen("tcp", net.JoinHostPort(loopback, "0"))
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		var refused error
		only := func(_, _ string, c syscall.RawConn) error { // IP_LOCAL_PORT_RANGE of Linux 6.3: the kernel has no other port to choose
			return cmpErr(c.Control(func(fd uintptr) {
				refused = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, 51, int(port)|int(port)<<16)
			}), &refused)
		}
		listening := net.ListenConfig{Control: only}
		listening.SetMultipathTCP(false) // which does not know the option
		if l, err := listening.Listen(t.Context(), "tcp", net.JoinHostPort(loopback, "0")); err == nil {
			t.Errorf("a server listens on %s, which was given already", l.Addr())
			_ = l.Close()
		} else if refused != nil {
			t.Skip("this kernel cannot be asked for a port of a range: ", refused)
		}
		if conn, err := (&net.Dialer{Control: only}).DialContext(t.Context(), "tcp", other.Addr().String()); err == nil {
			t.Errorf("a client connects from %s, which was given already", conn.LocalAddr())
			_ = conn.Close()
		}
	})
}
