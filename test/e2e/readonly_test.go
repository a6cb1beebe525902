// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
)

// readOnly runs a program like a pod with readOnlyRootFilesystem: the program can only write to the folder of a mount.
// readOnly ends if this does not work.
const readOnly = `#!/bin/sh
exec unshare --mount --propagation private sh -c '
	set -e
	for place in / "$1"; do
		mount --bind "$place" "$place" && mount -o remount,bind,ro "$place"
	done
	cd "$1"
	if touch "$1/probe" 2>/dev/null; then echo "$1 can be written to" >&2; exit 1; fi
	mount -t tmpfs tmpfs "$2"
	shift 2
	exec "$@"' sh '{dir}' '{mounted}' '{program}' "$@"
`

// The manifests set readOnlyRootFilesystem. The manager has no writable folder. The agent has the mount of its socket.
func TestLong_BothProgramsRunOnAReadOnlyFileSystem(t *testing.T) {
	t.Parallel()
	if out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt").CombinedOutput(); err != nil {
		t.Skipf("no namespace of mounts can be made here: %v: %s", err, out)
	}
	s := build(t)
	mounted := filepath.Join(s.dir, "mounted")
	if err := os.Mkdir(mounted, 0o700); err != nil {
		t.Fatal(err)
	}
	wrap := func(program string) string {
		wrapped := filepath.Join(s.dir, filepath.Base(program))
		text := strings.NewReplacer("{dir}", s.dir, "{mounted}", mounted, "{program}", program).Replace(readOnly)
		if err := os.WriteFile(wrapped, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return wrapped
	}
	s.programs.Manager, s.programs.Agent = wrap(programs.Manager), wrap(programs.Agent)
	s.startHub(t)
	s.member = s.hub.Plane

	cluster, manifest := s.created(t, "read-only")
	agent := s.agent(t, manifest, "read-only", s.member, protocol.AgentNamespace, protocol.EnvSocket+"="+filepath.Join(mounted, "agent.sock"))
	s.await(t, cluster, time.Minute, framework.Ready)
	if log, err := os.ReadFile(agent.Log); err != nil || strings.Contains(string(log), "read-only file system") {
		t.Errorf("the agent could not write something: %v\n%s", err, log)
	}
	if log, err := os.ReadFile(s.hub.Manager.LogFile()); err != nil || strings.Contains(string(log), "read-only file system") {
		t.Errorf("the manager could not write something: %v\n%s", err, log)
	}
}
