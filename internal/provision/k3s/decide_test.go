// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/k3s/decision"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// settled returns a world with this many servers and workers, all up.
func settled(t *testing.T, servers, workers int) *world {
	t.Helper()
	w := newWorld(t, 1, pool("server", -1, provisionv1.RoleEtcd, provisionv1.RoleControlPlane), pool("worker", -1, provisionv1.RoleWorker))
	w.add("server", servers)
	w.add("worker", workers)
	w.settle(200)
	return w
}

func TestBreakingChangeStopsAtTheFirstServer(t *testing.T) {
	t.Parallel()
	w := settled(t, 5, 2)
	w.spec.Version = "v1.36.0+k3s1"
	w.decide()
	first := w.machines["m0001"]
	if first.Held.Version != w.spec.Version {
		t.Fatalf("the first server has not begun: %+v", first.Held)
	}
	first.State = progress.Failed
	for range 20 {
		w.decide()
	}
	for name, m := range w.machines {
		if name != "m0001" && m.Held.Version == w.spec.Version {
			t.Errorf("%s was changed, too", name)
		}
	}
	if why := w.decide().Waiting["m0002"]; !strings.Contains(why, "server m0001: this change has broken it") {
		t.Errorf("m0002 %s", why)
	}
	w.spec.Version = "v1.36.1+k3s1"
	w.settle(200)
}

func TestHostWithUnreadableInstructionsIsLeftAloneAndDelaysNoOther(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"m0001", "m0002", "m0004"} { // the first server, another one, and a worker
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := settled(t, 3, 1)
			w.add("worker", 1)
			in := w.input()
			for i := range in.Hosts {
				if in.Hosts[i].Name == name {
					in.Hosts[i].Held = &roster.Held{Unreadable: true}
				}
			}
			out, err := Decide(in)
			if err != nil {
				t.Fatal(err)
			}
			if len(out.Release) > 0 || out.Instructions[name] != nil || out.Lost || out.Unselected {
				t.Errorf("released %v, the instructions %v, lost %t, unselected %t: want the host to be left as it is", out.Release, out.Instructions[name], out.Lost, out.Unselected)
			}
			if _, stays := out.Stored.Nodes[name]; !stays {
				t.Errorf("the nodes are %v, want %s to be one still", out.Stored.Nodes, name)
			}
			for other, given := range out.Instructions {
				if len(given.Removes) > 0 {
					t.Errorf("%s removes nodes, want none to be removed", other)
				}
			}
			if out.Ready != 3 || !slices.Equal(out.Take, []string{"m0005"}) {
				t.Errorf("%d hosts are ready and %v is taken, want the 3 others and the new worker: %v", out.Ready, out.Take, out.Waiting)
			}
		})
	}
}

func TestClusterWithoutSelectedServersIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := settled(t, 3, 2)
	for _, m := range w.machines {
		if m.Labels["pool"] == "server" {
			m.Labels = labels.Set{"pool": "typo"}
		}
	}
	if out := w.decide(); !out.Unselected || out.Lost || len(out.Release)+len(out.Instructions)+len(out.Take) > 0 {
		t.Errorf("it was changed: %+v", out)
	}
	for _, name := range []string{"m0001", "m0002", "m0003"} {
		w.machines[name].Leaving = true
	}
	if out := w.decide(); !out.Lost || len(out.Release) != 3 {
		t.Errorf("servers that are deleted by their Hosts are kept: %+v", out.Release)
	}
}

