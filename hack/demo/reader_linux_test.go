// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"syscall"
	"testing"
	"time"

	lablib "github.com/drover-dev/drover/test/lab/nodes"
)

const (
	// envRun asks for the test of the demo with real nodes, which takes root and minutes: make test-demo.
	envRun = "DROVER_TEST_DEMO"

	// commandLimit is how long one command may take, on a busy machine too.
	commandLimit = 15 * time.Minute
)

// A reader has a copy of the sources and types there what README and guide say.
type reader struct {
	files layout
}

func newReader(t *testing.T) *reader {
	t.Helper()
	if os.Getenv(envRun) == "" {
		t.Skip("it takes root and minutes: make test-demo")
	}
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "demo-") //nolint:usetesting // short: there is a socket below
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{files: layout{root: dir}}
	t.Cleanup(func() {
		if out, err := r.tries(context.Background(), "make demo-down"); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	copying := exec.CommandContext(t.Context(), "bash", "-o", "pipefail", "-c",
		`git ls-files -z --cached --others --exclude-standard | tar --create --null --ignore-failed-read --files-from=- | tar --extract --directory="$0"`, dir)
	copying.Dir = root
	if out, err := copying.CombinedOutput(); err != nil {
		t.Fatalf("copy the sources: %v\n%s", err, out)
	}
	return r
}

// command is a command line in the folder of the sources, whose processes are a group.
func (r *reader) command(ctx context.Context, line string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", line)
	cmd.Dir, cmd.Env = r.files.root, append(os.Environ(), "KUBERC=off", "KUBECACHEDIR="+r.files.file("kube-cache"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

func (r *reader) tries(ctx context.Context, line string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	out, err := r.command(ctx, line).CombinedOutput()
	return string(out), err
}

// types runs a command line and returns its output. It fails the test if the command fails.
func (r *reader) types(t *testing.T, line string) string {
	t.Helper()
	start := time.Now()
	out, err := r.tries(t.Context(), line)
	if err != nil {
		t.Fatalf("$ %s\n%s\n%v", line, out, err)
	}
	t.Logf("$ %s\n%s(%s)", line, out, time.Since(start).Round(100*time.Millisecond))
	return out
}

// removes takes the demo down and fails if anything of it is left.
func (r *reader) removes(t *testing.T) {
	r.types(t, "make demo-down")
	left, err := lablib.FindLeftovers(r.files.lab())
	if err != nil || !left.Empty() {
		t.Errorf("left are %+v, %v", left, err)
	}
	if _, err := os.Stat(r.files.dir()); !os.IsNotExist(err) {
		t.Errorf("%s is there: %v", r.files.dir(), err)
	}
	running, err := exec.CommandContext(t.Context(), "pgrep", "-af", "--", regexp.QuoteMeta(r.files.dir())).Output()
	if len(running) > 0 {
		t.Errorf("these processes are left (%v):\n%s", err, running)
	}
}
