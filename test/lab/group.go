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

// groupCommand prepares a command that runs in its own process group. When ctx ends, the whole group is interrupted.
// If the group has not ended soon after that, it is killed.
func groupCommand(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
	// The go command removes its work folder on SIGINT.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// runGroup runs a command from groupCommand and returns the end of its output. No process of the group remains
// afterward.
func runGroup(cmd *exec.Cmd) ([]byte, error) {
	// The kernel ties the parent-death signal to the thread that forked, so this thread must exist until the command
	// has ended.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	output := &tail{}
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	err := cmd.Wait()
	if err != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // kill the remaining processes, if any
	}
	return output.buf, err
}
