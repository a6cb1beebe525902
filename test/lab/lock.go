// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// fileLock is an exclusive lock between processes. When the process that holds the lock ends, the kernel releases the
// lock.
type fileLock struct{ file *os.File }

// acquire acquires the lock at path. While another process holds the lock, acquire reports which process it is
// waiting for.
func acquire(ctx context.Context, path string, out *reporter) (*fileLock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the cache: %w", err)
	}
	lock := &fileLock{file: f}
	if held, err := lock.try(); err != nil || held {
		return lock.orClose(err)
	}
	holder, _ := os.ReadFile(path)
	what := "waiting for " + describeHolder(string(holder))
	return lock.orClose(out.during(what, func() error { return lock.wait(ctx) }))
}

// wait polls the lock, because a blocking flock could not be interrupted when ctx ends.
func (l *fileLock) wait(ctx context.Context) error {
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		if held, err := l.try(); err != nil || held {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("lock the cache: %w", context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// try acquires the lock if it is free, and writes this process's pid into the file for processes that wait for the
// lock.
func (l *fileLock) try() (bool, error) {
	err := syscall.Flock(int(l.file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, syscall.EINTR) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", l.file.Name(), err)
	}
	note := fmt.Sprintf("pid %d since %s\n", os.Getpid(), time.Now().Format(time.TimeOnly))
	if err := l.file.Truncate(0); err != nil {
		return true, fmt.Errorf("lock %s: %w", l.file.Name(), err)
	}
	if _, err := l.file.WriteAt([]byte(note), 0); err != nil {
		return true, fmt.Errorf("lock %s: %w", l.file.Name(), err)
	}
	return true, nil
}

func (l *fileLock) orClose(err error) (*fileLock, error) {
	if err != nil {
		l.release()
		return nil, err
	}
	return l, nil
}

// release releases the lock by closing the file.
func (l *fileLock) release() { _ = l.file.Close() }

func describeHolder(note string) string {
	if note = strings.TrimSpace(note); note != "" {
		return "another run (" + note + ") that fills the same cache"
	}
	return "another run that fills the same cache"
}
