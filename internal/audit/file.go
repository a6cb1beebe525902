// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// file is a log file that is rotated when it is full. Only the writer of a Log uses it.
type file struct {
	settings Settings
	current  *os.File
	size     int64
}

func (f *file) open() error {
	current, err := os.OpenFile(f.settings.Path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	about, err := current.Stat()
	if err != nil {
		return errors.Join(err, current.Close())
	}
	f.current, f.size = current, about.Size()
	return nil
}

// Write implements io.Writer. It never splits the data of one call across two files.
func (f *file) Write(p []byte) (int, error) {
	if f.settings.MaxSize > 0 && f.size > 0 && f.size+int64(len(p)) > f.settings.MaxSize {
		if err := f.rotate(); err != nil {
			return 0, fmt.Errorf("begin a new file: %w", err)
		}
	}
	if f.current == nil {
		if err := f.open(); err != nil {
			return 0, err
		}
	}
	n, err := f.current.Write(p)
	f.size += int64(n)
	return n, err
}

// rotate increments the number in the name of every file. The oldest file is overwritten.
func (f *file) rotate() error {
	if err := f.Close(); err != nil {
		return err
	}
	name := func(n int) string {
		if n == 0 {
			return f.settings.Path
		}
		return fmt.Sprintf("%s.%d", f.settings.Path, n)
	}
	if f.settings.MaxBackups <= 0 {
		return os.Remove(f.settings.Path)
	}
	for n := f.settings.MaxBackups - 1; n >= 0; n-- {
		if err := os.Rename(name(n), name(n+1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Close implements io.Closer.
func (f *file) Close() error {
	if f.current == nil {
		return nil
	}
	current := f.current
	f.current = nil
	return current.Close()
}
