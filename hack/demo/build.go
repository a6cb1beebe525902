// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// build compiles Drover's programs in the same way as "make build", under names that distinguish them from other
// programs in ps. Go links a program again only if its previous output is missing or outdated. For this reason, the
// programs are written to the user's cache, because "down" does not remove this cache.
func (d *demo) build(ctx context.Context) (string, error) {
	version := d.version(ctx)
	if err := os.MkdirAll(filepath.Dir(d.files.bin(manager)), 0o700); err != nil {
		return "", err
	}
	cache, unlock, err := lockBuilds()
	if err != nil {
		return "", err
	}
	defer unlock()
	own := nodes
	if d.state.Nodes == realNodes {
		own = pod
	}
	// A single command reads the packages that the programs share only once.
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w -X main.version="+version,
		"-o", cache+"/", ".", "./agent", "./hack/demo/"+own, "./cmd/kubectl-drover")
	cmd.Dir = d.files.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = d.out // the first build downloads modules for minutes and prints their names
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: see above what the compiler says", err)
	}
	for built, name := range map[string]string{
		"drover": "drover-" + manager, agent: "drover-" + agent, own: "drover-" + own, plugin: plugin,
	} {
		if err := install(filepath.Join(cache, built), d.files.bin(name)); err != nil {
			return "", err
		}
	}
	return version, nil
}

// lockBuilds waits until no other demo is building, and returns the folder of built programs. The demos of all source
// trees share this folder. The caller holds the lock until it calls unlock.
func lockBuilds() (dir string, unlock func(), err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", nil, fmt.Errorf("find the cache folder: %w: set HOME or XDG_CACHE_HOME", err)
	}
	dir = filepath.Join(cache, "drover", "demo")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, fmt.Errorf("make folder: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return "", nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), file.Close())
	}
	return dir, func() { _ = file.Close() }, nil
}

// install copies a program, unless the copy is up to date. A running process continues to use the previous copy.
func install(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("read program: %w", err)
	}
	if former, err := os.ReadFile(to); err != nil || !bytes.Equal(former, content) {
		if err := writeFile(to, content); err != nil {
			return err
		}
	}
	return os.Chmod(to, 0o700)
}

// version computes the version in the same way as the Makefile, so that both builds have the same version.
func (d *demo) version(ctx context.Context) string {
	if v := os.Getenv("VERSION"); v != "" {
		return v
	}
	cmd := exec.CommandContext(ctx, "git", "describe", "--tags", "--dirty")
	cmd.Dir = d.files.root
	described, _ := cmd.Output() // if there is no tag or no git, the default version is used
	return cmp.Or(strings.TrimSpace(string(described)), "v0.1.0-dev")
}
