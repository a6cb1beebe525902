// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/internal/request"
)

// sink is a file that a test can inspect and block.
type sink struct {
	mu      sync.Mutex // guards the fields below
	content bytes.Buffer
	err     error
	hold    chan struct{} // writes wait until it is closed; nil means no wait
	closed  int
}

func (s *sink) Write(p []byte) (int, error) {
	if s.hold != nil {
		<-s.hold
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, s.err
	}
	return s.content.Write(p)
}

func (s *sink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed++
	return nil
}

// start is like Open, but writes to another target.
func start(s Settings, observer Observer, target io.WriteCloser) *Log {
	l := &Log{settings: s, observer: observer, logger: logr.Discard(), target: target, done: make(chan struct{})}
	l.changed = sync.NewCond(&l.mu)
	go l.run()
	return l
}

// lines closes the log and returns the lines that were written.
func lines(t *testing.T, l *Log, s *sink) []map[string]any {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var all []map[string]any
	for line := range strings.Lines(s.content.String()) {
		var one map[string]any
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, one)
	}
	return all
}

// serve logs one request.
func serve(l *Log, r *http.Request, handler http.HandlerFunc) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	l.Wrap(handler).ServeHTTP(w, r)
	return w
}

func metadata() Settings { return Settings{Level: LevelMetadata, Mode: ModeDropping, Path: "-"} }

