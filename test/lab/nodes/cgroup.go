// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// hierarchy is one tree of cgroups on the machine. In cgroup v2, a single tree has all controllers. In v1, each tree
// has some of them.
type hierarchy struct {
	// mount is the path at which the machine has mounted the hierarchy. relative is its path below /sys/fs/cgroup.
	mount, relative string
	// options are the options that select the hierarchy in a v1 mount, such as "cpu,cpuacct" or "name=systemd". They
	// are empty in v2.
	options string
}

// hierarchies reads the trees of cgroups from a mountinfo file. If a machine uses v1 and also has a v2 tree for its
// init system, the v2 tree is omitted.
func hierarchies(mountinfo string) []hierarchy {
	var v1, v2 []hierarchy
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		dash := slices.Index(fields, "-")
		if dash < 5 || len(fields) < dash+4 {
			continue
		}
		relative, found := strings.CutPrefix(fields[4], "/sys/fs/cgroup")
		h := hierarchy{mount: fields[4], relative: relative}
		switch {
		case found && fields[dash+1] == "cgroup":
			h.options = cgroupOptions(fields[dash+3])
			v1 = append(v1, h)
		case found && fields[dash+1] == "cgroup2":
			v2 = append(v2, h)
		}
	}
	if len(v1) > 0 {
		return v1
	}
	return v2
}

// cgroupOptions returns the mount options that identify a hierarchy.
func cgroupOptions(options string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(options, ","), func(o string) bool {
		return o == "rw" || o == "ro" || o == "xattr" || o == "clone_children" || strings.HasPrefix(o, "release_agent=")
	}), ",")
}

func machineHierarchies() ([]hierarchy, error) {
	content, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list cgroups: %w", err)
	}
	return hierarchies(string(content)), nil
}

// joinCgroup moves this process into the cgroup with the given name in all hierarchies. It creates cgroups that do
// not exist. If a process is then forked into a new cgroup namespace, this cgroup is its root.
func joinCgroup(all []hierarchy, name string) error {
	for _, h := range all {
		if err := h.join(name); err != nil {
			return fmt.Errorf("join the cgroup %s: %w", filepath.Join(h.mount, name), err)
		}
	}
	return nil
}

func (h hierarchy) join(name string) error {
	path := h.mount
	for _, element := range strings.Split(name, "/") {
		parent := path
		path = filepath.Join(parent, element)
		if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := h.configure(parent, path); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(path, "cgroup.procs"), []byte("0"), 0o644)
}

// configure prepares a new cgroup for processes. In v1, a cgroup accepts no processes until its CPUs and memory nodes
// are set.
func (h hierarchy) configure(parent, path string) error {
	if h.isV2() && parent != h.mount {
		return enableControllers(parent)
	}
	if !slices.Contains(strings.Split(h.options, ","), "cpuset") {
		return nil
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		content, err := os.ReadFile(filepath.Join(parent, file))
		if err == nil {
			err = os.WriteFile(filepath.Join(path, file), content, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (h hierarchy) isV2() bool { return h.options == "" }

// requiredControllers returns the cgroup v2 controllers that a kubelet uses.
func requiredControllers() []string { return []string{"cpu", "cpuset", "memory", "pids"} }

// enableControllers enables the controllers that a kubelet uses for the cgroups below path, in cgroup v2.
func enableControllers(path string) error {
	wanted := "+" + strings.Join(requiredControllers(), " +")
	return os.WriteFile(filepath.Join(path, "cgroup.subtree_control"), []byte(wanted), 0o644)
}

// renewCgroup is like joinCgroup, but first removes the cgroup that a killed node may have left behind. A kubelet
// would spend seconds looking for a container for each cgroup that remains below it.
func renewCgroup(all []hierarchy, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), linkLimit)
	defer cancel()
	if err := removeCgroup(ctx, all, name); err != nil {
		return err
	}
	return joinCgroup(all, name)
}

// removeCgroup removes the cgroup with the given name in all hierarchies, and all cgroups below it. Their processes
// must have ended or be about to end.
func removeCgroup(ctx context.Context, all []hierarchy, name string) error {
	var errs []error
	for _, h := range all {
		err := poll(ctx, func() error { return removeTree(filepath.Join(h.mount, name)) })
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// removeTree removes cgroups, starting with the leaves. os.RemoveAll would try to remove the files in the cgroups.
func removeTree(path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		if entry.IsDir() {
			errs = append(errs, removeTree(filepath.Join(path, entry.Name())))
		}
	}
	if err := syscall.Rmdir(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("remove cgroup %s: %w", path, err))
	}
	return errors.Join(errs...)
}

// poll calls try every 50 ms until try returns nil. If ctx ends first, it returns the last error from try.
func poll(ctx context.Context, try func() error) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}
