// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"maps"
	"slices"
	"strings"
	"testing"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/k3s/decision"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// toldTo returns what servers are told now: their names with the IDs of a restore's instructions.
func toldTo(out decision.Decision) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(out.Instructions)) {
		for _, i := range out.Instructions[name].Instructions {
			if kind, _, _ := strings.Cut(i.ID, "-"); slices.Contains([]string{"find", "stop", "restore", "keep", "resume", "rejoin", "start", "nodes"}, kind) {
				all = append(all, name[len(name)-1:]+":"+kind)
			}
		}
	}
	return strings.Join(all, " ")
}

// done makes all machines carry out their instructions.
func (w *world) done() {
	for _, m := range w.machines {
		if m.Held == nil || m.State != progress.None {
			continue
		}
		if w.carryOut(m) {
			m.State, m.registered = progress.Up, m.Held.Start
		}
	}
}

// step decides, and checks the instructions, the step and what it waits for.
func (w *world) step(want string, step roster.Step, waits string) decision.Decision {
	w.t.Helper()
	out := w.decide()
	if got := toldTo(out); got != want || out.Restore.Step != step || !strings.Contains(out.Restore.Waits, waits) {
		w.t.Fatalf("told %q, step %q, waits for %q, want %q, %q, %q (%+v)", got, out.Restore.Step, out.Restore.Waits, want, step, waits, out.Stored.Outcomes)
	}
	return out
}

// restores returns a settled world of three servers and a worker, with requested restores for its second server.
func restores(t *testing.T, ids ...string) *world {
	t.Helper()
	w := settled(t, 3, 1)
	for _, id := range ids {
		w.restores = append(w.restores, roster.Restore{ID: id, Name: "of-" + id, Host: "m0002", File: "before", Begins: true})
	}
	return w
}

func TestRestoreStopsAllServersAndThenLetsThemJoinOne(t *testing.T) {
	t.Parallel()
	w := restores(t, "r1", "r2")
	w.step("2:find", roster.StepFind, "host m0002, which looks for the file")
	w.spec.Version, w.spec.Pools[0].Replicas = "v1.36.0+k3s1", nil
	w.add("server", 1)
	w.done()
	w.step("1:stop 2:stop 3:stop", roster.StepStop, "to stop")
	w.step("", roster.StepStop, "host m0003, which stops")
	w.done()
	w.step("2:stop 2:restore", roster.StepRestore, "host m0002, which replaces its data")
	w.restores[0].Cancel = true
	out := w.step("", roster.StepRestore, "replaces its data") // it is too late
	if p := out.Etcd.Restores["r1"]; p.Phase != provisionv1.RestoreRestoring || !strings.Contains(p.Message, "too late to cancel") {
		t.Errorf("the progress of r1 is %+v, want it to be restoring, and too late to cancel", p)
	}
	if p := out.Etcd.Restores["r2"]; p.Phase != provisionv1.RestorePending || p.Message != "waits for EtcdRestore of-r1" {
		t.Errorf("the progress of r2 is %+v, want it to wait for r1", p)
	}
	w.done()
	out = w.step("2:keep 2:start", roster.StepJoin, "host m0002, which is started again")
	if w.stored.First != "m0002" || w.stored.Epoch != "r1" || len(out.Take) > 0 || out.Instructions["m0002"].Join != "" {
		t.Errorf("stored %+v, take %v, joins by %q", w.stored, out.Take, out.Instructions["m0002"].Join)
	}
	w.step("", roster.StepJoin, "host m0002, which starts")
	w.done()
	out = w.step("1:rejoin 1:start", roster.StepJoin, "host m0001")
	if join := out.Instructions["m0001"].Join; join != "https://10.0.0.2:6443" {
		t.Errorf("the server that began the cluster joins by %q, want the one that has the data", join)
	}
	w.done()
	w.step("3:rejoin 3:start", roster.StepJoin, "host m0003")
	w.done()
	out = w.step("2:nodes", roster.StepNodes, "host m0002, which removes nodes")
	if i := out.Instructions["m0002"].Instructions; len(i) != 1 || !slices.Contains(i[0].Command, "NODES=m0001 m0002 m0003 m0004") {
		t.Errorf("the nodes that stay are %v", i)
	}
	w.done()
	if out = w.decide(); out.Stored.Outcomes["r1"] != (roster.Outcome{Host: "m0002", Restored: true}) || out.Stored.Restore != nil {
		t.Fatalf("the outcome is %+v", out.Stored.Outcomes)
	}
	if p := out.Etcd.Restores["r1"]; p.Phase != provisionv1.RestoreSucceeded || p.Host != "m0002" || p.File != "before" {
		t.Errorf("the progress of r1 is %+v, want the success on m0002 with its file", p)
	}
	w.restores = w.restores[:1]
	w.settle(100)
	for name, m := range w.machines {
		if m.Held.Version != w.spec.Version || m.Held.Epoch != "r1" {
			t.Errorf("%s has version %s and data of %q", name, m.Held.Version, m.Held.Epoch)
		}
	}
}

