// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	helperEnv    = "DROVER_LAB_TEST_HELPER"
	helperDirEnv = "DROVER_LAB_TEST_DIR"
)

// TestMain makes the test binary act as a helper if it is started as one. Helpers are programs that are killed.
func TestMain(m *testing.M) {
	helpers := map[string]func(dir string) error{
		"build":          helperBuild,
		"start-attached": func(dir string) error { return helperStart(dir, false) },
		"start-detached": func(dir string) error { return helperStart(dir, true) },
		"plane-detached": helperPlane,
	}
	helper, ok := helpers[os.Getenv(helperEnv)]
	if !ok {
		os.Exit(m.Run())
	}
	if err := helper(os.Getenv(helperDirEnv)); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	select {} // wait to be killed
}

// startHelper runs the test binary as a helper, and returns the helper and its first line of output.
func startHelper(t *testing.T, name, dir string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"="+name, helperDirEnv+"="+dir)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { killHelper(cmd) })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || strings.HasPrefix(line, "error:") {
		t.Fatalf("helper %s: %q, %v", name, line, err)
	}
	return cmd, strings.TrimSpace(line)
}

// killHelper kills the helper with SIGKILL.
func killHelper(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// alive reports whether a process with this PID runs. It ignores zombies.
func alive(pid int) bool {
	_, zombie, err := bornAt(pid)
	return err == nil && !zombie
}

// eventually polls until a condition is met that depends on the kernel or another process.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(s))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}

// exists returns an error only if the file does not exist.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// watchedOutput lets a test wait until a text is printed.
type watchedOutput struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (w *watchedOutput) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(p)
}

func (w *watchedOutput) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

func glob(t *testing.T, elements ...string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(elements...))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}
