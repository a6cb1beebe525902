// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instructions

import (
	"os/exec"
	"runtime"
	"syscall"
)

// withGroup makes a command the first of a group of processes that is killed as a whole, and that ends with its
// supervisor. The caller calls the function that is returned when the command has ended.
func withGroup(command *exec.Cmd) func() {
	runtime.LockOSThread() // the signal is sent when the thread ends that started the command
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	return runtime.UnlockOSThread
}

// detach lets a supervisor outlive the agent.
func detach(command *exec.Cmd) { command.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