func TestRestoreWithoutItsFileStopsNothing(t *testing.T) {
	t.Parallel()
	w := restores(t, "r1")
	w.decide()
	m := w.machines["m0002"]
	before := m.Held.Start
	m.State, m.Message, m.Output = progress.Failed, "find-r1: exit code 1", "0 files\n"
	out := w.decide()
	if o := out.Stored.Outcomes["r1"]; o.Problem != "find-r1: exit code 1; its last lines: 0 files" || o.Restored || o.Host != "m0002" {
		t.Errorf("the outcome is %+v", o)
	}
	w.settle(50)
	if m.Held.Start != before || !m.serves {
		t.Error("it was started again")
	}
}

func TestFailedRestoreBringsBackTheFormerData(t *testing.T) {
	t.Parallel()
	w := restores(t, "r1")
	for range 2 {
		w.decide()
		w.done()
	}
	w.step("2:stop 2:restore", roster.StepRestore, "")
	m := w.machines["m0002"]
	w.carryOut(m) // it was interrupted
	m.State, m.Message = progress.Failed, "restore-r1: interrupted"
	out := w.decide()
	if o := out.Stored.Outcomes["r1"]; !strings.Contains(o.Problem, "interrupted") || o.Restored || o.Canceled {
		t.Errorf("the outcome is %+v", o)
	}
	if got := toldTo(out); got != "1:resume 1:start 2:resume 2:start 3:resume 3:start 4:start" {
		t.Errorf("told %q, want all servers to start at the same time: none is up without a quorum", got)
	}
	w.done()
	w.settle(50)
	if w.decide(); m.data != "" || m.Held.Resumes || w.stored.Epoch != "" {
		t.Errorf("data %q, %+v, %+v", m.data, m.Held, w.stored)
	}
}

func TestARestoreIsCanceledBeforeDataIsReplaced(t *testing.T) {
	t.Parallel()
	for name, cancel := range map[string]func(*world){
		"by spec.cancel":   func(w *world) { w.restores[0].Cancel = true },
		"by its deletion":  func(w *world) { w.restores = nil },
		"before it begins": nil,
	} {
		w := restores(t, "r1")
		if cancel == nil {
			w.restores[0].Cancel = true
			if out := w.decide(); toldTo(out) != "1:start 2:start 3:start 4:start" || !out.Stored.Outcomes["r1"].Canceled {
				t.Errorf("%s: told %q, %+v", name, toldTo(out), out.Stored.Outcomes)
			}
			continue
		}
		w.decide()
		w.done()
		w.step("1:stop 2:stop 3:stop", roster.StepStop, "")
		w.done()
		cancel(w)
		out := w.decide()
		if got := toldTo(out); got != "1:resume 1:start 2:resume 2:start 3:resume 3:start 4:start" {
			t.Errorf("%s: told %q", name, got)
		}
		if o := out.Stored.Outcomes["r1"]; !o.Canceled || o.Restored {
			t.Errorf("%s: %+v", name, o)
		}
		w.done()
		w.settle(50)
	}
}

func TestServerThatCouldNotMoveItsDataAwayIsToldAgain(t *testing.T) {
	t.Parallel()
	w := restores(t, "r1", "r2")
	for range 4 {
		w.decide()
		w.done()
	}
	w.step("1:rejoin 1:start", roster.StepJoin, "host m0001")
	w.machines["m0001"].State = progress.Failed
	if out := w.decide(); !out.Stored.Outcomes["r1"].Restored || !strings.Contains(out.Stored.Outcomes["r1"].Problem, "host m0001 did not start") {
		t.Fatalf("%+v", out.Stored.Outcomes)
	}
	w.decide()
	w.done()
	w.step("1:stop 2:stop 3:stop", roster.StepStop, "")
	w.done()
	w.restores[1].Cancel = true
	if got := toldTo(w.decide()); got != "1:rejoin 1:start 2:resume 2:start 3:rejoin 3:start 4:start" {
		t.Errorf("told %q, want the first server to move its data away, if it has not", got)
	}
	w.done()
	w.settle(100)
}

