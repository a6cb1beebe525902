// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"net"
	"syscall"
)

// tcpNotSentLowat is TCP_NOTSENT_LOWAT of linux/tcp.h, which package syscall does not define.
const tcpNotSentLowat = 25

// KeepUnsentLow keeps unsent bytes in the queues of HTTP/2, which are fair, rather than in the kernel's queue, which is
// first in, first out. On a link with a latency of 50 ms and a bulk transfer, a small request then waits 94 ms instead
// of 338 ms. Without the option, the kernel also takes megabytes for a peer that does not read at all. The option is
// only an improvement, so KeepUnsentLow ignores connections that do not support it.
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
