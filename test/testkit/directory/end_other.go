// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package directory

import "syscall"

// endWithParent does nothing: only Linux can end a process with its parent.
func endWithParent(*syscall.SysProcAttr) {}
