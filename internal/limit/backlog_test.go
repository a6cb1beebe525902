// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package limit_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-dev/drover/internal/limit"
)

// stage has a backlog with windows of one byte, and records which responses are cut.
type stage struct {
	*limit.Backlog
	mu  sync.Mutex // guards cut
	cut []string
}

func newStage(member, all int64) *stage {
	return &stage{Backlog: limit.NewBacklog(limit.BacklogBounds{Member: member, All: all, Grace: time.Second}, nil)}
}

// stall starts a response that its user does not read.
func (s *stage) stall(workspace, member, name string) *limit.Flow {
	f := s.Flow(limit.Origin{Workspace: workspace, Member: member, Window: 1}, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.cut = append(s.cut, name)
	})
	f.Begin()
	return f
}

func (s *stage) wantCut(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.cut, want) {
		t.Errorf("cut %q, want %q", s.cut, want)
	}
}

func TestBacklog(t *testing.T) {
	t.Run("users who read hold nothing, however many there are", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newStage(2, 2)
			for n := range 100 {
				f := s.stall("w", "m", fmt.Sprint(n))
				f.End()
				defer f.Close()
			}
			time.Sleep(time.Minute)
			s.wantCut(t)
			if s.Held() != 0 {
				t.Errorf("%d bytes are held, want none", s.Held())
			}
		})
	})
	t.Run("above the limit of a member, its oldest write is cut after its grace period", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newStage(2, 0)
			for n := range 3 {
				defer s.stall("w", "m", fmt.Sprint(n)).Close()
				time.Sleep(time.Millisecond)
			}
			other := s.stall("w", "other", "other")
			defer other.Close()
			s.wantCut(t)
			time.Sleep(time.Second)
			s.wantCut(t, "0")
			if s.Held() != 3 {
				t.Errorf("%d bytes are held, want 3", s.Held())
			}
		})
	})
	t.Run("twice the limit is never exceeded, whatever the grace period", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newStage(2, 0)
			for n := range 6 {
				defer s.stall("w", "m", fmt.Sprint(n)).Close()
				if s.Held() > 4 {
					t.Errorf("%d bytes are held, want at most 4", s.Held())
				}
			}
			s.wantCut(t, "0", "1")
		})
	})
	t.Run("above the limit for all, a response of the workspace that holds the most is cut", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newStage(0, 4)
			defer s.stall("honest", "h", "honest").Close()
			time.Sleep(time.Millisecond)
			for n := range 5 { // each is from a different member, but all are in one workspace
				defer s.stall("bad", fmt.Sprint(n), fmt.Sprint(n)).Close()
				time.Sleep(time.Millisecond)
			}
			time.Sleep(2 * time.Second)
			s.wantCut(t, "0", "1")
		})
	})
	t.Run("a reader that continues in time is not cut off", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newStage(1, 1)
			a, b := s.stall("w", "m", "a"), s.stall("w", "m", "b")
			defer b.Close()
			time.Sleep(900 * time.Millisecond)
			a.End()
			time.Sleep(time.Minute)
			s.wantCut(t)
			a.Close()
		})
	})
	t.Run("a flow that was cut says why, and no longer counts", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newStage(1, 0)
			a, b := s.stall("w", "m", "a"), s.stall("w", "m", "b")
			time.Sleep(2 * time.Second)
			s.wantCut(t, "a")
			if a.Cut() != limit.ScopeMember || b.Cut() != "" {
				t.Errorf("a was cut for %q and b for %q, want only a to be cut", a.Cut(), b.Cut())
			}
			a.End()
			a.Begin()
			if s.Held() != 1 {
				t.Errorf("%d bytes are held, want 1", s.Held())
			}
			a.Close()
			b.Close()
			b.Close()
			b.Begin()
			if s.Held() != 0 {
				t.Errorf("%d bytes are held at the end, want none", s.Held())
			}
		})
	})
	t.Run("Close waits until the cut is over", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, cutting, over := newStage(1, 0), make(chan struct{}), false
			a := s.Flow(limit.Origin{Member: "m", Window: 1}, func() { <-cutting; over = true })
			a.Begin()
			defer s.stall("", "m", "b").Close()
			time.Sleep(2 * time.Second)
			closed := make(chan struct{})
			go func() { a.Close(); close(closed) }()
			synctest.Wait()
			select {
			case <-closed:
				t.Error("the flow was closed while it was being cut")
			default:
			}
			close(cutting)
			<-closed
			if !over {
				t.Error("the flow was closed before it was cut")
			}
		})
	})
}

// BenchmarkBacklogWrite reports the cost of counting for each write to a user.
func BenchmarkBacklogWrite(b *testing.B) {
	s := limit.NewBacklog(limit.Defaults().Backlog, nil)
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		f := s.Flow(limit.Origin{Workspace: "team-a", Member: "team-a/prod", Window: 1 << 20}, func() {})
		defer f.Close()
		for p.Next() {
			f.Begin()
			f.End()
		}
	})
}
