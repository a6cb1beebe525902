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

// attempts is how often a step of a restore is tried on a host. Steps may be repeated; what fails twice takes a person.
const attempts = 2

// Input is all that a decision depends on.
type Input struct {
	// Machines of the control plane, in the order of their names.
	Machines []Machine
	// Snapshots that are wanted and have not ended, the oldest first.
	Snapshots []SnapshotWish
	// Stored are the snapshots of the schedule that have ended, the newest first, and Retention is how many of them each
	// control plane keeps.
	Stored    []Stored
	Retention int
	// Restore that is wanted and has not ended, nil for none.
	Restore *RestoreWish
	// Paused reports whether Cluster API has said that it leaves the control plane alone.
	Paused bool
}

// Machine is a control plane.
type Machine struct {
	Name, Host string
	// Endpoints are URLs at which its etcd may be reached by others.
	Endpoints []string
	// Provisioned machines are bootstrapped.
	Provisioned bool
	Connected   bool
	// Gone machines will not be back: their Host was deleted, and its agent is not connected.
	Gone bool
	// Lost machines were not connected for so long that what they were told to do once is given up.
	Lost bool
	// Leaving machines are being deleted: they are given no tasks, and report none.
	Leaving bool
	// Tasks that it has for snapshots and restores.
	Tasks []Task
}

// Task is a task of a machine: the item of spec.tasks of its DroverMachine, which always has etcd, and the item of
// status.tasks. A decision makes the first, and reads the second.
type Task struct {
	infrav1.MachineTask
	Status infrav1.MachineTaskStatus
}

// newTask makes a task. Its ID, and what it is of, are the caller's.
func newTask(action Action, etcd infrav1.EtcdTask) Task {
	return Task{MachineTask: infrav1.MachineTask{Action: action, Etcd: &etcd}}
}

// State is how far a task is.
type State = infrav1.TaskState

// States of a task.
const (
	Waiting   = infrav1.TaskPending
	Running   = infrav1.TaskRunning
	Succeeded = infrav1.TaskSucceeded
	Failed    = infrav1.TaskFailed
)

// SnapshotWish is a snapshot that is wanted.
type SnapshotWish struct {
	UID, File string
	// S3 is where it is copied to, nil for nowhere.
	S3 *Object
}

// RestoreWish is a restore that is wanted.
type RestoreWish struct {
	UID string
	// Host that has the file, and File. Problem says why they are not known.
	Host, File, Problem string
	// S3 is a copy of the file, for a host that does not have it. With it, another control plane restores the file if that
	// host is none any more, or Host is empty.
	S3     *Object
	Cancel bool
}

// Pause is what is done with the Cluster of Cluster API.
type Pause int

// What is done with it.
const (
	// Leave it as it is.
	Leave Pause = iota
	// Hold pauses it.
	Hold
	// Release undoes what this restore has paused.
	Release
	// ReleaseAll undoes what an earlier restore, which has failed, has left paused, too.
	ReleaseAll
)

// Decision is what to do now.
type Decision struct {
	// Tasks that each machine is to have, by its name, also the tasks that it has.
	Tasks map[string][]Task
	Pause Pause
	// Snapshots say how far each is, by its UID.
	Snapshots map[string]progress.Snapshot
	// Expired are the UIDs of stored snapshots whose objects are to be deleted: their files are removed, or out of reach.
	Expired []string
	Restore progress.Restore
}

// decision is a Decision in the making.
type decision struct {
	Input
	out Decision
}

// Decide says what the machines are to do now. It is pure: asked again with what it has led to, it goes on.
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
		for _, t := range m.Tasks { // the tasks of what has ended are dropped
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

// find returns the latest task of a machine of that kind, nil for none.
func (d *decision) find(m *Machine, of string, action Action) *Task {
	all := d.out.Tasks[m.Name]
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Etcd.Of == of && all[i].Action == action {
			return &all[i]
		}
	}
	return nil
}

// snapshots has one machine at a time make a snapshot. A machine that is away or slow is reported, and holds up others
// only while it is connected. The snapshot of a machine that stays away has failed.
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
			p = progress.Snapshot{Phase: provisionv1.SnapshotFailed, Host: holder.Host, Message: tryAgain + "host " + holder.Host + " " + holder.away() + " while it was to make it"}
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

const tryAgain = "make another EtcdSnapshot to try again: "

// running says that a machine makes a snapshot.
func running(m *Machine) progress.Snapshot {
	p := progress.Snapshot{Phase: provisionv1.SnapshotRunning, Host: m.Host, Message: "host " + m.Host + " makes it"}
	if !m.Connected {
		p.Message = "host " + m.Host + " was told to make it, and its agent is not connected"
	}
	return p
}

// away says why no outcome of a task is to be expected of a machine, "" if one is.
func (m *Machine) away() string {
	switch {
	case m.Leaving:
		return "was taken from the cluster (its DroverMachine is being deleted)"
	case m.Lost:
		return "was not connected for ten minutes"
	}
	return ""
}

// able returns a machine that can make a snapshot, nil for none. Of several it returns the machine that the schedule
// has used the longest ago: so each has some, and a machine whose snapshots fail does not get all.
func (d *decision) able() (best *Machine) {
	latest := 0
	for i := range d.Machines {
		m := &d.Machines[i]
		if !m.Provisioned || !m.Connected || m.Gone || m.Leaving {
			continue
		}
		at := slices.IndexFunc(d.Stored, func(s Stored) bool { return s.Host == m.Host }) // the newest first
		if at < 0 {
			at = len(d.Stored)
		}
		if best == nil || at > latest {
			best, latest = m, at
		}
	}
	return best
}

// holder returns the machine that was given a task of a kind, and the latest such task; nil for none.
func (d *decision) holder(of string, action Action) (*Machine, *Task) {
	for i := range d.Machines {
		if t := d.find(&d.Machines[i], of, action); t != nil {
			return &d.Machines[i], t
		}
	}
	return nil, nil
}

func (d *decision) give(m *Machine, t Task) { d.out.Tasks[m.Name] = append(d.out.Tasks[m.Name], t) }

// step has a machine carry out a step of the restore, and returns how far that is.
func (d *decision) step(m *Machine, t Task) (State, string) {
	return d.try(m, "restore", d.Restore.UID, t)
}

// try has a machine carry out a task, and returns how far that is. It has failed when it has failed as often as it is
// tried.
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

// given reports whether a machine was given a step of the restore.
func (d *decision) given(action Action) bool {
	m, _ := d.holder(d.Restore.UID, action)
	return m != nil
}

// present are the machines that are not gone.
func (d *decision) present() (all []*Machine) {
	for i := range d.Machines {
		if !d.Machines[i].Gone {
			all = append(all, &d.Machines[i])
		}
	}
	return all
}

// hosts names the hosts of machines.
func hosts(all []*Machine) string {
	var names []string
	for _, m := range all {
		names = append(names, m.Host)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// away are the machines whose hosts are not connected.
func away(all []*Machine) (lost []*Machine) {
	for _, m := range all {
		if !m.Connected {
			lost = append(lost, m)
		}
	}
	return lost
}