func TestRestoreReportsTheReasonForWaiting(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*world)
		waits  string
		away   bool
	}{
		"a server is away":        {func(w *world) { w.machines["m0003"].Connected = false }, "the agent of host m0003, which is not connected", true},
		"the host is no server":   {func(w *world) { w.restores[0].Host = "m0004" }, "Host m0004 to be a server with etcd", false},
		"the host is not there":   {func(w *world) { w.restores[0].Host = "gone" }, "Host gone to be a server with etcd", false},
		"there is no cluster yet": {func(w *world) { w.stored.Begun = false }, "its cluster to begin", false},
		"a worker is away":        {func(w *world) { w.machines["m0004"].Connected = false }, "host m0002, which looks", false},
		"a server is broken":      {func(w *world) { w.machines["m0003"].State = progress.Failed }, "host m0002, which looks", false},
		"all of etcd is broken":   {func(w *world) { w.breakAll() }, "host m0002, which looks", false},
		"one that cannot be is left": {func(w *world) {
			w.restores = append([]roster.Restore{{ID: "r0", Problem: "no such snapshot"}}, w.restores...)
		}, "host m0002, which looks", false},
	} {
		w := restores(t, "r1")
		tt.change(w)
		if out, err := Decide(w.input()); err != nil || out.Restore.ID != "r1" || !strings.Contains(out.Restore.Waits, tt.waits) || out.Restore.Away != tt.away {
			t.Errorf("%s: %+v (%v)", name, out.Restore, err)
		}
	}
}

func (w *world) breakAll() {
	for _, m := range w.machines {
		m.State = progress.Unwell
	}
}

func TestClusterWithoutDataIsRestoredOnAFreeHost(t *testing.T) {
	t.Parallel()
	w := restores(t)
	for _, name := range []string{"m0001", "m0002", "m0003"} {
		delete(w.machines, name)
	}
	w.add("server", 1)
	if out := w.decide(); !out.Lost || len(out.Take) > 0 {
		t.Fatalf("lost %t, take %v", out.Lost, out.Take)
	}
	w.restores = []roster.Restore{{ID: "r1", Name: "of-r1", File: "in-the-bucket"}}
	if out := w.decide(); !slices.Equal(out.Take, []string{"m0005"}) {
		t.Fatalf("take %v", out.Take)
	}
	out := w.decide()
	if got := toldTo(out); got != "5:stop 5:restore" || out.Instructions["m0005"].Join != "" || out.Instructions["m0005"].Instructions[1].ID[:8] != "install-" {
		t.Fatalf("told %q, %+v", got, out.Instructions["m0005"])
	}
	w.done()
	w.step("5:keep 5:start", roster.StepJoin, "")
	w.done()
	w.settle(100)
	if w.machines["m0005"].data != "r1" || w.stored.Nodes["m0001"].UID != "" {
		t.Errorf("data %q, nodes %v", w.machines["m0005"].data, w.stored.Nodes)
	}
}

func TestAHostThatLosesTheRestoredDataLeavesNothingToStart(t *testing.T) {
	t.Parallel()
	w := restores(t, "r1")
	for range 3 {
		w.decide()
		w.done()
	}
	w.step("2:keep 2:start", roster.StepJoin, "")
	delete(w.machines, "m0002")
	out := w.decide()
	if o := out.Stored.Outcomes["r1"]; !o.Restored || !strings.Contains(o.Problem, "no server stays that has the restored data") || !out.Lost || toldTo(out) != "" {
		t.Errorf("outcome %+v, lost %t, told %q: the others have what was replaced", o, out.Lost, toldTo(out))
	}
}

func TestTheConfigurationIsWrittenBackBeforeDataIsReplaced(t *testing.T) {
	t.Parallel()
	w := restores(t, "r1")
	w.restores[0].Configuration = []byte("{}")
	for range 2 {
		w.decide()
		w.done()
	}
	out := w.step("", roster.StepRestore, "to be written back")
	if string(out.Configure) != "{}" {
		t.Fatalf("%+v", out)
	}
	w.stored.Restore.Configured = 7
	w.step("", roster.StepRestore, "to be read")
	in := w.input()
	in.Generation = 7
	if out, err := Decide(in); err != nil || toldTo(out) != "2:stop 2:restore" || out.Configure != nil {
		t.Errorf("told %q (%v)", toldTo(out), err)
	}
}
