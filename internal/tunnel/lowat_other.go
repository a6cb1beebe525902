// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package tunnel

import "net"

// KeepUnsentLow does nothing on this platform. On Linux, it sets a socket option, which is only an optimization.
func KeepUnsentLow(net.Conn) {}
