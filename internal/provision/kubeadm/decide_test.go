// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeadm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
)

// planes returns three control planes on the hosts h1 to h3, with tasks of the restore r: "h1:prepare" is a task that
// succeeded, "h1:stop!" a failed task, and "h1:stop?" a task that has not ended.
func planes(tasks ...string) []Machine {
	var all []Machine
	for n := range 3 {
		name := fmt.Sprint("h", n+1)
		all = append(all, Machine{Name: "m" + name, Host: name, Endpoints: []string{"https://" + name}, Provisioned: true, Connected: true})
	}
	numbers := map[string]int{}
	for _, text := range tasks {
		state := Succeeded
		for suffix, s := range map[string]State{"!": Failed, "?": Running} {
			if rest, is := strings.CutSuffix(text, suffix); is {
				text, state = rest, s
			}
		}
		host, action, _ := strings.Cut(text, ":")
		numbers[text]++
		m := &all[host[1]-'1']
		m.Tasks = append(m.Tasks, task(fmt.Sprintf("restore-r-%s-%d", action, numbers[text]),
			Action("Etcd"+strings.ToUpper(action[:1])+action[1:]), infrav1.EtcdTask{Of: "r"}, state, "no space"))
	}
	return all
}

// task returns a task with its status.
func task(id string, action Action, etcd infrav1.EtcdTask, state State, message ...string) Task {
	t := newTask(action, etcd)
	t.ID, t.Status = id, infrav1.MachineTaskStatus{ID: id, State: state, Message: strings.Join(message, "")}
	return t
}

// news returns the tasks that a decision adds.
func news(in Input, d Decision) (all []string) {
	for _, m := range in.Machines {
		for _, t := range d.Tasks[m.Name] {
			if !slices.ContainsFunc(m.Tasks, func(o Task) bool { return o.ID == t.ID }) {
				all = append(all, m.Host+":"+verb(t.Action))
			}
		}
	}
	return all
}