func TestWrap(t *testing.T) {
	t.Run("a request is one line that says who did what where, and with which result", func(t *testing.T) {
		s := &sink{}
		l := start(metadata(), Observer{}, s)
		r := httptest.NewRequest("GET", "/k8s/clusters/team-a/prod/api/v1/namespaces/web/pods/a?token=s3cret", nil)
		r.Header.Set("User-Agent", "kubectl\nforged")
		w := serve(l, r, func(w http.ResponseWriter, r *http.Request) {
			record := From(r.Context())
			record.About("team-a/prod", request.Of(r, "/api/v1/namespaces/web/pods/a"))
			record.Identified(User{Name: "alice", Groups: []string{"dev"}, Extra: map[string][]string{"scopes": {"x"}}},
				&User{Name: "bob"})
			record.Refused("Forbidden")
			w.WriteHeader(http.StatusForbidden)
		})
		all := lines(t, l, s)
		if len(all) != 1 {
			t.Fatalf("%d lines, want 1: %v", len(all), all)
		}
		line := all[0]
		for key, want := range map[string]any{
			"stage": stageComplete, "member": "team-a/prod", "verb": "get", "resource": "pods", "namespace": "web", "name": "a",
			"code":   403.0,
			"reason": "Forbidden", "sourceIP": "192.0.2.1", "userAgent": "kubectl\uFFFDforged", "method": "GET",
			"id":  w.Header().Get("Audit-ID"),
			"uri": "/k8s/clusters/team-a/prod/api/v1/namespaces/web/pods/a?token=[redacted]",
		} {
			if line[key] != want {
				t.Errorf("%s is %v, want %v", key, line[key], want)
			}
		}
		user, _ := json.Marshal(line["user"])
		if string(user) != `{"extra":{"scopes":["x"]},"groups":["dev"],"name":"alice"}` {
			t.Errorf("the user is %s, want alice with groups and extra", user)
		}
		if as, _ := json.Marshal(line["impersonatedUser"]); string(as) != `{"name":"bob"}` {
			t.Errorf("the impersonated user is %s, want the user in the header", as)
		}
	})
	t.Run("a long-running request has a line at its beginning and another at its end", func(t *testing.T) {
		s := &sink{}
		l := start(metadata(), Observer{}, s)
		serve(l, httptest.NewRequest("GET", "/k8s/local/api/v1/pods?watch=1", nil),
			func(w http.ResponseWriter, r *http.Request) {
				From(r.Context()).About("local", request.Of(r, "/api/v1/pods"))
				_, _ = io.WriteString(w, "{}")
			})
		all := lines(t, l, s)
		if len(all) != 2 || all[0]["stage"] != stageStarted || all[1]["stage"] != stageComplete ||
			all[0]["id"] != all[1]["id"] {
			t.Errorf("got lines %v, want one at the beginning and one at the end", all)
		}
	})
	t.Run("an aborted request is logged, and the panic continues", func(t *testing.T) {
		s := &sink{}
		l := start(metadata(), Observer{}, s)
		func() {
			defer func() {
				if err, ok := recover().(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
					t.Error("the panic was swallowed, want it to continue")
				}
			}()
			serve(l, httptest.NewRequest("GET", "/v1/cacerts", nil),
				func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		}()
		if all := lines(t, l, s); len(all) != 1 || all[0]["stage"] != stageAborted {
			t.Errorf("got lines %v, want one for the aborted request", all)
		}
	})
	for name, tt := range map[string]struct {
		given string
		kept  bool
	}{
		"a caller's ID is kept and forwarded": {"6ec0c2a5-41f4-4a38-b3ff-1d2bd3e7d2b1", true},
		"an invalid ID is replaced":           {"a\"b", false},
		"an ID that is too long is replaced":  {strings.Repeat("a", 37), false},
		"a request without an ID gets one":    {"", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &sink{}
			l := start(metadata(), Observer{}, s)
			r := httptest.NewRequest("GET", "/v1/cacerts", nil)
			r.Header.Set("Audit-ID", tt.given)
			var passed string
			w := serve(l, r,
				func(w http.ResponseWriter, r *http.Request) { passed = r.Header.Get("Audit-ID"); w.WriteHeader(200) })
			got := lines(t, l, s)[0]["id"]
			if got != passed || got != w.Header().Get("Audit-ID") || got == "" || (got == tt.given) != tt.kept {
				t.Errorf("logged %q, forwarded %q, sent back %q, want the same valid ID", got, passed, w.Header().Get("Audit-ID"))
			}
		})
	}
	t.Run("probes are not logged, and nothing is logged if the level is Off", func(t *testing.T) {
		s := &sink{}
		l := start(metadata(), Observer{}, s)
		for _, path := range []string{"/healthz", "/readyz"} {
			serve(l, httptest.NewRequest("GET", path, nil), func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200) })
		}
		if all := lines(t, l, s); len(all) > 0 {
			t.Errorf("got lines %v, want none", all)
		}
		var off *Log
		if off.Enabled() || off.Close() != nil {
			t.Error("a nil log is enabled, want it to write nothing")
		}
		serve(off, httptest.NewRequest("GET", "/", nil), func(_ http.ResponseWriter, r *http.Request) {
			record := From(r.Context())
			record.Identified(User{}, nil)
			record.About("", request.Info{})
			record.Refused("")
		})
	})
	t.Run("only small bodies are written, and only at the level Request", func(t *testing.T) {
		for body, want := range map[string]any{`{"a":"b"}`: map[string]any{"a": "b"},
			`{"a":"` + strings.Repeat("b", maxBody) + `"}`: nil} {
			for level, written := range map[Level]bool{LevelMetadata: false, LevelRequest: true} {
				s := &sink{}
				l := start(Settings{Level: level}, Observer{}, s)
				serve(l, httptest.NewRequest("POST", "/k8s/local/api/v1/namespaces/a/pods", strings.NewReader(body)),
					func(w http.ResponseWriter, r *http.Request) {
						From(r.Context()).About("local", request.Of(r, "/api/v1/namespaces/a/pods"))
						if got, err := io.ReadAll(r.Body); string(got) != body || err != nil {
							t.Errorf("the handler read %.50q, %v, want the body unchanged", got, err)
						}
						w.WriteHeader(http.StatusCreated)
					})
				got, _ := json.Marshal(lines(t, l, s)[0]["body"])
				if wanted, _ := json.Marshal(want); written && string(got) != string(wanted) || !written && string(got) != "null" {
					t.Errorf("at level %s the logged body is %.50s, want only a small body at the level Request", level, got)
				}
			}
		}
	})
}

