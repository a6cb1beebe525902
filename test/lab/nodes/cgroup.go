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

// A hierarchy is one tree of cgroups of the machine: all controllers in cgroup v2, some of them in each of v1.
type hierarchy struct {
	// mount is where the machine has it, and relative where below /sys/fs/cgroup.
	mount, relative string
	// options select it in a mount of v1, such as "cpu,cpuacct" or "name=systemd". They are empty in v2.
	options string
}

// hierarchies reads the trees of cgroups from a mountinfo. A machine with v1 may also have v2 for its init system,
// which is left out.
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

// cgroupOptions returns the mount options that name a hierarchy.
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

// joinCgroup moves this process into the cgroup of this name in all hierarchies, and creates the cgroup where it does
// not exist. A process that is forked into a cgroup namespace afterward has it as its root.
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

// configure makes a new cgroup fit for processes: in v1 one without processors and memory takes none.
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

// requiredControllers are the controllers of cgroup v2 that a kubelet uses.
func requiredControllers() []string { return []string{"cpu", "cpuset", "memory", "pids"} }

// enableControllers gives the cgroups below path, one of v2, the controllers that a kubelet uses.
func enableControllers(path string) error {
	wanted := "+" + strings.Join(requiredControllers(), " +")
	return os.WriteFile(filepath.Join(path, "cgroup.subtree_control"), []byte(wanted), 0o644)
}

// renewCgroup is like joinCgroup, but first removes the cgroup that a killed node may have left. For each cgroup left
// below it, a kubelet would look for a container for seconds.
func renewCgroup(all []hierarchy, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), linkLimit)
	defer cancel()
	if err := removeCgroup(ctx, all, name); err != nil {
		return err
	}
	return joinCgroup(all, name)
}

// removeCgroup removes the cgroup of that name, and all below it, in all hierarchies. Their processes have ended or are
// about to.
func removeCgroup(ctx context.Context, all []hierarchy, name string) error {
	var errs []error
	for _, h := range all {
		err := poll(ctx, func() error { return removeTree(filepath.Join(h.mount, name)) })
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// removeTree removes cgroups from the leaves on: rm -r would try to remove the files in them.
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

// poll calls try every 50 ms until it returns nil or ctx ends, and returns its last error then.
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
