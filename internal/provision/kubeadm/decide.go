// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeadm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// attempts is the number of times that a host attempts a step of a restore. If all attempts fail, manual action is
// required.
const attempts = 2

// Input contains everything that a decision depends on.
type Input struct {
	// Machines are the control plane machines, sorted by name.
	Machines []Machine
	// Snapshots are the snapshots that have not ended, oldest first.
	Snapshots []SnapshotWish
	// Stored are the scheduled snapshots that have ended, newest first. Retention is the number of scheduled snapshots
	// that each control plane machine keeps.
	Stored    []Stored
	Retention int
	// Restore is the restore that has not ended, or nil if there is none.
	Restore *RestoreWish
	// Paused is true if, according to Cluster API's status, the control plane is paused.
	Paused bool
}

// Machine is a control plane machine.
type Machine struct {
	Name, Host string
	// Endpoints are the URLs at which other machines can reach the etcd on this machine.
	Endpoints []string
	// Provisioned reports whether the machine has been bootstrapped.
	Provisioned bool
	Connected   bool
	// Gone reports whether the machine is permanently gone, because its Host has been deleted and its agent is not
	// connected.
	Gone bool
	// Lost reports whether the machine has been disconnected for so long that the controller no longer waits for its
	// one-time tasks.
	Lost bool
	// Leaving reports whether the machine is being deleted. Such a machine gets no tasks and reports none.
	Leaving bool
	// Tasks are the machine's tasks for snapshots and restores.
	Tasks []Task
}

// Task is a task of a machine. It combines an item in spec.tasks of the DroverMachine with the corresponding item in
// status.tasks. Decide creates the item in the spec and reads the item in the status. The etcd field is always set.
type Task struct {
	infrav1.MachineTask
	Status infrav1.MachineTaskStatus
}

// newTask creates a task. The caller sets the task's ID, and the snapshot or restore that the task belongs to.
func newTask(action Action, etcd infrav1.EtcdTask) Task {
	return Task{MachineTask: infrav1.MachineTask{Action: action, Etcd: &etcd}}
}

// State is the state of a task.
type State = infrav1.TaskState

// States of a task.
const (
	Waiting   = infrav1.TaskPending
	Running   = infrav1.TaskRunning
	Succeeded = infrav1.TaskSucceeded
	Failed    = infrav1.TaskFailed
)

// SnapshotWish is a snapshot that a user or the schedule requested.
type SnapshotWish struct {
	UID, File string
	// S3 is the destination of a copy, or nil if no copy was requested.
	S3 *Object
}

// RestoreWish is a restore that a user requested.
type RestoreWish struct {
	UID string
	// Host is the host with the file, and File is the file's name. Problem explains why they are unknown.
	Host, File, Problem string
	// S3 is a copy of the file, for a host that does not have the file. If Host is empty or is no longer a control
	// plane machine, another control plane machine restores the copy.
	S3     *Object
	Cancel bool
}

// Pause is a change to the paused state of the Cluster API Cluster.
type Pause int

// Changes to the paused state.
const (
	// Leave means that the paused state is not changed.
	Leave Pause = iota
	// Hold means that the Cluster is paused.
	Hold
	// Release means that the pause for this restore ends.
	Release
	// ReleaseAll means that the pause of an earlier, failed restore also ends.
	ReleaseAll
)

// Decision lists the actions to take now.
type Decision struct {
	// Tasks are all tasks that the machines must have, by machine name. They include the tasks that the machines
	// already have.
	Tasks map[string][]Task
	Pause Pause
	// Snapshots holds the progress of each snapshot, by its UID.
	Snapshots map[string]progress.Snapshot
	// Expired are the UIDs of stored snapshots whose objects must be deleted, because their files have been removed or
	// cannot be reached.
	Expired []string
	Restore progress.Restore
}

// decision builds a Decision.
type decision struct {
	Input
	out Decision
}

// Decide returns the tasks that the machines must carry out now. When it is called again with the states of these
// tasks, it returns the next tasks. It has no side effects.
func Decide(in Input) Decision {
	d := &decision{Input: in, out: Decision{Tasks: map[string][]Task{}, Snapshots: map[string]progress.Snapshot{}}}
	wanted := map[string]bool{}
	for _, s := range in.Snapshots {
		wanted[s.UID] = true
	}
	if in.Restore != nil {
		wanted[in.Restore.UID] = true
	}
	for _, m := range in.Machines {
		for _, t := range m.Tasks { // drop tasks of snapshots and restores that have ended
			if wanted[t.Etcd.Of] {
				d.out.Tasks[m.Name] = append(d.out.Tasks[m.Name], t)
			}
		}
	}
	d.expire()
	d.snapshots()
	if in.Restore != nil {
		d.restore()
	}
	return d.out
}

// find returns the machine's latest task with the given action for a snapshot or restore, or nil if there is none.
func (d *decision) find(m *Machine, of string, action Action) *Task {
	all := d.out.Tasks[m.Name]
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Etcd.Of == of && all[i].Action == action {
			return &all[i]
		}
	}
	return nil
}

