// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instructions

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

// host is a Runner with its own directories.
type host struct {
	*Runner
	t       *testing.T
	root    string
	version int
}

func newHost(t *testing.T) *host {
	t.Helper()
	dir := t.TempDir()
	r, err := New(Options{State: filepath.Join(dir, "state"), Root: filepath.Join(dir, "root"), Supervisor: supervisor, Log: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { r.Run(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	return &host{r, t, filepath.Join(dir, "root"), 0}
}

func (h *host) give(given *protocol.HostInstructions) {
	h.t.Helper()
	h.version++
	if err := h.Set("", fmt.Sprint("v", h.version), given); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) await(what string, done func(protocol.HostProgress) bool) protocol.HostProgress {
	h.t.Helper()
	var p protocol.HostProgress
	testkit.Eventually(h.t, time.Minute, func(context.Context) error {
		if p = h.Progress(); !done(p) {
			return fmt.Errorf("progress is %+v, want %s", p, what)
		}
		return nil
	})
	return p
}

func in(phase protocol.HostPhase) func(protocol.HostProgress) bool {
	return func(p protocol.HostProgress) bool { return p.Phase == phase }
}

func shell(id, script string) protocol.HostInstruction {
	return protocol.HostInstruction{ID: id, Command: []string{"/bin/sh", "-c", script}}
}

func TestInstructions(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T, *host){
		"files are written with their mode, and removed": func(t *testing.T, h *host) {
			h.give(&protocol.HostInstructions{Files: []protocol.HostFile{{Path: "/etc/x/a", Content: []byte("1")}, {Path: "/etc/b", Content: []byte("2"), Mode: "0644"}}})
			h.await("Applied", in(protocol.HostApplied))
			for path, mode := range map[string]os.FileMode{"etc/x/a": 0o600, "etc/b": 0o644} {
				if info, err := os.Stat(filepath.Join(h.root, path)); err != nil || info.Mode() != mode {
					t.Errorf("%s: %v, %v, want mode %v", path, info, err, mode)
				}
			}
			h.give(&protocol.HostInstructions{Files: []protocol.HostFile{{Path: "/etc/b", Absent: true}}})
			h.await("Applied", in(protocol.HostApplied))
			if _, err := os.Stat(filepath.Join(h.root, "etc/b")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the file that is absent in the instructions is there: %v", err)
			}
		},
		"the journal forgets instructions that the host has no more and that may run again, and no other": func(t *testing.T, h *host) {
			ran := filepath.Join(t.TempDir(), "ran")
			gone := []protocol.HostInstruction{appends("task-snapshot-a", ran), appends("task-upload-a-1", ran), appends("task-update-a", ran), appends("bootstrap-a", ran)}
			stays := appends("task-snapshot-b", ran)
			h.give(&protocol.HostInstructions{Instructions: append(slices.Clone(gone), stays)})
			h.await("Applied", in(protocol.HostApplied))
			h.give(&protocol.HostInstructions{Instructions: []protocol.HostInstruction{stays, appends("more", ran)}})
			h.await("Applied", func(p protocol.HostProgress) bool { return p.Phase == protocol.HostApplied && p.Total == 2 })
			known, err := os.ReadDir(h.journal.folder)
			var names []string
			for _, entry := range known {
				names = append(names, entry.Name())
			}
			if want := []string{"bootstrap-a", "more", "task-snapshot-b", "task-update-a"}; err != nil || !slices.Equal(names, want) {
				t.Errorf("the journal knows %q, %v, want %q", names, err, want)
			}
			h.give(&protocol.HostInstructions{Instructions: append(slices.Clone(gone), stays)}) // from a restored hub
			h.await("Applied", func(p protocol.HostProgress) bool { return p.Phase == protocol.HostApplied && p.Total == 5 })
			if got := strings.Fields(linesOf(t, ran)); len(got) != 8 {
				t.Errorf("%q ran, want the two that may run again twice, and each other once", got)
			}
		},
		"an instruction that cannot begin says why": func(t *testing.T, h *host) {
			if err := os.WriteFile(h.journal.entry("a"), nil, 0o600); err != nil { // in place of its directory
				t.Fatal(err)
			}
			h.give(&protocol.HostInstructions{Instructions: []protocol.HostInstruction{shell("a", "true")}})
			if p := h.await("Failed", in(protocol.HostFailed)); !strings.Contains(p.Message, "not a directory") {
				t.Errorf("got %+v, want why", p)
			}
		},
		"the first instruction that fails is the last that runs, and is reported with its last lines": func(t *testing.T, h *host) {
			ran := filepath.Join(h.root, "ran")
			h.give(&protocol.HostInstructions{Instructions: []protocol.HostInstruction{shell("a", "echo fine"), shell("b", "echo no space left; exit 3"), appends("c", ran)}})
			p := h.await("Failed", in(protocol.HostFailed))
			if p.Instruction != "b" || p.Done != 1 || p.Total != 3 || p.Output != "no space left" || !strings.Contains(p.Message, "exit code 3") || linesOf(t, ran) != "" {
				t.Errorf("got %+v", p)
			}
		},
		"what was secret in the instructions is not reported": func(t *testing.T, h *host) {
			h.give(&protocol.HostInstructions{
				Files: []protocol.HostFile{{Path: "/etc/config.yaml", Content: []byte("token: \"K10abcdef0123456789\"\n")}},
				Instructions: []protocol.HostInstruction{{
					ID: "a", Command: []string{"/bin/sh", "-c", `echo "join with $TOKEN and"; cat "` + h.root + `/etc/config.yaml"; printf '\033[31mred\n'; exit 1`},
					Env: map[string]string{"TOKEN": "s3cret"},
				}},
			})
			p := h.await("Failed", in(protocol.HostFailed))
			if strings.Contains(p.Output, "s3cret") || strings.Contains(p.Output, "K10") || !strings.Contains(p.Output, "join with <secret> and") || strings.Contains(p.Output, "\033") {
				t.Errorf("reported %q", p.Output)
			}
		},
		"an instruction that is given again does not run again, and one that was changed is refused": func(t *testing.T, h *host) {
			ran := filepath.Join(t.TempDir(), "ran")
			h.give(&protocol.HostInstructions{Instructions: []protocol.HostInstruction{appends("a", ran)}})
			h.await("Applied", in(protocol.HostApplied))
			h.give(&protocol.HostInstructions{Instructions: []protocol.HostInstruction{appends("a", ran), appends("b", ran)}})
			h.await("both done", func(p protocol.HostProgress) bool { return p.Phase == protocol.HostApplied && p.Done == 2 })
			if got := linesOf(t, ran); got != "a b" {
				t.Errorf("ran %q, want each once", got)
			}
			h.give(&protocol.HostInstructions{Instructions: []protocol.HostInstruction{shell("a", "true")}})
			if p := h.await("Failed", in(protocol.HostFailed)); !strings.Contains(p.Message, "give this one another ID") {
				t.Errorf("got %+v, want a refusal that names the ID", p)
			}
		},
		"an instruction that takes too long is killed with what it started": func(t *testing.T, h *host) {
			slow := shell("slow", "sleep 600 & sleep 600")
			slow.TimeoutSeconds = 1
			h.give(&protocol.HostInstructions{Instructions: []protocol.HostInstruction{slow}})
			if p := h.await("Failed", in(protocol.HostFailed)); !strings.Contains(p.Message, "killed after 1s") {
				t.Errorf("got %+v", p)
			}
		},
		"a command that does not exist fails and is named": func(t *testing.T, h *host) {
			h.give(&protocol.HostInstructions{Instructions: []protocol.HostInstruction{{ID: "a", Command: []string{"/no/such/command"}}}})
			if p := h.await("Failed", in(protocol.HostFailed)); !strings.Contains(p.Message, "no such file") {
				t.Errorf("got %+v", p)
			}
		},
		"a service that keeps the output open does not hold up the instructions": func(t *testing.T, h *host) {
			pid := filepath.Join(t.TempDir(), "pid")
			h.give(&protocol.HostInstructions{Instructions: []protocol.HostInstruction{shell("a", "sleep 600 & echo $! >"+pid)}})
			h.await("Applied", in(protocol.HostApplied))
			t.Cleanup(func() { endProcess(t, pid) })
		},
		"periodic instructions run again and again, after the others": func(t *testing.T, h *host) {
			ran := filepath.Join(t.TempDir(), "ran")
			again := appends("again", ran)
			again.PeriodSeconds = 1
			h.give(&protocol.HostInstructions{Instructions: []protocol.HostInstruction{appends("first", ran)}, Periodic: []protocol.HostInstruction{again}})
			testkit.Eventually(t, time.Minute, func(context.Context) error {
				if got := linesOf(t, ran); !strings.HasPrefix(got, "first again again") {
					return fmt.Errorf("ran %q", got)
				}
				return nil
			})
		},
		"a periodic instruction that fails is named": func(t *testing.T, h *host) {
			h.give(&protocol.HostInstructions{Periodic: []protocol.HostInstruction{shell("check", "exit 4")}})
			h.await("its name", func(p protocol.HostProgress) bool {
				return p.Phase == protocol.HostApplied && p.Message == "periodic instruction check: exit code 4"
			})
		},
		"a probe fails until its server answers, and again after some failures": func(t *testing.T, h *host) {
			var status atomic.Int32
			status.Store(http.StatusServiceUnavailable)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(status.Load())) }))
			t.Cleanup(server.Close)
			h.give(&protocol.HostInstructions{Probes: []protocol.HostProbe{{Name: "api", URL: server.URL, PeriodSeconds: 1, FailureThreshold: 2}}})
			h.await("the probe fails", func(p protocol.HostProgress) bool { return p.Phase == protocol.HostApplied && len(p.Failing) == 1 })
			status.Store(http.StatusOK)
			h.await("no probe fails", func(p protocol.HostProgress) bool { return len(p.Failing) == 0 })
			status.Store(http.StatusInternalServerError)
			h.await("it fails again", func(p protocol.HostProgress) bool { return len(p.Failing) == 1 && p.Failing[0] == "api" })
		},
		"a host whose instructions are taken away is cleaned, and takes the same instructions again": func(t *testing.T, h *host) {
			ran := filepath.Join(t.TempDir(), "ran")
			given := &protocol.HostInstructions{
				Files: []protocol.HostFile{{Path: "/a", Content: []byte("a")}}, Instructions: []protocol.HostInstruction{appends("install", ran)},
				Clean: []protocol.HostInstruction{appends("uninstall", ran)},
			}
			h.give(given)
			h.await("Applied", in(protocol.HostApplied))
			h.give(nil)
			h.await("nothing", func(p protocol.HostProgress) bool { return p.Version == "" && p.Phase == "" })
			if _, err := os.Stat(filepath.Join(h.root, "a")); !errors.Is(err, os.ErrNotExist) || linesOf(t, ran) != "install uninstall" {
				t.Errorf("the file is there (%v) or the host was not uninstalled: %q", err, linesOf(t, ran))
			}
			h.give(given)
			h.await("Applied", in(protocol.HostApplied))
			if got := linesOf(t, ran); got != "install uninstall install" {
				t.Errorf("ran %q, want the instructions to run once more on the clean host", got)
			}
		},
		"a host takes the instructions of another owner only when it was cleaned": func(t *testing.T, h *host) {
			ran := filepath.Join(t.TempDir(), "ran")
			one := &protocol.HostInstructions{Owner: "Cluster/one", Instructions: []protocol.HostInstruction{appends("one", ran)}, Clean: []protocol.HostInstruction{appends("clean", ran)}}
			two := &protocol.HostInstructions{Owner: "Cluster/two", Instructions: []protocol.HostInstruction{appends("two", ran)}}
			h.give(one)
			h.await("Applied", in(protocol.HostApplied))
			if err := h.Set("", "other", two); !errors.Is(err, ErrCleaning) {
				t.Errorf("got %v, want ErrCleaning", err)
			}
			h.await("nothing", func(p protocol.HostProgress) bool { return p.Version == "" && p.Phase == "" })
			h.give(two)
			if p := h.await("Applied", in(protocol.HostApplied)); p.Owner == nil || *p.Owner != "Cluster/two" {
				t.Errorf("it reports the owner %v", p.Owner)
			}
			if got := linesOf(t, ran); got != "one clean two" {
				t.Errorf("ran %q", got)
			}
		},
		"a host that cannot be cleaned says why and takes no other instructions": func(t *testing.T, h *host) {
			h.give(&protocol.HostInstructions{Clean: []protocol.HostInstruction{shell("uninstall", "echo busy; exit 1")}})
			h.await("Applied", in(protocol.HostApplied))
			h.give(nil)
			if p := h.await("Failed", in(protocol.HostFailed)); p.Instruction != "uninstall" || p.Output != "busy" {
				t.Errorf("got %+v", p)
			}
			if err := h.Set("", "other", &protocol.HostInstructions{}); !errors.Is(err, ErrCleaning) {
				t.Errorf("got %v, want ErrCleaning", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newHost(t))
		})
	}
}

