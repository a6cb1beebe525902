// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrMachine is returned when this machine cannot run nodes. The error says what is missing and what to do.
var ErrMachine = errors.New("this machine cannot run nodes")

// machine describes the properties of this machine that matter for running nodes.
type machine struct {
	root        bool
	missing     []string // names of missing programs
	cni         string   // folder of the CNI plugins, or "" if there is none
	hierarchies []hierarchy
	// controllers are the controllers that cgroup v2 enables below its root.
	controllers []string
	filesystems string
	// namespaces is the error from creating namespaces, or nil.
	namespaces error
}

// Check returns nil if this machine can run nodes. Otherwise, it returns an error that wraps ErrMachine, which tests
// use as the reason to skip.
func Check() error {
	m, err := inspect()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrMachine, err)
	}
	return m.check()
}

// check returns an error that lists everything that is missing.
func (m machine) check() error {
	var faults []string
	if !m.root {
		return fmt.Errorf("%w: it needs root: run it with sudo", ErrMachine)
	}
	if len(m.missing) > 0 {
		faults = append(faults, fmt.Sprintf("programs are missing (%s): apt-get install containerd runc nftables iproute2 util-linux, and install Go", strings.Join(m.missing, ", ")))
	}
	if m.cni == "" {
		faults = append(faults, fmt.Sprintf("no CNI plugins are in %s: apt-get install containernetworking-plugins", strings.Join(cniFolders(), " or ")))
	}
	if m.namespaces != nil {
		faults = append(faults, fmt.Sprintf("namespaces cannot be made (%v): in a container, run it with --privileged", m.namespaces))
	}
	if !strings.Contains(m.filesystems, "\toverlay\n") {
		faults = append(faults, "the kernel has no overlayfs: modprobe overlay")
	}
	return joinFaults(append(faults, m.cgroupFaults()...))
}

func (m machine) cgroupFaults() []string {
	if len(m.hierarchies) == 0 {
		return []string{"no cgroups are mounted at /sys/fs/cgroup: mount -t cgroup2 cgroup2 /sys/fs/cgroup"}
	}
	have := m.controllers
	if !m.hierarchies[0].isV2() {
		for _, h := range m.hierarchies {
			have = append(have, strings.Split(h.options, ",")...)
		}
	}
	var absent []string
	for _, name := range requiredControllers() {
		if !slices.Contains(have, name) {
			absent = append(absent, name)
		}
	}
	if len(absent) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("cgroup controllers are missing (%s): in v2, write +%s to /sys/fs/cgroup/cgroup.subtree_control; in v1, mount them",
		strings.Join(absent, ", "), strings.Join(absent, " +"))}
}

func joinFaults(faults []string) error {
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("%w:\n- %s", ErrMachine, strings.Join(faults, "\n- "))
}

// cniFolders returns the folders in which distributions install CNI plugins.
func cniFolders() []string { return []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"} }

func requiredPrograms() []string {
	return []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc", "ip", "nft", "nsenter", "unshare", "mount", "go"}
}

func inspect() (machine, error) {
	m := machine{root: os.Geteuid() == 0}
	for _, name := range requiredPrograms() {
		if _, err := exec.LookPath(name); err != nil {
			m.missing = append(m.missing, name)
		}
	}
	for _, dir := range cniFolders() {
		if _, err := os.Stat(filepath.Join(dir, "ptp")); err == nil && m.cni == "" {
			m.cni = dir
		}
	}
	var err error
	if m.hierarchies, err = machineHierarchies(); err != nil {
		return m, err
	}
	if content, err := os.ReadFile("/sys/fs/cgroup/cgroup.subtree_control"); err == nil {
		m.controllers = strings.Fields(string(content))
	}
	content, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return m, err
	}
	m.filesystems = string(content)
	if m.root {
		m.namespaces = command("unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "ip", "link", "set", "lo", "up")
	}
	return m, nil
}

// snapshotterFor returns the containerd snapshotter to use in dir. If dir is on an overlay file system, overlayfs
// cannot be used, because overlays cannot be stacked.
func snapshotterFor(dir string) string {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err == nil && stat.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return "native"
	}
	return "overlayfs"
}
