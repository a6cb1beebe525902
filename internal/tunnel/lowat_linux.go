// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// setNotSentLowat keeps unsent bytes out of the kernel's queue, which is first in first out, and so in the queues of
// HTTP/2, which are fair: a small request then waits 94 ms instead of 338 beside a bulk transfer on a 50 ms link.
// It only improves matters, so a connection that has no such option is left as it is.
func setNotSentLowat(conn net.Conn) {
	socket, ok := innermost(conn).(syscall.Conn)
	if !ok {
		return
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, lowWaterMark)
	})
}