func TestDeletedHostIsReleasedAfterItsNodeIsRemoved(t *testing.T) {
	t.Parallel()
	w := settled(t, 3, 1)
	w.machines["m0002"].Leaving = true
	out := w.decide()
	if slices.Contains(out.Release, "m0002") || !strings.Contains(out.Waiting["m0002"], "its node to be removed") {
		t.Errorf("it is let go: %v, %s", out.Release, out.Waiting["m0002"])
	}
	w.settle(50)
	if w.machines["m0002"] != nil || w.nodes["m0002"] {
		t.Error("it is there still")
	}
	w.machines["m0003"].Leaving, w.machines["m0003"].Gone, w.machines["m0003"].Connected = true, true, false
	if out := w.decide(); !slices.Contains(out.Release, "m0003") {
		t.Errorf("one that is gone is waited for: %s", out.Waiting["m0003"])
	}
	w.settle(50)
}

func TestRestartedWorkerJoinsThroughAPresentServer(t *testing.T) {
	t.Parallel()
	w := settled(t, 2, 1)
	w.add("server", 1)
	w.settle(50)
	worker := w.machines["m0003"]
	before := worker.Held.Join
	delete(w.machines, "m0001")
	delete(w.nodes, "m0001")
	w.settle(50)
	if worker.Held.Join != before {
		t.Error("it was started again for the server alone")
	}
	w.spec.Version = "v1.36.0+k3s1"
	w.settle(100)
	if worker.Held.Join == before {
		t.Errorf("it joins by %s, which is gone", before)
	}
}

func TestOneServerRotatesEncryptionKeysAndAllRestart(t *testing.T) {
	t.Parallel()
	w := settled(t, 3, 1)
	w.spec.EncryptionKeyRotation = 1
	out := w.decide()
	var rotates []string
	for name, given := range out.Instructions {
		if i := slices.IndexFunc(given.Instructions, func(i protocol.HostInstruction) bool { return i.ID == "keys-1" }); i >= 0 {
			rotates = append(rotates, name)
			if i != len(given.Instructions)-1 || given.Start != w.machines[name].Held.Start {
				t.Errorf("it is instruction %d of %d, or the server is started again for it", i, len(given.Instructions))
			}
		}
	}
	if !slices.Equal(rotates, []string{"m0001"}) {
		t.Fatalf("the keys are rotated by %v", rotates)
	}
	before := map[string]string{}
	for name, m := range w.machines {
		before[name] = m.Held.Start
	}
	w.machines["m0001"].State = progress.Failed
	w.machines["m0001"].Message = "keys-1: exit code 1"
	if out = w.decide(); out.Stored.KeysFailed != 1 || !strings.Contains(out.Stored.KeysProblem, "host m0001: keys-1: exit code 1") || out.Instructions["m0001"].Task != "" {
		t.Errorf("what has failed is not remembered, or tried again: %+v", out.Stored)
	}
	w.settle(50)
	w.spec.EncryptionKeyRotation = 2
	w.settle(100)
	for name, m := range w.machines {
		if again := m.Held.Start != before[name]; again != (m.Labels["pool"] == "server") {
			t.Errorf("%s is started again: %t", name, again)
		}
	}
	if w.stored.Keys != 2 || w.stored.KeysProblem != "" {
		t.Errorf("stored %+v", w.stored)
	}
}

