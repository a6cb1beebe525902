// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestNothingNamesACommitThatDoesNotHaveTheSources(t *testing.T) {
	dir := t.TempDir()
	if got := revision(t.Context(), dir); got != "" {
		t.Errorf("without a repository: got the commit %q, want none", got)
	}
	for _, args := range [][]string{
		{"init", "--quiet"},
		{"-c", "user.name=a", "-c", "user.email=a@b.test", "commit", "--quiet", "--allow-empty", "-m", "first"},
	} {
		command := exec.CommandContext(t.Context(), "git", args...)
		command.Dir = dir
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	if got := revision(t.Context(), dir); len(got) != 40 {
		t.Errorf("without changes: got the commit %q, want the commit that is checked out", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "new.go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := revision(t.Context(), dir); got != "" {
		t.Errorf("with a file that is not committed: got the commit %q, want none", got)
	}
}
