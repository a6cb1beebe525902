// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instructions

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

func TestStartingServiceIsStoppedWithoutWaiting(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		runs, next string
		ends       bool
	}{
		"a start, and instructions that stop it":         {"start-a-1", "stop-b", true},
		"a start, and other instructions":                {"start-a-1", "install-b", false},
		"an installation, and instructions that stop it": {"install-a-1", "stop-b", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			runner, err := New(Options{State: filepath.Join(dir, "state"), Root: dir, Supervisor: supervisor,
				Log: logr.Discard()})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			over := make(chan struct{})
			go func() { runner.Run(ctx); close(over) }()
			t.Cleanup(func() { cancel(); <-over })
			set := func(version string, command ...string) {
				id := tt.runs
				if version == "v2" {
					id = tt.next
				}
				given := &protocol.HostInstructions{Instructions: []protocol.HostInstruction{{ID: id, Command: command, TimeoutSeconds: 30}}}
				if err := runner.Set("", version, given); err != nil {
					t.Fatal(err)
				}
			}
			until := filepath.Join(dir, "until")
			set("v1", "/bin/sh", "-c", `until test -e "$0"; do sleep 0.1; done`, until)
			is := func(want state) error {
				if got, result, _, err := runner.journal.look(tt.runs); got != want || err != nil {
					return fmt.Errorf("%s is %v, %+v (%v), want %v", tt.runs, got, result, fmt.Sprint(err), want)
				}
				return nil
			}
			testkit.Eventually(t, time.Minute, func(context.Context) error { return is(running) })
			set("v2", "touch", until) // this ends an instruction that the agent does not end
			if !tt.ends {
				testkit.Eventually(t, time.Minute, func(context.Context) error {
					if runner.Progress().Version != "v2" {
						return fmt.Errorf("%+v, want the second instructions", runner.Progress())
					}
					return nil
				})
				if err := is(running); err != nil {
					t.Error(err)
				}
				return
			}
			testkit.Eventually(t, 20*time.Second, func(context.Context) error {
				if p := runner.Progress(); p.Version != "v2" || p.Phase != protocol.HostApplied {
					return fmt.Errorf("%+v, want the instructions that stop it to be carried out", p)
				}
				return is(ended)
			})
			if _, result, _, _ := runner.journal.look(tt.runs); !strings.Contains(result.Error, "ended before its time") {
				t.Errorf("%+v, want it to say why it has ended", result)
			}
		})
	}
}

func TestAllUsersCanEnterDirectoriesBelowEtc(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for path, want := range map[string]fs.FileMode{
		"/etc/rancher/k3s/config.yaml": 0o755, "/var/lib/rancher/k3s/server/manifests/a.yaml": 0o700,
		"/etcetera/x/file": 0o700,
	} {
		if err := writeFile(root,
			protocol.HostFile{Path: path, Content: []byte("token: x"), UID: os.Geteuid(), GID: os.Getegid()}); err != nil {
			t.Fatal(err)
		}
		for file, mode := range map[string]fs.FileMode{path: 0o600, filepath.Dir(path): want} {
			info, err := os.Stat(filepath.Join(root, file))
			if err != nil || info.Mode().Perm() != mode {
				t.Errorf("%s has the mode %v (%v), want %v", file, info.Mode().Perm(), err, mode)
			}
		}
	}
}

func TestInstallerInheritsTheOwnersVariables(t *testing.T) {
	for _, name := range []string{"INSTALL_K3S_SKIP_DOWNLOAD", "GITHUB_URL", "SSL_CERT_FILE", "DROVER_OTHER"} {
		t.Setenv(name, "set")
	}
	result := execute(t.Context(), protocol.HostInstruction{ID: "a", TimeoutSeconds: 30, Command: []string{"/bin/sh", "-c",
		`echo "$INSTALL_K3S_SKIP_DOWNLOAD $GITHUB_URL $SSL_CERT_FILE ${DROVER_OTHER:-unset}"`}})
	if got := strings.TrimSpace(result.Output); got != "set set set unset" {
		t.Errorf("an instruction has %q, want those of installers and no other", got)
	}
}
