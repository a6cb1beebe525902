// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// shell starts a script as a process that is killed at the end of the test, and waits until the script prints "ready".
func shell(t *testing.T, script string, change func(*Command)) *Process {
	t.Helper()
	c := Command{Name: "script", Path: "/bin/sh", Args: []string{"-c", script}, LogFile: filepath.Join(t.TempDir(), "log")}
	if change != nil {
		change(&c)
	}
	p, err := c.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill() })
	return p
}

func saysReady(p *Process) func(context.Context) error {
	return func(context.Context) error {
		content, err := os.ReadFile(p.LogFile())
		if err == nil && !strings.Contains(string(content), "ready\n") {
			err = errors.New("it has not said so")
		}
		return err
	}
}

func waitReady(t *testing.T, p *Process) {
	t.Helper()
	if err := p.WaitReady(t.Context(), saysReady(p)); err != nil {
		t.Fatal(err)
	}
}

func TestProcessStarts(t *testing.T) {
	t.Run("a process that ends before it is ready is named with its exit and its last words", func(t *testing.T) {
		p := shell(t, "echo cannot open the frobnicator; exit 3", nil)
		err := p.WaitReady(t.Context(), saysReady(p))
		if err == nil {
			t.Fatal("it was ready")
		}
		for _, want := range []string{"start script", "exit status 3", "cannot open the frobnicator", p.LogFile()} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("the error lacks %q: %v", want, err)
			}
		}
	})
	t.Run("a process that is not ready in time is named with the answer of its check", func(t *testing.T) {
		p := shell(t, "exec sleep 300", nil)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		err := p.WaitReady(ctx, saysReady(p))
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "it has not said so") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a program that does not exist is an error", func(t *testing.T) {
		_, err := Command{Path: "/does/not/exist", LogFile: filepath.Join(t.TempDir(), "log")}.Start()
		if !errors.Is(err, os.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	})
}

func TestProcessStartsAgain(t *testing.T) {
	often := func(t *testing.T, p *Process) int {
		t.Helper()
		content, err := os.ReadFile(p.LogFile())
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(content), "started")
	}
	t.Run("a program that ends by itself starts again as long as its log says that it may", func(t *testing.T) {
		first := filepath.Join(t.TempDir(), "first")
		p := shell(t, "echo started; [ -e "+first+" ] && echo broken && exit 4; touch "+first+"; echo tired; exit 3",
			func(c *Command) { c.Restart = func(log string) bool { return log == "tired" } })
		<-p.Exited()
		var exit *exec.ExitError
		if n := often(t, p); n != 2 || !errors.As(p.Err(), &exit) || exit.ExitCode() != 4 {
			t.Errorf("it started %d times and ended with %v, want 2 and 4", n, p.Err())
		}
	})
	always := func(c *Command) { c.Restart = func(string) bool { return true } }
	for name, end := range map[string]func(*Process) error{
		"one that is told to end does not":      func(p *Process) error { return p.Stop(t.Context()) },
		"one that is killed by a test does not": func(p *Process) error { return p.Kill() },
		"one that a signal ends does not":       func(p *Process) error { return p.Signal(syscall.SIGKILL) },
	} {
		t.Run(name, func(t *testing.T) {
			p := shell(t, "trap 'exit 3' TERM; echo started; echo ready; while :; do sleep 0.01; done", always)
			waitReady(t, p)
			if err := end(p); err != nil {
				t.Fatal(err)
			}
			<-p.Exited()
			if n := often(t, p); n != 1 {
				t.Errorf("it started %d times", n)
			}
		})
	}
}

