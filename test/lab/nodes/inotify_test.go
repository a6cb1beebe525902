// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestInotifyIsEnough(t *testing.T) {
	if err := (inotify{limit: 128, open: 64}).enough(64); err != nil {
		t.Errorf("64 more where 64 of 128 are open: %v, want no error", err)
	}
	err := inotify{limit: 128, open: 65}.enough(64)
	if !errors.Is(err, ErrMachine) || !strings.Contains(err.Error(), "fs.inotify.max_user_instances=1024") {
		t.Errorf("64 more where 65 of 128 are open: %v, want ErrMachine and what to set", err)
	}
}

func TestOpenInstancesOfInotifyCount(t *testing.T) {
	const opened = 3
	for range opened {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			t.Skipf("this machine has no instance of inotify left: %v", err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
	}
	found, err := countInotify()
	if err != nil || found.limit <= 0 || found.open < opened {
		t.Errorf("with %d instances of this process the count is %+v, %v", opened, found, err)
	}
}
