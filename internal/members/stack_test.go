// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/internal/members"
)

// silent is a session whose agent starts its report but sends nothing.
type silent struct {
	ended   chan struct{}
	reading *sync.WaitGroup

	mu     sync.Mutex
	closed sync.Cond
	isOver bool
}

func newSilent(reading *sync.WaitGroup) *silent {
	s := &silent{ended: make(chan struct{}), reading: reading}
	s.closed.L = &s.mu
	return s
}

// RoundTrip needs at least as much stack as a request through a tunnel.
func (s *silent) RoundTrip(*http.Request) (*http.Response, error) {
	if deep(64) == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	return &http.Response{StatusCode: http.StatusOK, Body: s}, nil
}

//go:noinline
func deep(calls int) int {
	var local [64]byte
	if calls > 0 {
		local[calls%len(local)] = byte(deep(calls - 1))
	}
	return 1 + int(local[0])
}

// Read implements io.Reader. It blocks as deep in the stack as the body of a tunnel's response does.
func (s *silent) Read([]byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reading.Done()
	for !s.isOver {
		s.closed.Wait()
	}
	return 0, io.EOF
}

func (s *silent) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isOver {
		close(s.ended)
	}
	s.isOver = true
	s.closed.Broadcast()
	return nil
}

func (s *silent) Done() <-chan struct{}       { return s.ended }
func (s *silent) Err() error                  { return io.EOF }
func (s *silent) Drain(context.Context) error { return s.Close() }

func TestIdleMemberTakesFourKilobytesOfStack(t *testing.T) {
	if info, ok := debug.ReadBuildInfo(); ok &&
		slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("functions use more stack with the race detector")
	}
	const many = 1000
	registry := members.New(logr.Discard(), time.Now)
	t.Cleanup(registry.Close)
	before := stacks()
	var reading sync.WaitGroup
	reading.Add(many)
	for i := range many {
		registry.Add(peer(fmt.Sprint("member-", i), "key"), newSilent(&reading))
	}
	reading.Wait()
	if each := (stacks() - before) / many; each > 5<<10 {
		t.Errorf("each member takes %d bytes of stack, want 4096, the least that remains after a request", each)
	}
}

// stacks returns the bytes that the stacks of goroutines take after the garbage collector has shrunk them.
func stacks() int64 {
	for range 3 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.StackInuse)
}