func endProcess(t *testing.T, pidFile string) {
	t.Helper()
	var pid int
	if _, err := fmt.Sscan(linesOf(t, pidFile), &pid); err != nil {
		t.Fatal(err)
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	_ = process.Kill()
}

func TestFullJournalAcceptsNoInstruction(t *testing.T) {
	t.Parallel()
	j := journal{t.TempDir()}
	for i := range maxEntries {
		if err := os.Mkdir(j.entry(fmt.Sprint("i", i)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.prepare(shell("i1", "true")); err != nil {
		t.Errorf("an instruction that is known is refused: %v", err)
	}
	if err := j.prepare(shell("more", "true")); err == nil || !strings.Contains(err.Error(), "clean the host") {
		t.Errorf("got %v, want a refusal that says what to do", err)
	}
}

func TestTailHoldsOnlyWholeLines(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		write []string
		want  string
	}{
		"all that fits":              {[]string{"ab\n", "cd"}, "ab\ncd"},
		"whole lines of what is cut": {[]string{"secret-of-12345\nab\n", "cd\n"}, "ab\ncd\n"},
		"nothing of a long line":     {[]string{strings.Repeat("x", 30)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			out := &tail{limit: 12}
			for _, text := range tt.write {
				if n, err := out.Write([]byte(text)); n != len(text) || err != nil {
					t.Errorf("Write returned %d, %v", n, err)
				}
			}
			if got := out.String(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestHubsCheckpointIsKept(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	again := func() protocol.HostProgress {
		t.Helper()
		r, err := New(h.options)
		if err != nil {
			t.Fatal(err)
		}
		return r.Progress()
	}
	given := &protocol.HostInstructions{Instructions: []protocol.HostInstruction{shell("a", "true")}}
	for _, c := range []struct {
		what, checkpoint, version string
		given                     *protocol.HostInstructions
		want                      string
	}{
		{"nothing has come", "", "", nil, ""},
		{"a host without instructions is to have none", "lease/1/a/1", "", nil, "lease/1/a/1"},
		{"instructions have come", "lease/1/a/2", "v1", given, "lease/1/a/2"},
		{"the same instructions have come again", "lease/2/b/1", "v1", given, "lease/2/b/1"},
		{"a hub without elections sends none", "", "v2", given, "lease/2/b/1"},
		{"one that is no checkpoint is not kept", "a\nb", "v3", given, "lease/2/b/1"},
		{"the instructions were taken away", "lease/2/b/3", "", nil, "lease/2/b/3"},
	} {
		if err := h.Set(c.checkpoint, c.version, c.given); err != nil {
			t.Fatal(err)
		}
		if got, stored := h.Progress().Checkpoint, again().Checkpoint; got != c.want || stored != c.want {
			t.Errorf("%s: the checkpoint is %q, and after a restart %q, want %q", c.what, got, stored, c.want)
		}
	}
	h.await("clean", func(p protocol.HostProgress) bool { return p.Version == "" })
	if got := again().Checkpoint; got != "lease/2/b/3" {
		t.Errorf("when the host is clean the checkpoint is %q", got)
	}
}

// A restored hub would clean a host without its checkpoint.
func TestUnreadableCheckpointIsAnError(t *testing.T) {
	t.Parallel()
	for content, ok := range map[string]bool{"lease/1/a/1": true, "": false, "a\nb": false, "\x00\x00\x00": false} {
		state := t.TempDir()
		if err := os.WriteFile(filepath.Join(state, fileCheckpoint), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := New(Options{State: state, Supervisor: supervisor, Log: logr.Discard()})
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), filepath.Join(state, fileCheckpoint)) {
			t.Errorf("with %q the agent starts with %v", content, err)
		}
	}
}
