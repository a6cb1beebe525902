// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	pidSuffix  = ".pid"
	bornSuffix = ".born"
)

// ErrRunning is returned when a program that should be started is already running.
var ErrRunning = errors.New("already running")

// record is the content of a pid file and of a second file next to it, which contains the start time of the process.
// The start time is needed because the kernel reuses pids. There are two files so that `kill $(cat x.pid)` works.
type record struct {
	path string
	pid  int
	// born identifies the start of the process, even across reboots.
	born string
}

func bornFile(pidFile string) string { return strings.TrimSuffix(pidFile, pidSuffix) + bornSuffix }

// writeRecord writes the pid file of a running process. It writes the file with the start time first, so that a
// reader that finds a pid can verify it.
func writeRecord(path string, pid int) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write pid file: %w", err)
	}
	born, _, err := bornAt(pid)
	if errors.Is(err, os.ErrProcessDone) {
		return nil // the process has already ended; callers that wait for it will notice
	}
	if err != nil {
		return fmt.Errorf("write pid file: %w", err)
	}
	for _, file := range []struct{ path, content string }{{bornFile(path), born}, {path, strconv.Itoa(pid)}} {
		if err := writeFileAtomic(file.path, []byte(file.content+"\n"), 0o644); err != nil {
			return fmt.Errorf("write pid file: %w", err)
		}
	}
	return nil
}

// removeRecord removes the files that writeRecord has written. A missing file is not an error.
func removeRecord(path string) error {
	for _, file := range []string{path, bornFile(path)} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove pid file: %w", err)
		}
	}
	return nil
}

func readRecord(path string) (record, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return record{}, fmt.Errorf("read pid file: %w", err)
	}
	text := strings.TrimSpace(string(content))
	pid, err := strconv.Atoi(text)
	if err != nil || pid <= 1 {
		return record{}, fmt.Errorf("read pid file %s: %.40q is not a pid", path, text)
	}
	born, err := os.ReadFile(bornFile(path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // without the second file, the process cannot be identified
		return record{}, fmt.Errorf("read pid file: %w", err)
	}
	return record{path: path, pid: pid, born: strings.TrimSpace(string(born))}, nil
}

// name returns the name of the pid file without ".pid".
func (r record) name() string { return strings.TrimSuffix(filepath.Base(r.path), pidSuffix) }

// find returns a handle for the recorded process. If the process has ended, find returns nil, even if another process
// now has the same pid.
func (r record) find() (*os.Process, error) {
	// The handle must be opened first, because it stays bound to the process that is then checked.
	handle, err := os.FindProcess(r.pid)
	if err != nil {
		return nil, fmt.Errorf("find pid %d of %s: %w", r.pid, r.path, err)
	}
	born, zombie, err := bornAt(r.pid)
	if errors.Is(err, os.ErrProcessDone) || (err == nil && (zombie || born != r.born)) {
		return nil, handle.Release()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("identify pid %d of %s: %w", r.pid, r.path, err), handle.Release())
	}
	return handle, nil
}

// records reads the pid files in a folder, and returns the newest first. A record that cannot be read is reported as
// an error and omitted.
func records(dir string) ([]record, error) {
	names, err := fs.Glob(os.DirFS(dir), "*"+pidSuffix) // the path of the folder must not be part of the pattern
	if err != nil {
		return nil, fmt.Errorf("list pid files: %w", err)
	}
	var found []record
	var errs []error
	written := map[string]time.Time{}
	for _, name := range names {
		path := filepath.Join(dir, name)
		r, err := readRecord(path)
		info, statErr := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(statErr, fs.ErrNotExist) {
			continue // its owner has just removed the file
		}
		if err := cmp.Or(err, statErr); err != nil {
			errs = append(errs, err)
			continue
		}
		written[path] = info.ModTime()
		found = append(found, r)
	}
	slices.SortFunc(found, func(a, b record) int { return written[b.path].Compare(written[a.path]) })
	return found, errors.Join(errs...)
}

// Running returns the names of the running programs that have a pid file in pidDir. A program's name is the name of
// its pid file without ".pid".
func Running(pidDir string) ([]string, error) {
	all, err := records(pidDir)
	var names []string
	errs := []error{err}
	for _, r := range all {
		handle, err := r.find()
		if handle != nil {
			names = append(names, r.name())
			err = errors.Join(err, handle.Release())
		}
		errs = append(errs, err)
	}
	return names, errors.Join(errs...)
}

// StopDetached ends the processes that have a pid file in pidDir, and removes the files. If names are given, it ends
// only the processes with these names, as returned by Running. It ends the newest processes first, because they
// depend on the older ones. A process that has not ended after 5 s is killed. A process that has reused a recorded
// pid is left alone. Calling StopDetached again has no effect.
func StopDetached(ctx context.Context, pidDir string, names ...string) error {
	all, err := records(pidDir)
	errs := []error{err}
	for _, r := range all {
		if len(names) == 0 || slices.Contains(names, r.name()) {
			errs = append(errs, r.stop(ctx))
		}
	}
	return errors.Join(errs...)
}

func (r record) stop(ctx context.Context) error {
	const grace = 5 * time.Second
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		gone, err := r.signalAndWait(ctx, sig, grace)
		if err != nil {
			return fmt.Errorf("stop pid %d of %s: %w", r.pid, r.path, err)
		}
		if gone {
			return removeRecord(r.path)
		}
	}
	return fmt.Errorf("stop pid %d of %s: it survived being killed", r.pid, r.path)
}

// signalAndWait sends a signal, and reports whether the process ended within the given time. It polls the process,
// because the process is not a child of the caller.
func (r record) signalAndWait(ctx context.Context, sig syscall.Signal, limit time.Duration) (bool, error) {
	handle, err := r.find()
	if handle == nil {
		return err == nil, err
	}
	defer func() { _ = handle.Release() }()
	if err := handle.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return false, err
	}
	_ = handle.Signal(syscall.SIGCONT) // a paused process cannot handle signals
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		born, zombie, err := bornAt(r.pid)
		if errors.Is(err, os.ErrProcessDone) || (err == nil && (zombie || born != r.born)) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-deadline.C:
			return false, nil
		case <-ticker.C:
		}
	}
}
