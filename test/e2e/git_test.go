// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"errors"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// repository is a Git repository that Git's own program serves over HTTP on the loopback address.
type repository struct {
	url      string
	worktree string

	mu sync.Mutex
}

// serveGit creates a repository and serves it until the test ends.
func serveGit(t *testing.T) *repository {
	t.Helper()
	path, err := exec.LookPath("git")
	if err != nil {
		t.Skip("no git is installed")
	}
	root := t.TempDir()
	r := &repository{worktree: filepath.Join(root, "work")}
	r.run(t, root, "init", "--quiet", "--bare", "--initial-branch=main", "fleet.git")
	r.run(t, root, "init", "--quiet", "--initial-branch=main", "work")
	r.run(t, r.worktree, "remote", "add", "origin", filepath.Join(root, "fleet.git"))
	server := httptest.NewServer(&cgi.Handler{Path: path, Args: []string{"http-backend"}, Dir: root, Env: append(gitEnv(), "GIT_PROJECT_ROOT="+root, "GIT_HTTP_EXPORT_ALL=1")})
	t.Cleanup(server.Close)
	r.url = server.URL + "/fleet.git"
	return r
}

// gitEnv prevents the machine's Git settings from being used.
func gitEnv() []string {
	return []string{
		"GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=carol", "GIT_AUTHOR_EMAIL=carol@example.com", "GIT_COMMITTER_NAME=carol", "GIT_COMMITTER_EMAIL=carol@example.com",
	}
}

func (r *repository) run(t *testing.T, dir string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "git", args...)
	command.Dir, command.Env = dir, append(os.Environ(), gitEnv()...)
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return string(bytes.TrimSpace(out))
}

// commit replaces the content of the repository with the given files, pushes this, and returns the commit.
func (r *repository) commit(t *testing.T, message string, files map[string]string) string {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	entries, err := os.ReadDir(r.worktree)
	if err != nil {
		t.Fatal(err)
	}
	var errs []error
	for _, entry := range entries {
		if entry.Name() != ".git" {
			errs = append(errs, os.RemoveAll(filepath.Join(r.worktree, entry.Name())))
		}
	}
	for name, content := range files {
		path := filepath.Join(r.worktree, name)
		errs = append(errs, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600))
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	r.run(t, r.worktree, "add", "--all")
	r.run(t, r.worktree, "commit", "--quiet", "--allow-empty", "--message", message)
	r.run(t, r.worktree, "push", "--quiet", "origin", "main")
	return r.run(t, r.worktree, "rev-parse", "HEAD")
}

// head returns the latest commit.
func (r *repository) head(t *testing.T) string {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.run(t, r.worktree, "rev-parse", "HEAD")
}