func TestNextStepOfARestore(t *testing.T) {
	stopped := []string{"h2:prepare", "h1:stop", "h2:stop", "h3:stop"}
	away := func(host int) func(*Input) { return func(in *Input) { in.Machines[host-1].Connected = false } }
	gone := func(host int) func(*Input) {
		return func(in *Input) { in.Machines[host-1].Connected, in.Machines[host-1].Gone = false, true }
	}
	cancel := func(in *Input) { in.Restore.Cancel = true }
	for name, c := range map[string]struct {
		has    []string
		change func(*Input)
		want   []string // new tasks
		phase  provisionv1.EtcdRestorePhase
		pause  Pause
		says   string
		stuck  bool
	}{
		"Cluster API is paused first":                   {change: func(in *Input) { in.Paused = false }, phase: provisionv1.RestorePending, pause: Hold, says: "waits for Cluster API"},
		"the host with the file reads it":               {want: []string{"h2:prepare"}, phase: provisionv1.RestorePending, pause: Hold, says: "Nothing was stopped yet"},
		"a disconnected host is waited for":             {change: away(3), phase: provisionv1.RestorePending, pause: Release, says: "h3, whose agent is not connected", stuck: true},
		"a deleted host is not waited for":              {change: gone(3), want: []string{"h2:prepare"}, phase: provisionv1.RestorePending, pause: Hold},
		"a machine is bootstrapped first":               {change: func(in *Input) { in.Machines[0].Provisioned = false }, phase: provisionv1.RestorePending, pause: Release, says: "mh1"},
		"a machine that is being deleted is waited for": {change: func(in *Input) { in.Machines[0].Leaving = true }, phase: provisionv1.RestorePending, pause: Release, says: "mh1, which is being deleted"},
		"no snapshot":                                          {change: func(in *Input) { in.Restore.Problem = "there is none" }, phase: provisionv1.RestoreFailed, pause: Release, says: "there is none"},
		"a host that is no control plane":                      {change: func(in *Input) { in.Restore.Host = "h9" }, phase: provisionv1.RestoreFailed, pause: Release, says: "h9 is not a control plane"},
		"canceled before it has begun":                         {change: cancel, phase: provisionv1.RestoreCanceled, pause: Release},
		"a file that cannot be read once is read again":        {has: []string{"h2:prepare!"}, want: []string{"h2:prepare"}, phase: provisionv1.RestorePending, pause: Hold},
		"and then it has failed, and nothing was stopped":      {has: []string{"h2:prepare!", "h2:prepare!"}, want: []string{"h2:resume"}, phase: provisionv1.RestoreStopping, pause: Leave},
		"and the message has the reason":                       {has: []string{"h2:prepare!", "h2:prepare!", "h2:resume"}, phase: provisionv1.RestoreFailed, pause: Release, says: "h2 could not prepare: no space"},
		"all are stopped at once":                              {has: []string{"h2:prepare"}, want: []string{"h1:stop", "h2:stop", "h3:stop"}, phase: provisionv1.RestoreStopping, pause: Hold},
		"no host is stopped while one is disconnected":         {has: []string{"h2:prepare"}, change: away(1), phase: provisionv1.RestorePending, pause: Hold, says: "h1", stuck: true},
		"a host disconnects while it is stopped":               {has: []string{"h2:prepare", "h1:stop", "h2:stop", "h3:stop?"}, change: away(3), phase: provisionv1.RestoreStopping, pause: Hold, says: "delete its Host", stuck: true},
		"a host that does not stop ends the restore":           {has: []string{"h2:prepare", "h1:stop", "h2:stop", "h3:stop!", "h3:stop!"}, want: []string{"h1:resume", "h2:resume", "h3:resume"}, phase: provisionv1.RestoreStopping},
		"canceled when all are stopped":                        {has: stopped, change: cancel, want: []string{"h1:resume", "h2:resume", "h3:resume"}, phase: provisionv1.RestoreStopping},
		"canceled":                                             {has: append(stopped, "h1:resume", "h2:resume", "h3:resume"), change: cancel, phase: provisionv1.RestoreCanceled, pause: Release, says: "as it was before"},
		"the new etcd starts when all are stopped":             {has: stopped, want: []string{"h2:replace"}, phase: provisionv1.RestoreRestoring, pause: Hold},
		"it is too late to cancel":                             {has: append(stopped, "h2:replace?"), change: cancel, phase: provisionv1.RestoreRestoring, pause: Hold, says: "too late"},
		"the start is tried again":                             {has: append(stopped, "h2:replace!"), want: []string{"h2:replace"}, phase: provisionv1.RestoreRestoring, pause: Hold},
		"and then a person must act":                           {has: append(stopped, "h2:replace!", "h2:replace!"), phase: provisionv1.RestoreFailed, pause: Leave, says: "create another EtcdRestore"},
		"the others join one at a time":                        {has: append(stopped, "h2:replace"), want: []string{"h1:join"}, phase: provisionv1.RestoreJoining, pause: Hold},
		"the next waits for it":                                {has: append(stopped, "h2:replace", "h1:join?"), phase: provisionv1.RestoreJoining, pause: Hold, says: "h1 is joining it"},
		"a disconnected host joins last":                       {has: append(stopped, "h2:replace"), change: away(1), want: []string{"h3:join"}, phase: provisionv1.RestoreJoining, pause: Hold},
		"and is waited for":                                    {has: append(stopped, "h2:replace", "h3:join"), change: away(1), want: []string{"h1:join"}, phase: provisionv1.RestoreJoining, pause: Hold, says: "h1", stuck: true},
		"unless it is gone":                                    {has: append(stopped, "h2:replace", "h3:join"), change: gone(1), phase: provisionv1.RestoreSucceeded, pause: ReleaseAll},
		"all have joined":                                      {has: append(stopped, "h2:replace", "h1:join", "h3:join"), phase: provisionv1.RestoreSucceeded, pause: ReleaseAll, says: "on all control planes"},
		"a host that cannot join does not keep the others out": {has: append(stopped, "h2:replace", "h1:join!", "h1:join!"), want: []string{"h3:join"}, phase: provisionv1.RestoreJoining, pause: Hold},
		"and is named at the end":                              {has: append(stopped, "h2:replace", "h1:join!", "h1:join!", "h3:join"), phase: provisionv1.RestoreFailed, pause: ReleaseAll, says: "h1 could not join: no space"},
	} {
		t.Run(name, func(t *testing.T) {
			in := Input{Machines: planes(c.has...), Restore: &RestoreWish{UID: "r", Host: "h2", File: "f"}, Paused: true}
			if c.change != nil {
				c.change(&in)
			}
			d := Decide(in)
			if got := news(in, d); !slices.Equal(got, c.want) {
				t.Errorf("new tasks %v, want %v", got, c.want)
			}
			if r := d.Restore; r.Phase != c.phase || d.Pause != c.pause || !strings.Contains(r.Message, c.says) || r.Stuck != c.stuck {
				t.Errorf("%+v, pause %d, want %s with %q, pause %d, stuck %t", r, d.Pause, c.phase, c.says, c.pause, c.stuck)
			}
		})
	}
}

