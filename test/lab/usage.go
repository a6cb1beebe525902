// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"time"
)

// Usage describes the resources that a process uses.
type Usage struct {
	// RSS is the resident memory in bytes, including pages of the binary. Anonymous is the part that is not backed by
	// files.
	RSS, Anonymous int64
	// CPU is the user and system time since the start, with a resolution of 10 ms.
	CPU time.Duration
	// Threads is the number of OS threads.
	Threads int
}

// Usage returns the current resource usage of the process. On platforms other than Linux, it returns
// errors.ErrUnsupported. If the process has ended, it returns os.ErrProcessDone.
func (p *Process) Usage() (Usage, error) {
	u, err := usageOf(p.PID())
	if err != nil {
		return Usage{}, fmt.Errorf("read the usage of %s: %w", p.command.Name, err)
	}
	return u, nil
}