func TestProcessStops(t *testing.T) {
	t.Run("a process that ends when asked is not killed, and its pid file goes", func(t *testing.T) {
		pidFile := filepath.Join(t.TempDir(), "x.pid")
		p := shell(t, "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.01; done",
			func(c *Command) { c.PIDFile = pidFile })
		waitReady(t, p)
		if !exists(pidFile) {
			t.Error("there is no pid file")
		}
		for range 2 {
			if err := p.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if p.Err() != nil || exists(pidFile) {
			t.Errorf("exit %v, pid file exists: %v", p.Err(), exists(pidFile))
		}
	})
	t.Run("a process that does not end is killed after its grace, and that is reported", func(t *testing.T) {
		p := shell(t, "trap '' TERM; echo ready; while :; do sleep 0.01; done",
			func(c *Command) { c.Grace = time.Millisecond })
		waitReady(t, p)
		if err := p.Stop(t.Context()); !errors.Is(err, ErrForced) {
			t.Errorf("got %v", err)
		}
		if alive(p.PID()) {
			t.Error("it is alive")
		}
	})
	t.Run("a paused process can be stopped", func(t *testing.T) {
		p := shell(t, "echo ready; exec sleep 300", nil)
		waitReady(t, p)
		if err := p.Pause(); err != nil {
			t.Fatal(err)
		}
		if err := p.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
	t.Run("signals to an ended process are refused", func(t *testing.T) {
		p := shell(t, "exit 0", nil)
		<-p.Exited()
		for _, err := range []error{p.Pause(), p.Resume(), p.Signal(syscall.SIGTERM)} {
			if !errors.Is(err, os.ErrProcessDone) {
				t.Errorf("got %v", err)
			}
		}
	})
}

func needLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux reports this")
	}
}

// helperStart starts a process and prints its PID.
func helperStart(dir string, detached bool) error {
	p, err := Command{
		Path: "/bin/sleep", Args: []string{"300"}, Detached: detached,
		LogFile: filepath.Join(dir, "log"), PIDFile: filepath.Join(dir, "sleep.pid"),
	}.Start()
	if err == nil {
		fmt.Println(p.PID())
	}
	return err
}

func TestStarterIsKilled(t *testing.T) {
	needLinux(t)
	t.Run("an attached process dies with it", func(t *testing.T) {
		helper, pid := startHelper(t, "start-attached", t.TempDir())
		killHelper(helper)
		eventually(t, "it dies", func() bool { return !alive(atoi(t, pid)) })
	})
	t.Run("a detached process lives on until it is stopped by its pid file", func(t *testing.T) {
		dir := t.TempDir()
		helper, pid := startHelper(t, "start-detached", dir)
		killHelper(helper)
		if names, err := Running(dir); err != nil || len(names) != 1 || names[0] != "sleep" {
			t.Fatalf("running: %v, %v", names, err)
		}
		for range 2 {
			if err := StopDetached(t.Context(), dir); err != nil {
				t.Fatal(err)
			}
		}
		if alive(atoi(t, pid)) {
			t.Error("it is alive")
		}
		if left := append(glob(t, dir, "*.pid"), glob(t, dir, "*.born")...); len(left) > 0 {
			t.Errorf("left over: %v", left)
		}
	})
}

func TestStopDetachedStopsOnlyItsOwnProcesses(t *testing.T) {
	foreign := exec.Command("/bin/sleep", "300")
	if err := foreign.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = foreign.Process.Kill(); _ = foreign.Wait() }()

	t.Run("a pid that has a new owner is left alone and its stale file removed", func(t *testing.T) {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "x.pid"), fmt.Sprintln(foreign.Process.Pid), 0o644)
		write(t, filepath.Join(dir, "x.born"), "boot another tick 1\n", 0o644)
		if err := StopDetached(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
		if !alive(foreign.Process.Pid) {
			t.Error("a foreign process was killed")
		}
		if exists(filepath.Join(dir, "x.pid")) {
			t.Error("the stale file is still there")
		}
	})
	for name, content := range map[string]string{
		"an empty file": "", "no number": "sleep\n", "every process": "-1\n", "the first process": "1\n", "our group": "0\n",
	} {
		t.Run("a pid file with "+name+" is reported and kills no process", func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "x.pid"), content, 0o644)
			if err := StopDetached(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "x.pid") {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("one bad pid file does not keep the others from being stopped", func(t *testing.T) {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "a.pid"), "nonsense", 0o644)
		p := shell(t, "exec sleep 300", func(c *Command) { c.PIDFile = filepath.Join(dir, "b.pid") })
		if err := StopDetached(t.Context(), dir); err == nil {
			t.Error("the bad file was not reported")
		}
		<-p.Exited()
	})
	t.Run("only what is named is stopped", func(t *testing.T) {
		dir := t.TempDir()
		a := shell(t, "exec sleep 300", func(c *Command) { c.PIDFile = filepath.Join(dir, "a.pid") })
		b := shell(t, "exec sleep 300", func(c *Command) { c.PIDFile = filepath.Join(dir, "b.pid") })
		if err := StopDetached(t.Context(), dir, "b", "c"); err != nil {
			t.Fatal(err)
		}
		<-b.Exited()
		if names, err := Running(dir); err != nil || len(names) != 1 || names[0] != "a" {
			t.Errorf("running: %v, %v", names, err)
		}
		if err := a.Kill(); err != nil {
			t.Error(err)
		}
	})
	t.Run("a pid file holds the pid alone, for kill", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "a.pid")
		p := shell(t, "exec sleep 300", func(c *Command) { c.PIDFile = file })
		if content, err := os.ReadFile(file); err != nil || string(content) != fmt.Sprintln(p.PID()) {
			t.Errorf("got %q, %v", content, err)
		}
	})
	t.Run("a folder that does not exist is nothing to stop", func(t *testing.T) {
		if err := StopDetached(t.Context(), filepath.Join(t.TempDir(), "none")); err != nil {
			t.Error(err)
		}
	})
}