func TestSnapshotsAreMadeOneAtATime(t *testing.T) {
	in := Input{Machines: planes(), Snapshots: []SnapshotWish{{UID: "a", File: "a.db"}, {UID: "b", File: "b.db"}}}
	in.Machines[0].Connected = false
	d := Decide(in)
	if got := news(in, d); !slices.Equal(got, []string{"h2:snapshot"}) || d.Snapshots["a"].Phase != provisionv1.SnapshotRunning || d.Snapshots["b"].Phase != provisionv1.SnapshotPending || d.Snapshots["a"].Host != "h2" {
		t.Fatalf("got new tasks %v and snapshots %+v, want one snapshot at a time", got, d.Snapshots)
	}
	in.Machines[1].Tasks = d.Tasks["mh2"]
	in.Machines[1].Connected = false // a machine that is not connected does not delay the others
	if d = Decide(in); !slices.Equal(news(in, d), []string{"h3:snapshot"}) || !strings.Contains(d.Snapshots["a"].Message, "not connected") {
		t.Fatalf("got new tasks %v and snapshots %+v, want the next snapshot on another host", news(in, d), d.Snapshots)
	}
	in.Machines[2].Tasks = d.Tasks["mh3"]
	in.Machines[1].Tasks[0].Status.State, in.Machines[2].Tasks[0].Status.State, in.Machines[2].Tasks[0].Status.Message = Succeeded, Failed, "no space"
	d = Decide(in)
	if d.Snapshots["a"].Phase != provisionv1.SnapshotSucceeded || d.Snapshots["b"].Phase != provisionv1.SnapshotFailed || !strings.Contains(d.Snapshots["b"].Message, "host h3: no space") {
		t.Fatalf("%+v", d.Snapshots)
	}
	in.Snapshots = in.Snapshots[1:] // its status says now that it has ended
	if d = Decide(in); len(d.Tasks["mh2"]) != 0 || len(d.Tasks["mh3"]) != 1 {
		t.Errorf("got the tasks %+v, want only those of ended snapshots to be dropped", d.Tasks)
	}
}

