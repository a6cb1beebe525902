// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// kernelSettings returns the settings of the whole machine that a kubelet changes if they have other values. The node
// reads the expected values from files, so that the machine's settings are not changed.
func kernelSettings() map[string]string {
	return map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	}
}

type mounting struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

func (m mounting) do() error {
	if err := syscall.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
		return fmt.Errorf("mount %s at %s: %w", m.source, m.target, err)
	}
	return nil
}

// bindReadOnly makes a file or folder of the machine available in the node.
func bindReadOnly(source, target string) error {
	if err := (mounting{source: source, target: target, flags: syscall.MS_BIND | syscall.MS_REC}).do(); err != nil {
		return err
	}
	return mounting{source: source, target: target, flags: syscall.MS_BIND | syscall.MS_REMOUNT | syscall.MS_RDONLY}.do()
}

// enterRoot creates the node's root file system and changes into it. No other process may be in this process's mount
// namespace.
func (s nodeSpec) enterRoot(all []hierarchy) error {
	// This must come first, so that no later mount affects the machine.
	if err := (mounting{source: "none", target: "/", flags: syscall.MS_REC | syscall.MS_PRIVATE}).do(); err != nil {
		return err
	}
	root := s.root()
	if err := (mounting{source: root, target: root, flags: syscall.MS_BIND}).do(); err != nil {
		return err
	}
	for _, step := range []func(string) error{s.mountPrograms, mountKernel, mountDevices, func(root string) error { return mountCgroups(root, all) }} {
		if err := step(root); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "old"), 0o700); err != nil {
		return err
	}
	if err := syscall.PivotRoot(root, filepath.Join(root, "old")); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := syscall.Unmount("/old", syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the machine's root: %w", err)
	}
	// Pods may request mounts that propagate into or out of the node.
	return errors.Join(os.Remove("/old"), mounting{source: "none", target: "/", flags: syscall.MS_REC | syscall.MS_SHARED}.do())
}

// mountPrograms mounts the machine's programs and libraries, and the lab's programs in /opt/lab.
func (s nodeSpec) mountPrograms(root string) error {
	for _, name := range []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc/alternatives"} {
		info, err := os.Lstat("/" + name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		target := filepath.Join(root, name)
		switch {
		case err != nil:
			return err
		case info.Mode()&fs.ModeSymlink != 0:
			err = copyLink("/"+name, target)
		case s.Host && name == "usr":
			err = mountOwn("/"+name, target, filepath.Join(root, "var/own"))
		default:
			err = errors.Join(os.MkdirAll(target, 0o755), bindReadOnly("/"+name, target))
		}
		if err != nil {
			return err
		}
	}
	for name, path := range s.Programs {
		target := filepath.Join(root, "opt/lab", name)
		if err := errors.Join(touch(target), bindReadOnly(path, target)); err != nil {
			return err
		}
	}
	plugins := filepath.Join(root, "opt/cni/bin")
	if s.Host { // network plugins install their programs there
		return mountOwn(s.CNI, plugins, filepath.Join(root, "var/own/cni"))
	}
	return errors.Join(os.MkdirAll(plugins, 0o755), bindReadOnly(s.CNI, plugins))
}

// mountOwn mounts a folder of the machine at target as an overlay. Changes are stored in the folder given by own.
func mountOwn(source, target, own string) error {
	upper, work := filepath.Join(own, "upper"), filepath.Join(own, "work")
	for _, dir := range []string{target, upper, work} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return mounting{source: "overlay", target: target, kind: "overlay", data: "lowerdir=" + source + ",upperdir=" + upper + ",workdir=" + work}.do()
}

func copyLink(from, to string) error {
	target, err := os.Readlink(from)
	if err != nil {
		return err
	}
	if err := os.Symlink(target, to); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func touch(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	return f.Close()
}

// mountKernel mounts the kernel's file systems for the node's namespaces.
func mountKernel(root string) error {
	const plain = syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC
	for _, m := range []mounting{
		{source: "proc", target: "proc", kind: "proc", flags: plain},
		{source: "sysfs", target: "sys", kind: "sysfs", flags: plain},
		{source: "tmpfs", target: "run", kind: "tmpfs", flags: syscall.MS_NOSUID | syscall.MS_NODEV, data: "mode=755"},
		{source: "tmpfs", target: "tmp", kind: "tmpfs", flags: syscall.MS_NOSUID | syscall.MS_NODEV, data: "mode=1777"},
	} {
		m.target = filepath.Join(root, m.target)
		if err := errors.Join(os.MkdirAll(m.target, 0o755), m.do()); err != nil {
			return err
		}
	}
	for name, value := range kernelSettings() {
		source := filepath.Join(root, "run/kernel", strings.ReplaceAll(name, "/", "."))
		if err := os.MkdirAll(filepath.Dir(source), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(source, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := (mounting{source: source, target: filepath.Join(root, "proc/sys", name), flags: syscall.MS_BIND}).do(); err != nil {
			return err
		}
	}
	return nil
}

// mountDevices creates the few devices that programs expect. It does not create devices for the machine's disks.
func mountDevices(root string) error {
	dev := filepath.Join(root, "dev")
	for _, m := range []mounting{
		{source: "tmpfs", target: dev, kind: "tmpfs", flags: syscall.MS_NOSUID, data: "mode=755"},
		{source: "devpts", target: dev + "/pts", kind: "devpts", flags: syscall.MS_NOSUID | syscall.MS_NOEXEC, data: "newinstance,ptmxmode=0666,mode=0620"},
		{source: "tmpfs", target: dev + "/shm", kind: "tmpfs", flags: syscall.MS_NOSUID | syscall.MS_NODEV, data: "mode=1777"},
		{source: "mqueue", target: dev + "/mqueue", kind: "mqueue", flags: syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC},
	} {
		if err := errors.Join(os.MkdirAll(m.target, 0o755), m.do()); err != nil {
			return err
		}
	}
	for name, number := range map[string]int{"null": 1<<8 | 3, "zero": 1<<8 | 5, "full": 1<<8 | 7, "random": 1<<8 | 8, "urandom": 1<<8 | 9, "kmsg": 1<<8 | 11, "tty": 5 << 8} {
		path := filepath.Join(dev, name)
		if err := syscall.Mknod(path, syscall.S_IFCHR|0o666, number); err != nil {
			return fmt.Errorf("make %s: %w", path, err)
		}
		if err := os.Chmod(path, 0o666); err != nil { // Mknod applies the umask
			return err
		}
	}
	for name, target := range map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(target, filepath.Join(dev, name)); err != nil {
			return err
		}
	}
	return nil
}

// mountCgroups mounts each hierarchy with the node's own cgroup as its root. This works because the process is in its
// own cgroup namespace.
func mountCgroups(root string, all []hierarchy) error {
	base := filepath.Join(root, "sys/fs/cgroup")
	if len(all) == 1 && all[0].options == "" {
		return mounting{source: "cgroup2", target: base, kind: "cgroup2"}.do()
	}
	if err := (mounting{source: "tmpfs", target: base, kind: "tmpfs", data: "mode=755"}).do(); err != nil {
		return err
	}
	for _, h := range all {
		m := mounting{source: "cgroup", target: filepath.Join(base, h.relative), kind: "cgroup", data: h.options}
		if err := errors.Join(os.MkdirAll(m.target, 0o755), m.do()); err != nil {
			return err
		}
	}
	return nil
}
