// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package directory

import "syscall"

// endWithParent makes the kernel end the process when the test ends for any reason.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