func TestSnapshotFailsIfItsHostStaysDisconnected(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Machine)
		says   string // "" if the snapshot is still running
	}{
		"not connected for a moment": {func(m *Machine) { m.Connected = false }, ""},
		"not connected for long":     {func(m *Machine) { m.Connected, m.Lost = false, true }, "host h1 was not connected for ten minutes"},
		"its machine is deleted":     {func(m *Machine) { m.Leaving = true }, "its DroverMachine is being deleted"},
		"it is gone":                 {func(m *Machine) { m.Connected, m.Lost, m.Gone = false, true, true }, "host h1 is gone"},
	} {
		in := Input{Machines: planes(), Snapshots: []SnapshotWish{{UID: "a", File: "a.db"}, {UID: "b", File: "b.db"}}}
		in.Machines[0].Tasks = []Task{task("snapshot-a", Snapshot, infrav1.EtcdTask{Of: "a"}, Running)}
		c.change(&in.Machines[0])
		d := Decide(in)
		if p := d.Snapshots["a"]; (p.Phase == provisionv1.SnapshotFailed) != (c.says != "") || !strings.Contains(p.Message, c.says) || p.Saved || p.Host != "h1" {
			t.Errorf("%s: %+v, want it to have failed with %q", name, p, c.says)
		}
		if got := news(in, d); !slices.Equal(got, []string{"h2:snapshot"}) {
			t.Errorf("%s: new tasks %v, want the next snapshot on h2", name, got)
		}
	}
	in := Input{Machines: planes(), Snapshots: []SnapshotWish{{UID: "a", File: "a.db"}}}
	in.Machines[0].Leaving = true
	if got := news(in, Decide(in)); !slices.Equal(got, []string{"h2:snapshot"}) {
		t.Errorf("new tasks %v, want none for a machine that is being deleted", got)
	}
}

func TestSnapshotAndRestoreWaitForEachOther(t *testing.T) {
	in := Input{Machines: planes("h2:prepare?"), Snapshots: []SnapshotWish{{UID: "a", File: "a.db"}}, Restore: &RestoreWish{UID: "r", Host: "h2", File: "f"}, Paused: true}
	if d := Decide(in); len(news(in, d)) != 0 || !strings.Contains(d.Snapshots["a"].Message, "EtcdRestore") {
		t.Errorf("got new tasks %v and snapshots %+v, want the snapshot to wait", news(in, d), d.Snapshots)
	}
	in.Machines = planes()
	in.Machines[0].Tasks = []Task{task("snapshot-a", Snapshot, infrav1.EtcdTask{Of: "a"}, Running)}
	if d := Decide(in); len(news(in, d)) != 0 || !strings.Contains(d.Restore.Message, "waits for host h1, which is making a snapshot") {
		t.Errorf("got new tasks %v and the restore %+v, want the restore to wait", news(in, d), d.Restore)
	}
}

func TestScriptReceivesValuesOnlyAsArguments(t *testing.T) {
	for _, c := range []struct {
		task Task
		want []string // nil for an error
	}{
		{task("", Snapshot, infrav1.EtcdTask{File: "a.db"}, ""), []string{"snapshot", Folder + "a.db"}},
		{task("", Prepare, infrav1.EtcdTask{Of: "r", File: "a b;$(c).db"}, ""), []string{"prepare", "r", Folder + "a b;$(c).db"}},
		{task("", Stop, infrav1.EtcdTask{Of: "r"}, ""), []string{"stop", "r"}},
		{task("", Join, infrav1.EtcdTask{Of: "r", Endpoints: []string{"https://[::1]:2379", "x"}}, ""), []string{"join", "r", "https://[::1]:2379", "x"}},
		{task("", Prepare, infrav1.EtcdTask{Of: "r", File: "../a.db"}, ""), nil},
		{task("", Snapshot, infrav1.EtcdTask{}, ""), nil},
		{task("", Join, infrav1.EtcdTask{Of: "r"}, ""), nil},
		{Task{MachineTask: infrav1.MachineTask{Action: Stop}}, nil},
	} {
		got, err := Instruction(c.task.MachineTask, Bucket{})
		if c.want == nil {
			if err == nil {
				t.Errorf("%+v: got the command %q, want an error", c.task, got.Command)
			}
			continue
		}
		if want := append([]string{"/bin/sh", "-c", script, "etcd"}, c.want...); err != nil || !slices.Equal(got.Command, want) || got.TimeoutSeconds == 0 {
			t.Errorf("%+v: %q, %v", c.task, got.Command[2:], err)
		}
	}
}