// snapshots causes one machine at a time to take a snapshot, and reports slow and disconnected machines. The other
// machines wait for a slow machine only while it is connected. If a machine stays disconnected, its snapshot fails.
func (d *decision) snapshots() {
	busy := d.Restore != nil
	for _, wish := range d.Snapshots {
		p := progress.Snapshot{Phase: provisionv1.SnapshotPending, Message: "waits for a control plane whose host is connected"}
		holder, task := d.holder(wish.UID, Snapshot)
		switch {
		case task != nil && task.Status.State == Succeeded:
			p = d.upload(wish, holder)
			busy = busy || p.Phase == provisionv1.SnapshotRunning && holder.Connected
		case task != nil && task.Status.State == Failed:
			p = progress.Snapshot{Phase: provisionv1.SnapshotFailed, Host: holder.Host, Message: tryAgain + "host " + holder.Host + ": " + task.Status.Message}
		case task != nil && holder.Gone:
			p = progress.Snapshot{Phase: provisionv1.SnapshotFailed, Host: holder.Host, Message: tryAgain + "host " + holder.Host + " is gone"}
		case task != nil && holder.away() != "":
			p = progress.Snapshot{Phase: provisionv1.SnapshotFailed, Host: holder.Host, Message: tryAgain + "host " + holder.Host + " " + holder.away() + " before it had made the snapshot"}
		case task != nil:
			busy = busy || holder.Connected
			p = running(holder)
		case busy && d.Restore != nil:
			p.Message = "waits for the EtcdRestore of this cluster to end"
		case busy:
			p.Message = "waits for the snapshot before it"
		default:
			if m := d.able(); m != nil {
				t := newTask(Snapshot, infrav1.EtcdTask{Of: wish.UID, File: wish.File, Remove: d.surplus(m.Host, 1)})
				t.ID = "snapshot-" + wish.UID
				d.give(m, t)
				p = running(m)
				busy = true
			}
		}
		d.out.Snapshots[wish.UID] = p
	}
}

const tryAgain = "create another EtcdSnapshot to try again: "

// running returns the progress of a snapshot that a machine is taking.
func running(m *Machine) progress.Snapshot {
	p := progress.Snapshot{Phase: provisionv1.SnapshotRunning, Host: m.Host, Message: "host " + m.Host + " is making the snapshot"}
	if !m.Connected {
		p.Message = "host " + m.Host + " was told to make the snapshot, but its agent is not connected"
	}
	return p
}

// away returns the reason why a machine cannot report the outcome of a task, or "" if it can.
func (m *Machine) away() string {
	switch {
	case m.Leaving:
		return "was taken from the cluster (its DroverMachine is being deleted)"
	case m.Lost:
		return "was not connected for ten minutes"
	}
	return ""
}

// able returns a machine that can take a snapshot, or nil if there is none. It prefers the machine whose last scheduled
// snapshot is the oldest. This distributes the snapshots among the machines, so a single broken machine does not cause
// all snapshots to fail.
func (d *decision) able() (best *Machine) {
	latest := 0
	for i := range d.Machines {
		m := &d.Machines[i]
		if !m.Provisioned || !m.Connected || m.Gone || m.Leaving {
			continue
		}
		at := slices.IndexFunc(d.Stored, func(s Stored) bool { return s.Host == m.Host }) // newest first
		if at < 0 {
			at = len(d.Stored)
		}
		if best == nil || at > latest {
			best, latest = m, at
		}
	}
	return best
}

// holder returns the machine that has a task with the given action for a snapshot or restore, and the latest of these
// tasks. It returns nil for both if there is no such task.
func (d *decision) holder(of string, action Action) (*Machine, *Task) {
	for i := range d.Machines {
		if t := d.find(&d.Machines[i], of, action); t != nil {
			return &d.Machines[i], t
		}
	}
	return nil, nil
}

func (d *decision) give(m *Machine, t Task) { d.out.Tasks[m.Name] = append(d.out.Tasks[m.Name], t) }

// step gives a machine the task for a step of the restore, and returns the state of the step.
func (d *decision) step(m *Machine, t Task) (State, string) {
	return d.try(m, "restore", d.Restore.UID, t)
}

// try gives a machine a task, and returns the task's state. The state is Failed only if all attempts have failed.
func (d *decision) try(m *Machine, kind, of string, t Task) (State, string) {
	number := 1
	if last := d.find(m, of, t.Action); last != nil {
		if last.Status.State != Failed {
			return last.Status.State, ""
		}
		before, _ := strconv.Atoi(last.ID[strings.LastIndex(last.ID, "-")+1:])
		if before >= attempts {
			return Failed, last.Status.Message
		}
		number = before + 1
	}
	t.Etcd.Of, t.ID = of, fmt.Sprintf("%s-%s-%s-%d", kind, of, verb(t.Action), number)
	d.give(m, t)
	return Waiting, ""
}

// given reports whether any machine has a task for a step of the restore.
func (d *decision) given(action Action) bool {
	m, _ := d.holder(d.Restore.UID, action)
	return m != nil
}

// present returns the machines that are not gone.
func (d *decision) present() (all []*Machine) {
	for i := range d.Machines {
		if !d.Machines[i].Gone {
			all = append(all, &d.Machines[i])
		}
	}
	return all
}

func hosts(all []*Machine) string {
	var names []string
	for _, m := range all {
		names = append(names, m.Host)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// away returns the machines that are not connected.
func away(all []*Machine) (lost []*Machine) {
	for _, m := range all {
		if !m.Connected {
			lost = append(lost, m)
		}
	}
	return lost
}
