// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instructions

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-dev/drover/internal/protocol"
)

// Files in an instruction's directory in the journal.
const (
	fileInstruction = "instruction.json" // the instruction to run; removed when the instruction has ended
	fileLock        = "lock"             // locked by the supervisor while the instruction runs
	fileBegun       = "begun"            // holds the digest; created once, before the instruction runs
	fileResult      = "result.json"      // created once, after the instruction has ended
	fileEnd         = "end"              // tells the supervisor to end the instruction
	fileReserved    = "result.reserved"  // reserves disk space for the result, and becomes the result
)

// maxEntries is the maximum number of instructions in the journal. A host that has run this many instructions accepts
// no further instructions until it has been cleaned.
const maxEntries = 10000

// Result is the result of an instruction that has ended.
type Result struct {
	// ExitCode is the exit code of the command, or -1 if it did not start or was killed.
	ExitCode int `json:"exitCode"`
	// Error explains why there is no exit code. It is empty if there is an exit code.
	Error string    `json:"error,omitempty"`
	Ended time.Time `json:"ended"`
	// Output is the end of the command's output, unredacted.
	Output string `json:"output,omitempty"`
}

// state is the state of an entry in the journal.
type state int

const (
	unknown     state = iota // the instruction has never started
	running                  // the instruction's supervisor is running
	interrupted              // the instruction has started, but is not running and has no result
	ended                    // the instruction has a result
)

// journal records which one-time instructions have started on this host, and how they ended.
type journal struct{ folder string }

func (j journal) entry(id string) string { return filepath.Join(j.folder, id) }

// look returns the state of an instruction, its result if it has ended, and its digest when it started.
func (j journal) look(id string) (state, Result, string, error) {
	entry := j.entry(id)
	digest, err := os.ReadFile(filepath.Join(entry, fileBegun))
	if errors.Is(err, fs.ErrNotExist) {
		return unknown, Result{}, "", nil
	} else if err != nil {
		return unknown, Result{}, "", fmt.Errorf("journal: %w", err)
	}
	// The lock must be checked before the result is read, because the supervisor writes the result before it releases
	// the lock.
	held, err := isLocked(filepath.Join(entry, fileLock))
	if err != nil {
		return unknown, Result{}, "", err
	}
	raw, err := os.ReadFile(filepath.Join(entry, fileResult))
	switch {
	case errors.Is(err, fs.ErrNotExist) && held:
		return running, Result{}, string(digest), nil
	case errors.Is(err, fs.ErrNotExist):
		return interrupted, Result{}, string(digest), nil
	case err != nil:
		return unknown, Result{}, "", fmt.Errorf("journal: %w", err)
	}
	var result Result
	if err := json.Unmarshal(raw, &result); err != nil {
		return unknown, Result{}, "", fmt.Errorf("journal: %s of instruction %s cannot be read: %w", fileResult, id, err)
	}
	return ended, result, string(digest), nil
}

// busy reports whether any instruction is running, except for the given instructions.
func (j journal) busy(but []protocol.HostInstruction) bool {
	known, _ := os.ReadDir(j.folder) // if the directory cannot be read, the start of an instruction returns the error
	for _, entry := range known {
		if slices.ContainsFunc(but, func(i protocol.HostInstruction) bool { return i.ID == entry.Name() }) {
			continue
		}
		if held, err := isLocked(filepath.Join(j.entry(entry.Name()), fileLock)); held && err == nil {
			return true
		}
	}
	return false
}

