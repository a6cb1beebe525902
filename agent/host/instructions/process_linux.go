// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instructions

import (
	"os/exec"
	"runtime"
	"syscall"
)

// withGroup makes a command run in a new process group, so that all processes of the command can be killed together.
// The kernel also kills the command if its supervisor exits. The caller must call the returned function after the
// command has exited.
func withGroup(command *exec.Cmd) func() {
	runtime.LockOSThread() // the kernel sends the signal when the thread that started the command exits
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	return runtime.UnlockOSThread
}

// detach makes a supervisor keep running after the agent has exited.
func detach(command *exec.Cmd) { command.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
