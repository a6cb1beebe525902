// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// TestLong_ARestoredHubCleansNoHost: the hub's etcd goes back to a snapshot from before a host got its instructions.
func TestLong_ARestoredHubCleansNoHost(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed, which the join command takes")
	}
	if err := hostAgent(); err != nil {
		t.Fatal(err)
	}
	s := build(t)
	s.startHub(t)
	m := s.machine(t)
	host, command := s.host(t, "m1")
	m.join(command)
	m.start()
	m.await(host, "available", because(v1.ReasonHostAvailable))
	snapshot := s.snapshot(t)

	awaitLease(t, s.hub.Plane, managerLease(), snapshot.lease)
	ran := func(want string) {
		t.Helper()
		if got := ran(t, m.path("ran")); got != want {
			t.Errorf("ran %q, want %q", got, want)
		}
	}
	appends := func(id string) protocol.HostInstruction {
		return protocol.HostInstruction{ID: id, Command: []string{"/bin/sh", "-c", `echo "$DROVER_INSTRUCTION" >>"$0"`, m.path("ran")}}
	}
	plan := protocol.HostInstructions{Instructions: []protocol.HostInstruction{appends("install")}, Clean: []protocol.HostInstruction{appends("uninstall")}}
	s.instruct(t, host, plan)
	m.await(host, "active", inState(v1.HostActive))

	waits := func(remove, change int) func(*v1.Host) bool {
		return func(h *v1.Host) bool {
			return meta.IsStatusConditionFalse(h.Status.Conditions, v1.ConditionRestoreConfirmed) && len(h.Status.Restore.Remove) == remove && len(h.Status.Restore.Change) == change
		}
	}
	s.restoreSnapshot(t, snapshot)
	m.await(host, "held", waits(1, 0))
	if out, code := s.restored(t, "--all"); code != 1 || !strings.Contains(out, "default/host/m1: 0 to add, 0 to change, 1 to remove") {
		t.Errorf("the list ends with %d:\n%s", code, out)
	}
	ran("install")
	s.instruct(t, host, plan)
	m.await(host, "held with the instructions that were made again", waits(0, 1))
	ran("install")
	if out, code := s.restored(t, "host/m1", "-w", host.Namespace, "--yes"); code != 0 || !strings.Contains(out, "Confirmed: 1.") {
		t.Fatalf("it ends with %d:\n%s", code, out)
	}
	m.await(host, "active and not held", func(h *v1.Host) bool {
		return h.Status.State == v1.HostActive && h.Status.Restore == nil && because(v1.ReasonActive)(h)
	})
	ran("install")
	if out, err := s.plugin(t, "host", "clean", "m1", "-w", host.Namespace, "--yes"); err != nil {
		t.Fatal(out, err)
	}
	m.await(host, "available again", func(h *v1.Host) bool {
		return because(v1.ReasonHostAvailable)(h) && meta.FindStatusCondition(h.Status.Conditions, v1.ConditionRestoreConfirmed) == nil
	})
	ran("install uninstall")
	if out, err := s.plugin(t, "host", "list", "-A"); err != nil || !strings.Contains(out, "default     m1     Available") {
		t.Error(out, err)
	}
	if out, err := s.plugin(t, "host", "release", "m1", "-w", host.Namespace, "--yes"); err != nil {
		t.Error(out, err)
	}
	select {
	case <-m.process.Exited():
	case <-within(t, time.Minute).Done():
		t.Error("the agent still runs")
	}
}
