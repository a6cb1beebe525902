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

// Times that tasks may take, in seconds. To rotate keys, the distributions encrypt five Secrets in a second.
const (
	keysTimeout     = 4 * 3600
	snapshotTimeout = 3600
)

// Snapshot is a snapshot of etcd that is wanted.
type Snapshot struct {
	// ID is another one for each.
	ID string
	// Name is what the name of its file begins with.
	Name string
}

// Outcome is how something has ended that a host was to do once.
type Outcome struct {
	Host string `json:"host"`
	// Problem says why it has failed, for people. Empty if it has succeeded.
	Problem string `json:"problem,omitempty"`
	// Canceled restores have replaced nothing, and Restored reports that data was replaced.
	Canceled bool `json:"canceled,omitempty"`
	Restored bool `json:"restored,omitempty"`
}

// task is an instruction that one server carries out once and that starts nothing again. It is the last of its
// instructions.
type task struct {
	protocol.HostInstruction
	// what it does, for people.
	what string
	// role that the server has.
	role provisionv1.HostRole
	// ended remembers the outcome.
	ended func(Outcome)
	// calm tasks begin only while all servers are up, and nothing changes.
	calm bool
	// host that it is given to, "" for none yet.
	host string
}

// tasks returns the tasks that are to be done, in their order.
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
				} // the servers are started again from now on
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

// SnapshotOn returns the host that makes a snapshot now, "" for none.
func (d Decision) SnapshotOn(id string) string {
	if d.Task != snapshotTask(id) {
		return ""
	}
	return d.TaskHost
}

// decideTask decides which server does which task now, one at a time, and remembers how tasks have ended. A task that
// has begun goes on.
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

// forget forgets how snapshots and restores have ended that are not wanted any more.
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

// duties are what a server does for the cluster once it is started.
type duties struct {
	removes []removal
	task    *task
}

// dutiesOf returns the duties of a host that removes such nodes.
func (d *decision) dutiesOf(m *member, removes []removal) duties {
	does := duties{removes: removes}
	if d.task != nil && d.task.host == m.Name {
		does.task = d.task
	}
	return does
}
