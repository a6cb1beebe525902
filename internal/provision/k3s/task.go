// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"cmp"
	"fmt"
	"strconv"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// Timeouts of tasks, in seconds. When the encryption keys are rotated, the distributions encrypt five Secrets per
// second.
const (
	keysTimeout     = 4 * 3600
	snapshotTimeout = 3600
)

// Snapshot is a requested etcd snapshot.
type Snapshot struct {
	// ID is unique to the snapshot.
	ID string
	// Name is a prefix of the file name.
	Name string
}

// Outcome describes how a task or restore has ended.
type Outcome struct {
	Host string `json:"host"`
	// Problem tells users why the task failed. It is empty if the task succeeded.
	Problem string `json:"problem,omitempty"`
	// Canceled reports whether a restore was canceled before data was replaced. Restored reports whether data was
	// replaced.
	Canceled bool `json:"canceled,omitempty"`
	Restored bool `json:"restored,omitempty"`
}

// task is a one-time instruction for one server. It restarts nothing, and is the last of the server's instructions.
type task struct {
	protocol.HostInstruction
	// what describes the task for users.
	what string
	// role is the role that the server must have.
	role provisionv1.HostRole
	// ended records the outcome.
	ended func(Outcome)
	// calm is true if the task may start only while all servers are up and no server is being changed.
	calm bool
	// host is the host with the task, or "" if the task has not been assigned.
	host string
}

// tasks returns the tasks that have not been completed, in order.
func (d *decision) tasks() (all []*task) {
	s := &d.Stored
	if want := d.Spec.EncryptionKeyRotation; want > max(s.Keys, s.KeysFailed) {
		all = append(all, &task{
			HostInstruction: protocol.HostInstruction{
				ID: "keys-" + strconv.FormatInt(want, 10), Command: d.write.dist.rotateKeys(d.Input), TimeoutSeconds: keysTimeout,
			},
			what: "rotate the encryption keys", role: provisionv1.RoleControlPlane, calm: true,
			ended: func(o Outcome) {
				if s.KeysProblem = ""; o.Problem != "" {
					s.KeysFailed, s.KeysProblem = want, fmt.Sprintf("host %s: %s", o.Host, o.Problem)
				} else {
					s.Keys = want
				} // the servers are restarted from now on
			},
		})
	}
	for _, snap := range d.Snapshots {
		if _, ended := s.Outcomes[snap.ID]; ended {
			continue
		}
		all = append(all, &task{
			HostInstruction: protocol.HostInstruction{
				ID: snapshotTask(snap.ID), Command: d.write.dist.snapshot(d.Input, snap.Name), TimeoutSeconds: snapshotTimeout,
			},
			what: "make the snapshot " + snap.Name, role: provisionv1.RoleEtcd,
			ended: func(o Outcome) { d.remember(snap.ID, o) },
		})
	}
	return all
}

func snapshotTask(id string) string { return "snapshot-" + id }

// decideTask decides which server carries out which task now, and records the outcomes of tasks. Only one task is
// carried out at a time. A task that has started is continued.
func (d *decision) decideTask(removes int) {
	calm := removes == 0
	for _, m := range d.ordered() {
		calm = calm && (!m.server() || m.up() && d.current(m))
	}
	for _, t := range d.tasks() {
		m := d.holder(t.ID)
		switch {
		case m != nil && m.up():
			t.ended(Outcome{Host: m.Name})
			continue
		case m != nil && m.Connected && m.State == progress.Failed:
			t.ended(Outcome{Host: m.Name, Problem: cmp.Or(m.problem(), "it has failed")})
			continue
		case m != nil && m.Lost && !t.calm:
			t.ended(Outcome{Host: m.Name, Problem: "its agent has not been connected for a long time"})
			continue
		case m == nil && (calm || !t.calm):
			m = d.idle(t.role)
		}
		if m != nil {
			t.host = m.Name
			d.task, d.out.Task, d.out.TaskHost = t, t.ID, m.Name
			return
		}
	}
}

// forget removes the outcomes of snapshots and restores that no longer exist.
func (d *decision) forget() {
	before := d.Stored.Outcomes
	d.Stored.Outcomes = nil
	keep := func(id string) {
		if o, ended := before[id]; ended {
			d.remember(id, o)
		}
	}
	for _, snap := range d.Snapshots {
		keep(snap.ID)
	}
	for _, restore := range d.Restores {
		keep(restore.ID)
	}
}

func (d *decision) remember(id string, o Outcome) {
	if d.Stored.Outcomes == nil {
		d.Stored.Outcomes = map[string]Outcome{}
	}
	d.Stored.Outcomes[id] = o
}

// duties are the work that a server does for the cluster after it has been started.
type duties struct {
	removes []removal
	task    *task
}

// dutiesOf returns the duties of a host that must remove the given nodes.
func (d *decision) dutiesOf(m *member, removes []removal) duties {
	does := duties{removes: removes}
	if d.task != nil && d.task.host == m.Name {
		does.task = d.task
	}
	return does
}
