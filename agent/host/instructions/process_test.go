// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instructions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

// This binary is also the supervisor and the agent in its tests, which kill it.
const (
	modeSupervise = "TEST-supervise"
	modeAgent     = "TEST-agent"
)

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 2 && os.Args[1] == modeSupervise:
		panicOn(Supervise(context.Background(), os.Args[2]))
	case len(os.Args) > 3 && os.Args[1] == modeAgent:
		runAgent(os.Args[2], os.Args[3])
	default:
		m.Run()
	}
}

func supervisor(entry string) *exec.Cmd {
	return exec.Command(os.Args[0], modeSupervise, entry)
}

// runAgent carries out the instructions in "<state>/given.json", prints each progress, and kills itself at the step
// with this number, counted from 1.
func runAgent(state, at string) {
	killAt, _ := strconv.Atoi(at)
	steps := 0
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var runner *Runner
	changes := make(chan struct{}, 1)
	runner, err := New(Options{
		State: filepath.Join(state, "state"), Root: filepath.Join(state, "root"), Supervisor: supervisor, Log: logr.Discard(),
		Changed: func() {
			select {
			case changes <- struct{}{}:
			default:
			}
		},
		step: func(string) {
			if steps++; steps == killAt {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		},
	})
	panicOn(err)
	raw, err := os.ReadFile(filepath.Join(state, "given.json"))
	panicOn(err)
	given, err := protocol.ParseHostInstructions(raw)
	panicOn(err)
	if _, err := os.Stat(filepath.Join(state, "taken")); err == nil {
		given = nil
	}
	panicOn(runner.Set("", "v1", given))
	ran := make(chan struct{})
	go func() { runner.Run(ctx); close(ran) }()
	for last := ""; ; {
		line, _ := json.Marshal(runner.Progress())
		if string(line) != last {
			last = string(line)
			fmt.Fprintln(os.Stdout, last)
		}
		select {
		case <-changes:
		case <-ran:
			return
		}
	}
}

func panicOn(err error) {
	if err != nil {
		panic(err)
	}
}

// agent is a process that runs runAgent.
type agent struct {
	*exec.Cmd
	lines *json.Decoder
}

func startAgent(t *testing.T, state string, killAt int) *agent {
	t.Helper()
	cmd := exec.Command(os.Args[0], modeAgent, state, strconv.Itoa(killAt))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	a := &agent{cmd, json.NewDecoder(out)}
	t.Cleanup(a.kill)
	return a
}

func (a *agent) kill() {
	_ = a.Process.Kill()
	_ = a.Wait()
}

// until reads the progress until done returns true, and returns the last one. It returns false if the process ended
// first.
func (a *agent) until(done func(protocol.HostProgress) bool) (protocol.HostProgress, bool) {
	for {
		var p protocol.HostProgress
		if err := a.lines.Decode(&p); err != nil {
			return p, false
		}
		if done(p) {
			return p, true
		}
	}
}

func settled(p protocol.HostProgress) bool { return p.Phase != protocol.HostApplying && p.Phase != "" }

func give(t *testing.T, state string, given protocol.HostInstructions) {
	t.Helper()
	raw, err := json.Marshal(given)
	if err == nil {
		err = os.WriteFile(filepath.Join(state, "given.json"), raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// appends returns an instruction that adds a line to a file each time it runs.
func appends(id, file string) protocol.HostInstruction {
	return protocol.HostInstruction{ID: id, Command: []string{"/bin/sh", "-c", `echo "$DROVER_INSTRUCTION" >>"$0"`, file}}
}

func linesOf(t *testing.T, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(raw)), " ")
}

func TestAgentKilledAtAnyStepRepeatsNoInstruction(t *testing.T) {
	t.Parallel()
	for killAt := 1; ; killAt++ {
		state := t.TempDir()
		ran := filepath.Join(state, "ran")
		give(t, state, protocol.HostInstructions{
			Files:        []protocol.HostFile{{Path: "/etc/a", Content: []byte("a")}, {Path: "/etc/b", Content: []byte("b")}},
			Instructions: []protocol.HostInstruction{appends("one", ran), appends("two", ran)},
		})
		_, finished := startAgent(t, state, killAt).until(settled)
		// killed at the same step in each life as long as it reaches that step, and finally left alive
		for kills := 0; !finished && kills < 50; kills++ {
			at := killAt
			if kills > 2 {
				at = 0
			}
			_, finished = startAgent(t, state, at).until(settled)
		}
		last, _ := startAgent(t, state, 0).until(settled) // one more life after the instructions are done
		if got := linesOf(t, ran); got != "one two" || last.Phase != protocol.HostApplied || last.Done != 2 {
			t.Errorf("killed at step %d: ran %q and ended as %+v, want each instruction once and Applied", killAt, got, last)
		}
		if killAt > 11 { // steps of an undisturbed life: stored, two files, and four for each instruction
			break
		}
	}
}

func TestAgentKilledWhileCleaningRepeatsNoInstruction(t *testing.T) {
	t.Parallel()
	for killAt := 1; killAt <= 9; killAt++ { // steps of an undisturbed life: stored, four of the instruction, files, stored again, journal
		state := t.TempDir()
		ran := filepath.Join(state, "ran")
		give(t, state, protocol.HostInstructions{Files: []protocol.HostFile{{Path: "/etc/a", Content: []byte("a")}},
			Instructions: []protocol.HostInstruction{appends("install", ran)}, Clean: []protocol.HostInstruction{appends("clean", ran)}})
		installed := startAgent(t, state, 0)
		installed.until(settled)
		installed.kill()
		if err := os.WriteFile(filepath.Join(state, "taken"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		gone := func(p protocol.HostProgress) bool { return p.Version == "" }
		_, cleaned := startAgent(t, state, killAt).until(gone)
		if !cleaned {
			_, cleaned = startAgent(t, state, 0).until(gone)
		}
		if err := os.Remove(filepath.Join(state, "taken")); err != nil {
			t.Fatal(err)
		}
		startAgent(t, state, 0).until(settled)
		if got := linesOf(t, ran); !cleaned || got != "install clean install" {
			t.Errorf("killed at step %d: cleaned %t, ran %q, want it cleaned once, and the same instructions to run on it again",
				killAt, cleaned, got)
		}
	}
}

func TestInstructionOutlivesItsAgent(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	begun, release, ran := filepath.Join(state, "begun"), filepath.Join(state, "release"), filepath.Join(state, "ran")
	if err := syscall.Mkfifo(release, 0o600); err != nil {
		t.Fatal(err)
	}
	give(t, state, protocol.HostInstructions{Instructions: []protocol.HostInstruction{
		{ID: "slow", Command: []string{"/bin/sh", "-c", `: >"$0"; read x <"$1"; echo slow >>"$2"`, begun, release, ran}}, appends("next", ran),
	}})
	a := startAgent(t, state, 0)
	testkit.Eventually(t, time.Minute, func(context.Context) error { _, err := os.Stat(begun); return err })
	a.kill()
	again := startAgent(t, state, 0)
	if p, _ := again.until(func(p protocol.HostProgress) bool { return p.Instruction == "slow" }); p.Phase != protocol.HostApplying {
		t.Errorf("the agent that came back has %+v, want the instruction that runs", p)
	}
	if err := os.WriteFile(release, []byte("go\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, _ := again.until(settled); p.Phase != protocol.HostApplied || linesOf(t, ran) != "slow next" {
		t.Errorf("ended as %+v with %q, want the result of the instruction that went on, and then the next", p, linesOf(t, ran))
	}
}

func TestHostIsNotCleanedWhileAnInstructionRuns(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	begun, release, ran := filepath.Join(state, "begun"), filepath.Join(state, "release"), filepath.Join(state, "ran")
	if err := syscall.Mkfifo(release, 0o600); err != nil {
		t.Fatal(err)
	}
	give(t, state, protocol.HostInstructions{
		Instructions: []protocol.HostInstruction{{ID: "install", Command: []string{"/bin/sh", "-c", `: >"$0"; read x <"$1"; echo install >>"$2"`, begun, release, ran}}},
		Clean:        []protocol.HostInstruction{appends("clean", ran)},
	})
	a := startAgent(t, state, 0)
	testkit.Eventually(t, time.Minute, func(context.Context) error { _, err := os.Stat(begun); return err })
	a.kill()
	if err := os.WriteFile(filepath.Join(state, "taken"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	again := startAgent(t, state, 0)
	again.until(func(p protocol.HostProgress) bool { return p.Phase == protocol.HostCleaning })
	entry := journal{filepath.Join(state, "state", folderJournal)}.entry("install")
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range 100 {
		<-tick.C // an agent that does not wait is done long before
		if _, err := os.Stat(entry); err != nil || linesOf(t, ran) != "" {
			t.Fatalf("while the instruction runs, its entry is %v and %q ran", err, linesOf(t, ran))
		}
	}
	if err := os.WriteFile(release, []byte("go\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, cleaned := again.until(func(p protocol.HostProgress) bool { return p.Version == "" }); !cleaned || linesOf(t, ran) != "install clean" {
		t.Errorf("cleaned %t, ran %q, want the instruction's end first", cleaned, linesOf(t, ran))
	}
}

func TestKilledSupervisorIsReportedAndItsInstructionNotRepeated(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	pid, ran := filepath.Join(state, "pid"), filepath.Join(state, "ran")
	slow := protocol.HostInstruction{ID: "slow", Command: []string{"/bin/sh", "-c", `echo x >>"$1"; echo $PPID >"$0.new"; mv "$0.new" "$0"; exec sleep 600`, pid, ran}}
	give(t, state, protocol.HostInstructions{Instructions: []protocol.HostInstruction{slow, appends("next", ran)}})
	a := startAgent(t, state, 0)
	testkit.Eventually(t, time.Minute, func(context.Context) error { _, err := os.Stat(pid); return err })
	supervising, err := strconv.Atoi(linesOf(t, pid))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(supervising, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if p, _ := a.until(settled); p.Phase != protocol.HostInterrupted || p.Instruction != "slow" {
		t.Errorf("got %+v, want Interrupted", p)
	}
	if _, err := os.Stat(filepath.Join(state, "journal", "slow", fileInstruction)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the variables of an instruction that was interrupted are in the journal: %v", err)
	}
	a.kill()
	if p, _ := startAgent(t, state, 0).until(settled); p.Phase != protocol.HostInterrupted || linesOf(t, ran) != "x" {
		t.Errorf("after a restart got %+v and %q, want the same and no second run", p, linesOf(t, ran))
	}
}

func TestOnlyOneOfSeveralSupervisorsRunsTheInstruction(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	ran := filepath.Join(state, "ran")
	j := journal{filepath.Join(state, "journal")}
	if err := j.prepare(appends("one", ran)); err != nil {
		t.Fatal(err)
	}
	var all []*exec.Cmd
	for range 8 {
		cmd := supervisor(j.entry("one"))
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		all = append(all, cmd)
	}
	for _, cmd := range all {
		if err := cmd.Wait(); err != nil {
			t.Errorf("a supervisor failed: %v", err)
		}
	}
	if state, _, _, err := j.look("one"); state != ended || err != nil || linesOf(t, ran) != "one" {
		t.Errorf("state %d, error %v, ran %q, want ended after one run", state, err, linesOf(t, ran))
	}
}
