// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package audit records who did what in which member.
//
// Each request is logged as one line of JSON when it ends. A long-running request is also logged when its response
// starts. A single writer writes the lines from a bounded buffer. Tokens, and bodies that contain secrets, are never
// logged.
package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

// Level determines how much of a request is logged.
type Level string

const (
	// LevelOff means that nothing is logged.
	LevelOff Level = "Off"
	// LevelMetadata means that each line contains the caller and their address, the action, the time, and the result.
	LevelMetadata Level = "Metadata"
	// LevelRequest means that request bodies are also logged, except bodies that contain secrets.
	LevelRequest Level = "Request"
)

// Mode determines what happens when lines arrive faster than they can be written.
type Mode string

const (
	// ModeDropping means that lines are dropped and counted. The gap is reported in the manager's log and in the audit log
	// itself.
	ModeDropping Mode = "Dropping"
	// ModeBlocking means that requests wait until there is room in the buffer.
	ModeBlocking Mode = "Blocking"
)

// Settings configures a Log.
type Settings struct {
	Level Level
	Mode  Mode
	// Path is the path of the file, or "-" for standard output.
	Path string
	// MaxSize is the size, in bytes, at which the file is renamed to Path.1 and a new file is started. Path.1 is renamed
	// to Path.2, and so on. 0 means no limit.
	MaxSize int64
	// MaxBackups is the number of renamed files to keep.
	MaxBackups int
}

// Observer holds functions that a Log calls, for metrics. Each function may be nil, and must not block.
type Observer struct {
	// Written is called with the number of lines that were written.
	Written func(lines int)
	// Dropped is called with the number of lines that were lost, either because the buffer was full or because writing
	// failed.
	Dropped func(lines int)
}

// maxPending is the maximum size of the buffer, in bytes.
const maxPending = 4 << 20

// Log writes the lines of the audit log. Use Open to create a Log. All methods are safe for concurrent use. A nil Log
// is valid and writes nothing.
type Log struct {
	settings Settings
	observer Observer
	logger   logr.Logger
	target   io.WriteCloser
	done     chan struct{} // closed when the writer has stopped

	mu      sync.Mutex // guards the fields below
	changed *sync.Cond // signals that one of the fields below has changed
	pending []byte
	lines   int   // number of lines in the pending field
	dropped int64 // number of lines dropped since the last gap was reported
	closed  bool
}

// Open starts a Log. The caller must close it.
func Open(s Settings, observer Observer, logger logr.Logger) (*Log, error) {
	l := &Log{settings: s, observer: observer, logger: logger, done: make(chan struct{})}
	l.changed = sync.NewCond(&l.mu)
	if !l.Enabled() {
		close(l.done)
		return l, nil
	}
	l.target = standardOutput{}
	if s.Path != "-" {
		file := &file{settings: s}
		if err := file.open(); err != nil {
			return nil, fmt.Errorf("open audit log: %w", err)
		}
		l.target = file
	}
	go l.run()
	return l, nil
}

// standardOutput writes to standard output. It ignores Close.
type standardOutput struct{}

func (standardOutput) Write(p []byte) (int, error) { return os.Stdout.Write(p) }
func (standardOutput) Close() error                { return nil }

// Enabled reports whether the log writes any lines.
func (l *Log) Enabled() bool {
	return l != nil && l.settings.Level != LevelOff && l.settings.Level != ""
}

// Close writes the pending lines and stops the writer. Lines that arrive later are dropped. Close may be called more
// than once.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	l.changed.Broadcast()
	l.mu.Unlock()
	<-l.done
	if !first || l.target == nil {
		return nil
	}
	if err := l.target.Close(); err != nil {
		return fmt.Errorf("close audit log: %w", err)
	}
	return nil
}

// write passes a line to the writer. It blocks only in ModeBlocking, and only until ctx is done.
func (l *Log) write(ctx context.Context, line []byte) {
	if l.settings.Mode == ModeBlocking {
		stop := context.AfterFunc(ctx, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.changed.Broadcast()
		})
		defer stop()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.settings.Mode == ModeBlocking && !l.fits(line) && !l.closed && ctx.Err() == nil {
		l.changed.Wait()
	}
	if l.closed || !l.fits(line) {
		l.drop(1)
		return
	}
	l.pending = append(l.pending, line...)
	l.lines++
	l.changed.Broadcast()
}

func (l *Log) fits(line []byte) bool { return len(l.pending)+len(line) <= maxPending }

// drop counts lost lines. The caller must hold the lock.
func (l *Log) drop(lines int) {
	l.dropped += int64(lines)
	if l.observer.Dropped != nil {
		l.observer.Dropped(lines)
	}
}

// batch is a group of lines that are written together.
type batch struct {
	content []byte
	lines   int
	dropped int64 // lines dropped after this batch, because there was no room left
}

// run writes lines until the log is closed and no line is pending.
func (l *Log) run() {
	defer close(l.done)
	var spare []byte
	for {
		b, more := l.next(spare)
		if !more {
			return
		}
		if b.dropped > 0 {
			l.logger.Error(errDropped, "lines are missing from the audit log", "lines", b.dropped)
			gap := event{Time: time.Now().UTC(), Stage: stageDropped, outcome: outcome{Dropped: b.dropped}}
			b.content = append(b.content, gap.line()...)
		}
		if _, err := l.target.Write(b.content); err != nil {
			l.logger.Error(fmt.Errorf("write audit log: %w", err), "lines are missing from the audit log", "lines", b.lines)
			if l.observer.Dropped != nil {
				l.observer.Dropped(b.lines)
			}
		} else if l.observer.Written != nil {
			l.observer.Written(b.lines)
		}
		if spare = b.content[:0]; cap(spare) > 1<<20 {
			spare = nil // release the large buffer after a burst
		}
	}
}

var errDropped = errors.New("lines arrived faster than they could be written")

// next waits for pending lines, returns them, and replaces them with an empty buffer. It returns false once the log is
// closed and no line is pending.
func (l *Log) next(empty []byte) (batch, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.pending) == 0 && !l.closed {
		l.changed.Wait()
	}
	b := batch{content: l.pending, lines: l.lines, dropped: l.dropped}
	l.pending, l.lines, l.dropped = empty, 0, 0
	l.changed.Broadcast()
	return b, len(b.content) > 0
}