func TestLog(t *testing.T) {
	line := bytes.Repeat([]byte("x"), maxLine-1)
	line = append(line, '\n')
	const room = maxPending / maxLine
	run := func(name string, f func(*testing.T)) {
		t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
	}
	run("lines without room are counted, and the log reports the gap", func(t *testing.T) {
		s, dropped, written := &sink{hold: make(chan struct{})}, atomic.Int64{}, atomic.Int64{}
		l := start(metadata(),
			Observer{Dropped: func(n int) { dropped.Add(int64(n)) }, Written: func(n int) { written.Add(int64(n)) }}, s)
		l.write(t.Context(), line)
		synctest.Wait() // the writer has taken the line
		for range room + 5 {
			l.write(t.Context(), line)
		}
		close(s.hold)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		gap := s.content.String()[(room+1)*maxLine:] // the gap is reported where the lines are missing
		if dropped.Load() != 5 || written.Load() != room+1 ||
			!strings.Contains(gap, `"stage":"Dropped","latencyMs":0,"dropped":5`) {
			t.Errorf("%d lines were dropped and %d written, want the rest to fit", dropped.Load(), written.Load())
		}
	})
	run("in the blocking mode requests wait for room, and none is lost", func(t *testing.T) {
		s, dropped := &sink{hold: make(chan struct{})}, atomic.Int64{}
		l := start(Settings{Level: LevelMetadata, Mode: ModeBlocking},
			Observer{Dropped: func(n int) { dropped.Add(int64(n)) }}, s)
		var all sync.WaitGroup
		for range 3 * room {
			all.Go(func() { l.write(t.Context(), line) })
		}
		ctx, leave := context.WithCancel(t.Context())
		synctest.Wait()
		left := make(chan struct{})
		go func() { l.write(ctx, line); close(left) }()
		synctest.Wait()
		leave()
		<-left // a caller that disconnects stops waiting
		close(s.hold)
		all.Wait()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if got := s.content.Len() / maxLine; got != 3*room || dropped.Load() != 1 {
			t.Errorf("%d lines, %d dropped, want %d and 1", got, dropped.Load(), 3*room)
		}
	})
	run("a file that cannot be written is counted, and later lines are tried again", func(t *testing.T) {
		s, dropped := &sink{err: errors.New("disk full")}, atomic.Int64{}
		l := start(metadata(), Observer{Dropped: func(n int) { dropped.Add(int64(n)) }}, s)
		l.write(t.Context(), line)
		synctest.Wait()
		s.mu.Lock()
		s.err = nil
		s.mu.Unlock()
		l.write(t.Context(), line)
		if err := l.Close(); err != nil || dropped.Load() != 1 || s.content.Len() != maxLine {
			t.Errorf("error %v, %d lines dropped, %d bytes written, want the lines counted as dropped", err, dropped.Load(),
				s.content.Len())
		}
	})
	run("it closes once", func(t *testing.T) {
		s := &sink{}
		l := start(metadata(), Observer{}, s)
		for range 2 {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
		l.write(t.Context(), line)
		if s.closed != 1 || s.content.Len() > 0 {
			t.Errorf("closed %d times with %d bytes, want once", s.closed, s.content.Len())
		}
	})
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l, err := Open(Settings{Level: LevelMetadata, Path: path, MaxSize: 100, MaxBackups: 2}, Observer{}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	target := l.target
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for n := range 5 {
		if _, err := target.Write(bytes.Repeat([]byte{byte('0' + n)}, 60)); err != nil {
			t.Fatal(err)
		}
	}
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"": "4", ".1": "3", ".2": "2"} {
		content, err := os.ReadFile(path + name)
		if err != nil || string(content) != strings.Repeat(want, 60) {
			t.Errorf("audit.log%s: %.5s, %v; want only %s", name, content, err, want)
		}
	}
	if _, err := os.Stat(path + ".3"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("more files are kept than configured (%v), want no more", err)
	}
	if about, err := os.Stat(path); err != nil || about.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v, want no access for others (CVE-2023-32197)", about.Mode(), err)
	}
	if _, err := Open(Settings{Level: LevelMetadata, Path: filepath.Join(path, "no")}, Observer{},
		logr.Discard()); err == nil {
		t.Error("an impossible path returned no error, want one")
	}
}

// BenchmarkWrap reports the cost of logging one request.
func BenchmarkWrap(b *testing.B) {
	l := start(metadata(), Observer{}, &sink{})
	defer l.Close()
	handler := l.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		record := From(r.Context())
		record.Identified(User{Name: "alice", Groups: []string{"dev", "system:authenticated"}}, nil)
		record.About("team-a/prod", request.Of(r, "/api/v1/namespaces/web/configmaps/a"))
		w.WriteHeader(200)
	}))
	r := httptest.NewRequest("GET", "/k8s/clusters/team-a/prod/api/v1/namespaces/web/configmaps/a", nil)
	b.ReportAllocs()
	for b.Loop() {
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
}
