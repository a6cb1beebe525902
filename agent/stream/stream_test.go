// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package stream_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/agent/stream"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

func put(t *stream.Topic, id string, phase protocol.SetPhase) bool {
	return t.Put(id, &protocol.Line{Set: &protocol.SetEvent{State: &protocol.SetState{ID: id, Phase: phase}}})
}

func isRead(t *stream.Topic) bool {
	select {
	case <-t.Read():
		return true
	default:
		return false
	}
}

// reader reads a stream.
type reader struct {
	t     *testing.T
	lines *bufio.Scanner
}

func read(t *testing.T, s *stream.Stream, subjects ...string) *reader {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+protocol.StreamPath(subjects...), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return &reader{t: t, lines: bufio.NewScanner(resp.Body)}
}

// next returns the next line in a short form.
func (r *reader) next() string {
	r.t.Helper()
	if !r.lines.Scan() {
		return "end"
	}
	var line protocol.Line
	if err := json.Unmarshal(r.lines.Bytes(), &line); err != nil {
		r.t.Fatal(err)
	}
	switch {
	case line.Set != nil && line.Set.State != nil:
		return line.Set.State.ID + " " + string(line.Set.State.Phase)
	case line.Set != nil && line.Set.Removed != "":
		return line.Set.Removed + " removed"
	case line.Set != nil && line.Set.Synced:
		return "synced"
	case line.Set != nil && line.Set.Stopped:
		return "stopped"
	case line.Plan != nil:
		return "plan"
	}
	return "report " + line.Version
}

func (r *reader) expect(want ...string) {
	r.t.Helper()
	for _, line := range want {
		if got := r.next(); got != line {
			r.t.Errorf("read %q, want %q", got, line)
		}
	}
}