func TestRotationOfMissingKeysIsRefused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		distribution provisionv1.Distribution
		rotation     int64
		config       map[string]any
		fine         bool
	}{
		"none is wanted":      {provisionv1.DistributionK3s, 0, nil, true},
		"k3s has none":        {provisionv1.DistributionK3s, 1, nil, false},
		"k3s has been told":   {provisionv1.DistributionK3s, 1, map[string]any{"secrets-encryption": true}, true},
		"RKE2 always has":     {provisionv1.DistributionRKE2, 1, nil, true},
		"k3s was told not to": {provisionv1.DistributionK3s, 1, map[string]any{"secrets-encryption": false}, false},
	} {
		spec := roster.Spec{ServerConfig: tt.config}
		spec.Distribution, spec.EncryptionKeyRotation = tt.distribution, tt.rotation
		if err := CheckSpec(spec); (err == nil) != tt.fine {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// snapshotOn returns the host that makes a snapshot according to the snapshot's progress, or "" if there is none.
func snapshotOn(d decision.Decision, id types.UID) string {
	if p := d.Etcd.Snapshots[id]; p.Phase == provisionv1.SnapshotRunning {
		return p.Host
	}
	return ""
}

func TestOneWorkingServerMakesASnapshot(t *testing.T) {
	t.Parallel()
	w := settled(t, 3, 1)
	w.machines["m0001"].State = progress.Failed // a broken server does not delay a snapshot
	w.snapshots = []roster.Snapshot{{ID: "u1", Name: "before-u1"}, {ID: "u2", Name: "later-u2"}}
	out := w.decide()
	given := out.Instructions["m0002"]
	if snapshotOn(out, "u1") != "m0002" || snapshotOn(out, "u2") != "" || given.Task != "snapshot-u1" || given.Instructions[len(given.Instructions)-1].ID != "snapshot-u1" {
		t.Fatalf("%s on %s: %+v", out.Task, out.TaskHost, given.Held)
	}
	if command := given.Instructions[len(given.Instructions)-1].Command; !slices.Equal(command[len(command)-3:], []string{"k3s", "1", "before-u1"}) {
		t.Errorf("the command is %v", command)
	}
	w.machines["m0002"].State = progress.Up
	w.machines["m0002"].Connected = false
	if out = w.decide(); snapshotOn(out, "u1") != "m0002" {
		t.Errorf("another makes it, too, while the first is away: %s", out.TaskHost)
	}
	w.machines["m0002"].Connected = true
	out = w.decide()
	if got := out.Stored.Outcomes["u1"]; got != (roster.Outcome{Host: "m0002"}) || snapshotOn(out, "u2") == "" {
		t.Fatalf("outcome %+v, the next is made by %q", got, snapshotOn(out, "u2"))
	}
	p := out.Etcd.Snapshots["u1"]
	if p.Phase != provisionv1.SnapshotSucceeded || p.Host != "m0002" || !strings.Contains(string(p.Configuration), w.spec.Version) {
		t.Errorf("the progress is %+v, want the success on m0002, and the spec", p)
	}
	next := w.machines[snapshotOn(out, "u2")]
	next.State, next.Message = progress.Failed, "no room"
	if out = w.decide(); out.Stored.Outcomes["u2"] != (roster.Outcome{Host: next.Name, Problem: "no room"}) || out.Task != "" {
		t.Errorf("outcomes %+v, task %q", out.Stored.Outcomes, out.Task)
	}
	if p := out.Etcd.Snapshots["u2"]; p.Phase != provisionv1.SnapshotFailed || !strings.Contains(p.Message, "no room") {
		t.Errorf("the progress is %+v, want the failure with its reason", p)
	}
	w.snapshots = nil
	if out = w.decide(); out.Stored.Outcomes != nil {
		t.Errorf("outcomes %+v", out.Stored.Outcomes)
	}
}

func TestScheduleWithSnapshotsTurnedOffIsRefused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		schedule, option string
		value            any
		refused          bool
	}{
		"off":                           {"@daily", "etcd-disable-snapshots", true, true},
		"off, as a text":                {"@daily", "--etcd_disable-snapshots", "true", true},
		"on":                            {"@daily", "etcd-disable-snapshots", false, false},
		"off without a schedule":        {"", "etcd-disable-snapshots", true, false},
		"a schedule and another option": {"@daily", "etcd-snapshot-compress", true, false},
	} {
		for _, server := range []bool{false, true} {
			spec := roster.Spec{}
			spec.Distribution, spec.Etcd.Schedule = provisionv1.DistributionK3s, tt.schedule
			if config := map[string]any{tt.option: tt.value}; server {
				spec.ServerConfig = config
			} else {
				spec.Config = config
			}
			if err := CheckSpec(spec); (err != nil) != tt.refused {
				t.Errorf("%s: %v, want it refused: %t", name, err, tt.refused)
			}
		}
	}
}
