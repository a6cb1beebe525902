// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package tunnel

import "net"

// KeepUnsentLow does nothing here: the option differs from system to system and only improves matters.
func KeepUnsentLow(net.Conn) {}
