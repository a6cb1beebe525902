// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"slices"
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/provision/k3s/decision"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// changed returns the servers that a decision restarts.
func changed(w *world, out decision.Decision) (names []string) {
	for name, given := range out.Instructions {
		if m := w.machines[name]; given.Roles != "worker" && (m.Held == nil || m.Held.Start != given.Start) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// peek decides without acting.
func peek(t *testing.T, w *world) decision.Decision {
	t.Helper()
	out, err := Decide(w.input())
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestBreakingChangeStopsEvenWithADeadServerToRemove(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]func(*world){
		"a dead server's Host was deleted before":  func(w *world) { delete(w.machines, "m0003") },
		"the broken server's Host is deleted then": func(*world) {},
	} {
		w := settled(t, 3, 1)
		trouble(w)
		w.spec.Version = "v1.35.9+k3s1"
		w.decide()
		first := w.machines["m0001"]
		if first.Held.Version != w.spec.Version {
			t.Fatalf("%s: the first server has not begun: %+v", name, first.Held)
		}
		first.State, first.Leaving = progress.Failed, name == "the broken server's Host is deleted then"
		for range 10 {
			w.decide()
		}
		if m := w.machines["m0002"]; m.Held.Version == w.spec.Version {
			t.Errorf("%s: the change was done to another server, too", name)
		}
		if why := w.decide().Waiting["m0002"]; !strings.Contains(why, "or the spec is changed back") {
			t.Errorf("%s: m0002 %s", name, why)
		}
		w.spec.Version = "v1.35.1+k3s1"
		delete(w.machines, "m0001")
		delete(w.nodes, "m0001")
		w.settle(100)
	}
}

func TestServerWithATaskRestartsOnlyWithAQuorum(t *testing.T) {
	t.Parallel()
	w := settled(t, 3, 1)
	w.machines["m0003"].Connected = false
	w.snapshots = []roster.Snapshot{{ID: "u1", Name: "a"}}
	w.decide()
	if w.machines["m0001"].Held.Task == "" {
		t.Fatal("no snapshot is made")
	}
	w.machines["m0001"].State = progress.Running
	w.spec.CertificateRotation++
	if names := changed(w, peek(t, w)); len(names) > 0 {
		t.Errorf("%v are started again, with one of three servers away", names)
	}
}

func TestNothingIsStartedWhileEncryptionKeysAreRotated(t *testing.T) {
	t.Parallel()
	w := settled(t, 3, 1)
	w.spec.EncryptionKeyRotation = 1
	out := w.decide()
	if out.Task != "keys-1" {
		t.Fatalf("the task is %q", out.Task)
	}
	w.machines[out.TaskHost].State = progress.Running
	w.spec.Version = "v1.35.9+k3s1"
	w.add("server", 1)
	w.machines["m0005"].Taken = true
	out = peek(t, w)
	if names := changed(w, out); len(names) > 0 {
		t.Errorf("%v are started", names)
	}
	for _, name := range []string{"m0001", "m0002", "m0005"} {
		if !strings.Contains(out.Waiting[name], "to rotate the encryption keys") {
			t.Errorf("%s %s", name, out.Waiting[name])
		}
	}
	w.settle(200)
	if w.stored.Keys != 1 {
		t.Errorf("the keys are those of rotation %d", w.stored.Keys)
	}
}

func TestServersAreStartedAgainAfterARotationThatFailed(t *testing.T) {
	t.Parallel()
	w := settled(t, 3, 1)
	starts := w.machines["m0002"].Held.Starts
	w.spec.EncryptionKeyRotation = 1
	w.machines[w.decide().TaskHost].State = progress.Failed
	w.settle(200)
	if w.stored.KeysFailed != 1 || w.machines["m0002"].Held.Starts == starts {
		t.Errorf("failed rotation %d, m0002 was started again: %t: what the command has changed is not known", w.stored.KeysFailed, w.machines["m0002"].Held.Starts != starts)
	}
}

func TestFailedRemovalRunsAgain(t *testing.T) {
	t.Parallel()
	w := settled(t, 3, 2)
	w.machines["m0005"].Labels = nil
	out := w.decide()
	var ids []string
	for _, m := range w.machines {
		ids = append(ids, m.Held.Removes...)
	}
	if len(ids) != 1 {
		t.Fatalf("removals %v: %+v", ids, out.Waiting)
	}
	for _, m := range w.machines {
		if len(m.Held.Removes) > 0 {
			m.State, m.journal[ids[0]] = progress.Failed, false
		}
	}
	w.settle(100)
	if w.nodes["m0005"] {
		t.Error("the node is there still")
	}
}

func TestFormerStateIsInstalledAndStartedAgain(t *testing.T) {
	t.Parallel()
	w := settled(t, 1, 1)
	first := *w.machines["m0001"].Held
	for _, version := range []string{"v1.35.2+k3s1", "v1.35.1+k3s1"} {
		w.spec.Version = version
		w.settle(100)
	}
	m := w.machines["m0001"]
	if m.Held.Start != first.Start || startID(m.Held) == startID(&first) || m.Held.Install != first.Install || m.Held.Installs == first.Installs || m.runs != first.Start {
		t.Errorf("%+v after %+v: it runs %s", m.Held, first, m.runs)
	}
}

func TestWorkersThatDisconnectDuringAChangeAreCounted(t *testing.T) {
	t.Parallel()
	w := settled(t, 3, 6)
	w.spec.MaxUnavailable = 1
	w.spec.Version = "v1.35.9+k3s1"
	for range 200 {
		w.decide()
		for name, m := range w.machines {
			if m.Labels["pool"] == "worker" && m.Held.Version == w.spec.Version {
				m.Connected = false // before it was up
			} else if m.State = progress.Up; m.runs != m.Held.Start {
				w.carryOut(m)
				w.nodes[name] = true
			}
		}
	}
	gone := 0
	for _, m := range w.machines {
		gone += count(!m.Connected)
	}
	if gone != 1 {
		t.Errorf("%d workers were taken away by a change, want at most maxUnavailable, 1", gone)
	}
}

func TestSnapshotOnALostServerDelaysNoOther(t *testing.T) {
	t.Parallel()
	w := settled(t, 3, 1)
	w.snapshots = []roster.Snapshot{{ID: "u1", Name: "a"}, {ID: "u2", Name: "b"}}
	lost := w.machines[w.decide().TaskHost]
	lost.Connected, lost.State = false, progress.Running
	if out := w.decide(); out.Stored.Outcomes["u1"].Problem != "" {
		t.Errorf("a server that was away for a moment is given up: %+v", out.Stored.Outcomes)
	}
	lost.Lost = true
	if out := w.decide(); out.Stored.Outcomes["u1"].Problem == "" || snapshotOn(out, "u2") == "" || snapshotOn(out, "u2") == lost.Name {
		t.Errorf("outcomes %+v, the next is made by %q", out.Stored.Outcomes, snapshotOn(out, "u2"))
	}
}

func TestCleanedEtcdMemberCountsUntilItsNodeIsRemoved(t *testing.T) {
	t.Parallel()
	w := settled(t, 3, 1)
	m := w.machines["m0003"]
	*m = machine{Host: roster.Host{Name: m.Name, UID: m.UID, Labels: m.Labels, Address: m.Address, Connected: true, Taken: true}}
	before := w.stored.Nodes["m0003"].Join
	out := w.decide()
	if out.Instructions["m0003"] != nil || len(out.Instructions["m0001"].Removes) != 1 {
		t.Errorf("m0003 is given instructions: %t; removals of m0001: %v", out.Instructions["m0003"] != nil, out.Instructions["m0001"].Removes)
	}
	r := &roster.Roster{Input: roster.Input{Stored: out.Stored}}
	if members, _ := r.Etcd(); members != 3 {
		t.Errorf("%d members of etcd are counted, want 3", members)
	}
	w.settle(200)
	if w.stored.Nodes["m0003"].Join == before {
		t.Error("it did not join anew")
	}
}

func TestRestoredHubReusesNoNumbers(t *testing.T) {
	t.Parallel()
	w := settled(t, 1, 1)
	in := w.input()
	in.Now = 1_800_000_000
	in.Spec.Version = "v1.35.9+k3s1"
	out, err := Decide(in)
	if err != nil || out.Instructions["m0001"].Starts != in.Now {
		t.Errorf("%v, the start has number %d, want the time", err, out.Instructions["m0001"].Starts)
	}
}
