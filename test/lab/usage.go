// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"time"
)

// Usage is what a process uses.
type Usage struct {
	// RSS is the resident memory in bytes, pages of the binary included; Anonymous is the part that is not from files.
	RSS, Anonymous int64
	// CPU is the user and system time since the start, in steps of 10 ms.
	CPU time.Duration
	// Threads counts OS threads.
	Threads int
}

// Usage reads what the process uses now. It needs Linux: elsewhere it returns errors.ErrUnsupported, and
// os.ErrProcessDone once the process has ended.
func (p *Process) Usage() (Usage, error) {
	u, err := usageOf(p.PID())
	if err != nil {
		return Usage{}, fmt.Errorf("read the usage of %s: %w", p.command.Name, err)
	}
	return u, nil
}
