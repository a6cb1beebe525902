// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// groupCommand prepares a command in a process group of its own, which is interrupted as a whole when ctx ends and
// killed if it has not ended soon after.
func groupCommand(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
	// SIGINT, since the go command removes its work folder then.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// runGroup runs a command made by groupCommand and returns the end of its output. Nothing of the group is left after.
func runGroup(cmd *exec.Cmd) ([]byte, error) {
	// The kernel ties the parent-death signal to the thread that forked, so that thread must last as long.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	output := &tail{}
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	err := cmd.Wait()
	if err != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // stragglers, if any
	}
	return output.buf, err
}
