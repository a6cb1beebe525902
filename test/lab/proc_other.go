// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package lab

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// dieWithParent does nothing, because only Linux has a parent-death signal. When the caller is killed, its children
// continue to run.
func dieWithParent(*syscall.SysProcAttr) {}

// bornAt identifies the start of a process by the start time that ps reports, in seconds.
func bornAt(pid int) (born string, zombie bool, err error) {
	output, err := exec.Command("ps", "-o", "stat=,lstart=", "-p", strconv.Itoa(pid)).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return "", false, os.ErrProcessDone
	}
	if err != nil {
		return "", false, err
	}
	state, start, _ := strings.Cut(strings.TrimSpace(string(output)), " ")
	return strings.TrimSpace(start), strings.HasPrefix(state, "Z"), nil
}

func usageOf(int) (Usage, error) { return Usage{}, errors.ErrUnsupported }