func TestStream(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T, *stream.Stream, *stream.Topic){
		"a reader gets all lines, then a mark, then each change": func(t *testing.T, s *stream.Stream, sets *stream.Topic) {
			put(sets, "crtb/b", protocol.SetPending)
			put(sets, "crtb/a", protocol.SetApplied)
			sets.Sync()
			r := read(t, s, protocol.SubjectSets)
			r.expect("crtb/a Applied", "crtb/b Pending", "synced")
			put(sets, "crtb/b", protocol.SetApplied)
			r.expect("crtb/b Applied")
			sets.Delete("crtb/a")
			r.expect("crtb/a removed")
		},
		"it gets nothing of a topic before Sync": func(t *testing.T, s *stream.Stream, sets *stream.Topic) {
			put(sets, "crtb/a", protocol.SetApplied)
			report := s.Topic(protocol.SubjectReport)
			report.Put("", &protocol.Line{Report: &protocol.Report{Version: "v1"}})
			report.Sync()
			r := read(t, s, protocol.SubjectSets, protocol.SubjectReport)
			r.expect("report v1")
			sets.Sync()
			r.expect("crtb/a Applied", "synced")
		},
		"a reader that names no subject gets only reports": func(t *testing.T, s *stream.Stream, sets *stream.Topic) {
			sets.Sync()
			report := s.Topic(protocol.SubjectReport)
			report.Put("", &protocol.Line{Report: &protocol.Report{Version: "v1"}})
			report.Sync()
			r := read(t, s)
			r.expect("report v1")
			put(sets, "crtb/a", protocol.SetApplied)
			report.Put("", &protocol.Line{Report: &protocol.Report{Version: "v2"}})
			r.expect("report v2")
		},
		"Reset deletes no lines, and all are sent again in the next leadership": func(t *testing.T, s *stream.Stream,
			sets *stream.Topic) {
			put(sets, "crtb/a", protocol.SetApplied)
			sets.Sync()
			r := read(t, s, protocol.SubjectSets)
			r.expect("crtb/a Applied", "synced")
			sets.Reset()
			r.expect("stopped")
			put(sets, "crtb/b", protocol.SetApplied)
			sets.Sync()
			r.expect("crtb/b Applied", "synced")
		},
		"an equal line is no change, and a slow reader gets only the latest line": func(t *testing.T, s *stream.Stream,
			sets *stream.Topic) {
			sets.Sync()
			if !put(sets, "crtb/a", protocol.SetPending) || put(sets, "crtb/a", protocol.SetPending) ||
				!put(sets, "crtb/a", protocol.SetApplied) {
				t.Error("Put reported a change for an equal line or none for another one, want the opposite")
			}
			r := read(t, s, protocol.SubjectSets)
			r.expect("crtb/a Applied", "synced")
		},
		"a line is cut to its bounds": func(t *testing.T, s *stream.Stream, sets *stream.Topic) {
			sets.Put("crtb/a",
				&protocol.Line{Set: &protocol.SetEvent{State: &protocol.SetState{ID: "crtb/a",
					Message: strings.Repeat("x", 1<<20)}}})
			if got := len(sets.Get("crtb/a").Set.State.Message); got > protocol.MaxLine {
				t.Errorf("got a message of %d bytes, want another length", got)
			}
		},
		"readers end with the stream": func(t *testing.T, s *stream.Stream, sets *stream.Topic) {
			sets.Sync()
			r := read(t, s, protocol.SubjectSets)
			r.expect("synced")
			s.End()
			r.expect("end")
		},
		"a topic reports whether it was read, and its keys": func(t *testing.T, s *stream.Stream, sets *stream.Topic) {
			put(sets, "crtb/b", protocol.SetApplied)
			put(sets, "crtb/a", protocol.SetApplied)
			if isRead(sets) || !slices.Equal(sets.Keys(), []string{"crtb/a", "crtb/b"}) {
				t.Errorf("read %t, keys %v", isRead(sets), sets.Keys())
			}
			sets.Sync()
			r := read(t, s, protocol.SubjectSets)
			r.expect("crtb/a Applied", "crtb/b Applied", "synced")
			put(sets, "crtb/c", protocol.SetApplied)
			if r.expect("crtb/c Applied"); !isRead(sets) {
				t.Error("the topic does not count as read, want it read")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := stream.New()
			test(t, s, s.Topic(protocol.SubjectSets))
		})
	}
	t.Run("it is read with GET", func(t *testing.T) {
		t.Parallel()
		answer := httptest.NewRecorder()
		stream.New().ServeHTTP(answer, httptest.NewRequest(http.MethodPost, protocol.PathReport, nil))
		if answer.Code != http.StatusMethodNotAllowed {
			t.Errorf("got %d, want 405", answer.Code)
		}
	})
}

// TestLogsOfFailedJobsFitIntoALine checks logs that contain pages of HTML or control characters. A line that is longer
// than the hub accepts would cut the member off.
func TestLogsOfFailedJobsFitIntoALine(t *testing.T) {
	for _, char := range []string{"<", "\x1b", `"`} {
		s := stream.New()
		state := &protocol.PlanState{Name: "k3s"}
		for i := range v1.MaxPlanNodes {
			state.Status.Failures = append(state.Status.Failures, v1.NodeFailure{
				Node: fmt.Sprint("node", i), At: metav1.Now(), Message: strings.Repeat(char, 512), Log: strings.Repeat(char, 1024),
			})
		}
		s.Topic(protocol.SubjectPlans).Put(state.Name, &protocol.Line{Plan: &protocol.PlanEvent{State: state}})
		s.Topic(protocol.SubjectPlans).Sync()
		lines := read(t, s, protocol.SubjectPlans).lines
		lines.Buffer(nil, 2*protocol.MaxLine)
		if !lines.Scan() || len(lines.Bytes()) > protocol.MaxLine {
			t.Errorf("with %q: got a line of %d bytes (%v), want at most %d", char, len(lines.Bytes()), lines.Err(),
				protocol.MaxLine)
		}
	}
}
