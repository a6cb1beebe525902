// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package directory

import "syscall"

// endWithParent has the kernel end the process when the test ends, however it does.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
