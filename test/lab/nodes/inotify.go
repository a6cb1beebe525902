// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/drover-dev/drover/test/lab"
)

const (
	// inotifyOfPlane and inotifyOfNode are the numbers of inotify instances that the programs of a control plane and
	// of a node open. A kubelet that cannot open an inotify instance exits, and does so again after each restart.
	inotifyOfPlane = 8
	inotifyOfNode  = 8
	// inotifyOfHost is the number of inotify instances for a host that becomes a node with a control plane.
	inotifyOfHost = 20

	inotifyLimit = "fs/inotify/max_user_instances"
)

// inotify contains the number of inotify instances that this user may open on the whole machine, and the number of
// instances that are open.
type inotify struct{ limit, open int }

// enough returns an error if the given number of additional instances would exceed the limit.
func (i inotify) enough(needed int) error {
	if i.open+needed <= i.limit {
		return nil
	}
	return fmt.Errorf("%w: the lab opens %d instances of inotify, and %d of the %d that a user may have are open: end other labs, or sysctl -w fs.inotify.max_user_instances=%d",
		ErrMachine, needed, i.open, i.limit, max(1024, 2*(i.open+needed)))
}

// checkInotify returns an error if starting the lab would exceed the limit. It does nothing if any part of the lab is
// running, because the running processes have already opened their instances.
func (l *Lab) checkInotify() error {
	running, err := lab.Running(l.pids())
	if err != nil || len(running) > 0 {
		return err
	}
	found, err := countInotify()
	if err != nil {
		return err
	}
	hosts := len(l.file.Hosts)
	return found.enough(len(l.file.Clusters)*inotifyOfPlane + (len(l.plan.nodes)-hosts)*inotifyOfNode + hosts*inotifyOfHost)
}

// countInotify reads the limit and counts the instances that processes of this user have opened.
func countInotify() (inotify, error) {
	content, err := os.ReadFile("/proc/sys/" + inotifyLimit)
	if err != nil {
		return inotify{}, fmt.Errorf("read the limit of inotify: %w", err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return inotify{}, fmt.Errorf("read the limit of inotify: %w", err)
	}
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return inotify{}, fmt.Errorf("count instances of inotify: %w", err)
	}
	found := inotify{limit: limit}
	for _, link := range links {
		if target, err := os.Readlink(link); err != nil || target != "anon_inode:inotify" {
			continue // the process may have ended
		}
		info, err := os.Stat(filepath.Dir(filepath.Dir(link)))
		if err != nil {
			continue
		}
		if owner, known := info.Sys().(*syscall.Stat_t); known && int(owner.Uid) == os.Geteuid() {
			found.open++
		}
	}
	return found, nil
}
