// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"net"
	"syscall"
	"testing"
)

func TestKeepUnsentLow(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	KeepUnsentLow(accepted)
	socket, ok := accepted.(syscall.Conn)
	if !ok {
		t.Fatalf("%T has no socket", accepted)
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var mark int
	var failed error
	if err := raw.Control(func(fd uintptr) {
		mark, failed = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpNotSentLowat)
	}); err != nil || failed != nil {
		t.Fatalf("read the socket's option: %v, %v", err, failed)
	}
	if mark != lowWaterMark {
		t.Errorf("the kernel may hold %d unsent bytes, want %d", mark, lowWaterMark)
	}
}