// stopStarts tells supervisors to end running instructions that start a service, if the next instructions begin by
// stopping that service.
func (j journal) stopStarts(next []protocol.HostInstruction) error {
	if len(next) == 0 || !strings.HasPrefix(next[0].ID, protocol.HostStopPrefix) {
		return nil
	}
	known, err := os.ReadDir(j.folder)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	var errs []error
	for _, entry := range known {
		if !strings.HasPrefix(entry.Name(), protocol.HostStartPrefix) {
			continue
		}
		held, err := isLocked(filepath.Join(j.entry(entry.Name()), fileLock))
		if held && err == nil {
			err = os.WriteFile(filepath.Join(j.entry(entry.Name()), fileEnd), nil, 0o600)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// prepare writes the files that a supervisor needs for an instruction. It does nothing if a supervisor has already been
// started, possibly by an agent that has since been killed. That supervisor writes its result to the space that is
// already reserved.
func (j journal) prepare(instruction protocol.HostInstruction) error {
	known, err := os.ReadDir(j.folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("journal: %w", err)
	}
	entry := j.entry(instruction.ID)
	if _, err := os.Stat(entry); errors.Is(err, fs.ErrNotExist) && len(known) >= maxEntries {
		return fmt.Errorf("this host has run %d instructions, and its journal has no room for more: clean the host and join it again", maxEntries)
	}
	raw, err := json.Marshal(instruction)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if err := makeFolder(entry); err != nil {
		return err
	}
	held, err := lock(filepath.Join(entry, fileLock))
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil // a supervisor is running the instruction
	} else if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	defer held.Close()
	if _, err := os.Stat(filepath.Join(entry, fileBegun)); err == nil {
		return nil // the instruction has ended in the meantime
	}
	if err := reserve(entry); err != nil {
		return fmt.Errorf("journal: make room for the result: %w", err)
	}
	return WriteDurably(filepath.Join(entry, fileInstruction), raw)
}

// reservedSize exceeds the size of any result, in bytes. A byte of output can take up to six bytes in JSON.
const reservedSize = 8 * outputTail

// reserve reserves disk space for the result of an instruction, so the result can be written even if the instruction
// fills the disk. The content is random, because some file systems allocate no space for zeros.
func reserve(entry string) (err error) {
	path := filepath.Join(entry, fileReserved)
	if info, err := os.Stat(path); err == nil && info.Size() == reservedSize {
		return nil
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(path)
		}
	}()
	_, err = io.CopyN(file, rand.Reader, reservedSize)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// writeResult writes the result of an instruction into the reserved space.
func writeResult(entry string, result Result) error {
	raw, err := json.Marshal(result)
	for err == nil && len(raw) > reservedSize && result.Output != "" {
		result.Output = result.Output[(len(result.Output)+1)/2:]
		raw, err = json.Marshal(result)
	}
	if err != nil {
		return err
	}
	path := filepath.Join(entry, fileReserved)
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err = file.WriteAt(raw, 0); err == nil {
		err = file.Truncate(int64(len(raw)))
	}
	if err == nil {
		err = file.Sync()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err := os.Rename(path, filepath.Join(entry, fileResult)); err != nil {
		return err
	}
	return syncFolder(entry)
}

// prune removes the entries of instructions that are not running, are no longer assigned to the host, and can run again
// without harm. It removes no other entries, because a restored hub may send old instructions again.
func (j journal) prune(present []protocol.HostInstruction) error {
	known, err := os.ReadDir(j.folder)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	var errs []error
	for _, entry := range known {
		id := entry.Name()
		if !protocol.Repeatable(id) ||
			slices.ContainsFunc(present, func(i protocol.HostInstruction) bool { return i.ID == id }) {
			continue
		}
		if held, err := isLocked(filepath.Join(j.entry(id), fileLock)); err != nil || held {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, os.RemoveAll(j.entry(id)))
	}
	return errors.Join(errs...)
}

// settle removes the files that only a supervisor needs. These files contain the instruction's variables.
func (j journal) settle(id string) error {
	var errs []error
	for _, name := range []string{fileInstruction, fileReserved, fileEnd} {
		if err := os.Remove(filepath.Join(j.entry(id), name)); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// begin records the start of an instruction. It creates a file exclusively, and returns fs.ErrExist if any process has
// already started the instruction.
func begin(entry, digest string) error {
	path := filepath.Join(entry, fileBegun)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err = file.WriteString(digest); err == nil {
		err = file.Sync()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, os.Remove(path)) // the instruction does not start, for example because the disk is full
	}
	return syncFolder(entry)
}

// lock opens and locks a file. The lock is held until the file is closed. It returns unix.EWOULDBLOCK if another
// process has locked the file.
func lock(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

func isLocked(path string) (bool, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("journal: %w", err)
	}
	defer file.Close()
	switch err := unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("journal: lock: %w", err)
	}
	return false, nil
}

// makeFolder durably creates a directory that only its owner can enter. It also creates missing parent directories.
func makeFolder(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// WriteDurably writes a file that only its owner can read. If the machine stops at any point, the file contains either
// the old or the new content.
func WriteDurably(path string, content []byte) error {
	return replaceFile(path, content, func(file *os.File) error { return file.Chmod(0o600) })
}

func replaceFile(path string, content []byte, set func(*os.File) error) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), ".drover-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	if _, err = file.Write(content); err == nil {
		err = set(file)
	}
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err = os.Rename(file.Name(), path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
