// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

func TestAnErrorIsLeftForTheKubelet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "termination-log")
	leaveMessage(path, &runError{errors.New("x")})
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("outside of a container: %v, want no file", err)
	}
	if err := os.WriteFile(path, []byte("an earlier message, which is longer than the next one"), 0o600); err != nil {
		t.Fatal(err)
	}
	leaveMessage(path, &runError{errors.New("dial http://user:s3cret@proxy:\nrefused")})
	leaveMessage(path, errors.New("of loglevel, which runs beside the agent"))
	if text, err := os.ReadFile(path); err != nil || string(text) != "dial http://***@proxy: refused" {
		t.Errorf("the message is %q, %v", text, err)
	}
}

func TestCommand(t *testing.T) {
	t.Setenv("DROVER_SOCKET", filepath.Join(t.TempDir(), "s"))
	t.Setenv("DROVER_SERVER", "http://plain.example")
	for name, tc := range map[string]struct {
		args      []string
		out, says string // says must be in the error
	}{
		"version prints it":                 {args: []string{"version"}, out: version},
		"--version prints it, too":          {args: []string{"--version"}, out: version},
		"without a command the agent runs":  {says: "not an https URL"},
		"run does the same":                 {args: []string{"run"}, says: "not an https URL"},
		"node runs a node agent":            {args: []string{"node"}, says: "not an https URL"},
		"loglevel needs a level":            {args: []string{"loglevel"}, says: `"set" not set`},
		"loglevel knows two levels":         {args: []string{"loglevel", "--set", "trace"}, says: "debug or info"},
		"loglevel without an agent says so": {args: []string{"loglevel", "--set", "debug"}, says: "no agent listens"},
		"an unknown command is an error":    {args: []string{"rnu"}, says: "rnu"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			root := command()
			root.SetArgs(append([]string{}, tc.args...))
			root.SetOut(&out)
			err := root.ExecuteContext(t.Context())
			if (err != nil) != (tc.says != "") || err != nil && !strings.Contains(err.Error(), tc.says) ||
				!strings.Contains(out.String(), tc.out) {
				t.Errorf("got the output %q and the error %v, want others", out.String(), err)
			}
		})
	}
}

func TestAgentUsesOneCoreUnlessItsEnvironmentSetsMore(t *testing.T) {
	cores, percent := runtime.GOMAXPROCS(3), debug.SetGCPercent(77)
	t.Cleanup(func() { runtime.GOMAXPROCS(cores); debug.SetGCPercent(percent) })
	setRuntime(func(string) string { return "given" })
	if got := runtime.GOMAXPROCS(0); got != 3 {
		t.Errorf("got %d cores, want the number in the environment", got)
	}
	setRuntime(func(string) string { return "" })
	if got := runtime.GOMAXPROCS(0); got != 1 {
		t.Errorf("got %d cores, want one", got)
	}
}
