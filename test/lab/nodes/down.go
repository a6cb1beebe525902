// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// downLimit is how long Down waits for the kernel to end processes and release cgroups.
const downLimit = 2 * time.Minute

// Leftovers lists what is left of a lab, apart from its folder.
type Leftovers struct {
	// PIDs are the IDs of the lab's processes. Processes inside a node are not listed, because they end with the
	// node's first process.
	PIDs []int
	// Cgroups and Mounts are the paths of the lab's cgroups and mounts.
	Cgroups, Mounts []string
}

// Empty reports whether nothing is left of the lab.
func (l Leftovers) Empty() bool { return len(l.PIDs)+len(l.Cgroups)+len(l.Mounts) == 0 }

// cgroup returns the name of the lab's cgroup. Labs with the same name in different folders have different cgroups.
func (l *Lab) cgroup() string { return cgroupOf(l.dir) }

func cgroupOf(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return "drover-lab-" + filepath.Base(dir) + "-" + hex.EncodeToString(sum[:4])
}

// FindLeftovers returns what is left of the lab in the given folder.
func FindLeftovers(dir string) (Leftovers, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Leftovers{}, err
	}
	var found Leftovers
	if found.PIDs, err = processesOf(dir); err != nil {
		return Leftovers{}, err
	}
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Leftovers{}, fmt.Errorf("list mounts: %w", err)
	}
	found.Mounts = mountsBelow(string(mountinfo), dir)
	for _, h := range hierarchies(string(mountinfo)) {
		path := filepath.Join(h.mount, cgroupOf(dir))
		if _, err := os.Stat(path); err == nil {
			found.Cgroups = append(found.Cgroups, path)
		}
	}
	return found, nil
}

// Down stops a lab and removes it completely, even if labctl was killed earlier. If dir is "", Down looks up the lab
// by name. It returns when everything is gone. It changes nothing else on the machine. If there is no lab, it does
// nothing.
func Down(ctx context.Context, dir, name string, out io.Writer) error {
	dir, err := labDir(dir, name)
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Dir(dir)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	unlock, err := lockDir(ctx, dir)
	if err != nil {
		return err
	}
	defer unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, downLimit, fmt.Errorf("not within %s", downLimit))
	defer cancel()
	return newProgress(out).during("taking down the lab in "+dir, func() error { return down(ctx, dir) })
}

func down(ctx context.Context, dir string) error {
	if err := poll(ctx, func() error { return killAll(dir) }); err != nil {
		return fmt.Errorf("take down the lab: %w", err)
	}
	all, err := machineHierarchies()
	if err != nil {
		return err
	}
	if err := removeCgroup(ctx, all, cgroupOf(dir)); err != nil {
		return fmt.Errorf("take down the lab: %w", err)
	}
	// The mounts of nodes are in the nodes' own namespaces, and have disappeared together with the namespaces. If a
	// mount were left, removing the folder would remove the mounted files.
	left, err := FindLeftovers(dir)
	if err != nil {
		return err
	}
	for _, path := range slices.Backward(left.Mounts) {
		if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
			return fmt.Errorf("take down the lab: unmount %s: %w", path, err)
		}
	}
	if left, err = FindLeftovers(dir); err != nil {
		return err
	}
	if !left.Empty() {
		return fmt.Errorf("take down the lab: it is not gone: %+v: run it again", left)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("take down the lab: %w", err)
	}
	if err := os.Remove(dir + ".lock"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("take down the lab: %w", err)
	}
	return nil
}

// killAll kills the processes of the lab. It returns an error as long as any of them exist.
func killAll(dir string) error {
	pids, err := processesOf(dir)
	if err != nil || len(pids) == 0 {
		return err
	}
	for _, pid := range pids {
		if err := killOf(dir, pid); err != nil {
			return err
		}
	}
	return fmt.Errorf("%d processes are left", len(pids))
}

// killOf kills a process if it still belongs to the lab. The PID may have been reused by another process.
func killOf(dir string, pid int) error {
	process, err := os.FindProcess(pid) // the handle stays bound to the process that is then checked
	if err != nil {
		return nil
	}
	defer func() { _ = process.Release() }()
	if !belongsTo(dir, pid) {
		return nil
	}
	if err := process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	return nil
}

// processesOf returns the IDs of the processes that have the lab's marker in their environment.
func processesOf(dir string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && pid != os.Getpid() && belongsTo(dir, pid) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// belongsTo reports whether a process is running and has the lab's marker. The environment of a process that has
// ended is empty.
func belongsTo(dir string, pid int) bool {
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return err == nil && slices.Contains(strings.Split(string(environ), "\x00"), marker+"="+dir)
}

// mountsBelow returns the mounts at or below a folder, in the order of a mountinfo file.
func mountsBelow(mountinfo, dir string) []string {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var found []string
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		path := unescape.Replace(fields[4])
		if path == dir || strings.HasPrefix(path, dir+"/") {
			found = append(found, path)
		}
	}
	return found
}
