// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"net"
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
