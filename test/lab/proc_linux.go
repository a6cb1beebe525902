// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// clockTick is the unit of times in /proc/<pid>/stat. The kernel reports USER_HZ = 100 to programs on all
// architectures that Go supports.
const clockTick = time.Second / 100

// dieWithParent makes the kernel kill the child when the thread that started the child ends.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// bornAt identifies the start of a process by boot and clock tick. It also reports whether the process is a zombie,
// which has ended but has not been waited for. If there is no process with this pid, bornAt returns
// os.ErrProcessDone.
func bornAt(pid int) (born string, zombie bool, err error) {
	fields, err := readStat(pid)
	if err != nil {
		return "", false, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", false, err
	}
	return fmt.Sprintf("boot %s tick %s", bytes.TrimSpace(boot), fields[statStart]), fields[statState] == "Z", nil
}

// Indexes into the result of readStat.
const (
	statState  = 0
	statUser   = 11
	statSystem = 12
	statThread = 17
	statStart  = 19
)

// readStat returns the fields of /proc/<pid>/stat after the program's name. The name may contain spaces and
// parentheses.
func readStat(pid int) ([]string, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil, os.ErrProcessDone
	}
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(content[bytes.LastIndexByte(content, ')')+1:]))
	if len(fields) <= statStart {
		return nil, fmt.Errorf("read /proc/%d/stat: %d fields are too few", pid, len(fields))
	}
	return fields, nil
}

func usageOf(pid int) (Usage, error) {
	fields, err := readStat(pid)
	if err != nil {
		return Usage{}, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Usage{}, err
	}
	user, err1 := strconv.ParseInt(fields[statUser], 10, 64)
	system, err2 := strconv.ParseInt(fields[statSystem], 10, 64)
	threads, err3 := strconv.Atoi(fields[statThread])
	rss, err4 := statusBytes(string(status), "VmRSS:")
	anon, err5 := statusBytes(string(status), "RssAnon:")
	return Usage{
		RSS: rss, Anonymous: anon, CPU: time.Duration(user+system) * clockTick, Threads: threads,
	}, errors.Join(err1, err2, err3, err4, err5)
}

// statusBytes reads a size from /proc/<pid>/status, which contains sizes in kB.
func statusBytes(status, key string) (int64, error) {
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, key); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("no %s in the process status", key)
}
