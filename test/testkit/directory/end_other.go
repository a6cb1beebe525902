// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package directory

import "syscall"

// endWithParent does nothing, because only Linux can end a process together with its parent.
func endWithParent(*syscall.SysProcAttr) {}
