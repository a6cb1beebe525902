// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instructions

import (
	"os/exec"
	"runtime"
	"syscall"
)

// withGroup puts a command into a new process group. The group is killed as a whole. The command is also killed if its
// supervisor ends. The caller must call the returned function when the command has ended.
func withGroup(command *exec.Cmd) func() {
	runtime.LockOSThread() // the signal is sent when the thread that started the command ends
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	return runtime.UnlockOSThread
}

// detach lets a supervisor outlive the agent.
func detach(command *exec.Cmd) { command.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
