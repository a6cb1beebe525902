// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover/agent/host"
	"github.com/drover-dev/drover/test/testkit"
)

func TestSystemdAcceptsTheUnit(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd is not installed")
	}
	file := filepath.Join(t.TempDir(), unitName)
	if err := os.WriteFile(file, fmt.Appendf(nil, unit, "/bin/true", host.DefaultConfigDir, host.EnvConfigDir), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", file).CombinedOutput()
	if err != nil || strings.Contains(string(out), unitName) {
		t.Errorf("%v: %s", err, out)
	}
}

// TestTheAgentUnderSystemd boots its own systemd in namespaces. It needs root, overlayfs and cgroup v2.
func TestTheAgentUnderSystemd(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/usr/lib/systemd/systemd"); err != nil || os.Geteuid() != 0 {
		t.Skip("systemd is not installed, or this is not root")
	}
	dir := t.TempDir()
	share := filepath.Join(dir, "share")
	for _, folder := range []string{"share", "root", "over"} {
		if err := os.Mkdir(filepath.Join(dir, folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(share, "drover-host-agent"), ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	script, err := os.ReadFile("testdata/unit.sh")
	if err = errors.Join(err, os.WriteFile(filepath.Join(share, "unit.sh"), script, 0o600)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute*testkit.Patience)
	defer cancel()
	boot := exec.CommandContext(ctx, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--uts", "--net", "--ipc", "--cgroup", "bash", "testdata/boot.sh", dir)
	boot.WaitDelay = 10 * time.Second
	out, _ := boot.CombinedOutput() // it ends by powering off
	if _, err := os.Stat(filepath.Join(share, "booted")); err != nil {
		t.Skipf("no systemd boots here: %s", out)
	}
	found, _ := os.ReadFile(filepath.Join(share, "found"))
	const want = `after join it is enabled and active
after restart and kill it is active, restarted by systemd 1 time
it ran: begun ended next 
without a configuration it is inactive
`
	if string(found) != want {
		log, _ := os.ReadFile(filepath.Join(share, "log"))
		t.Errorf("found:\n%s\nwant:\n%s\n%s\n%s", found, want, log, out)
	}
}
