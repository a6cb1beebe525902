// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"cmp"
	"fmt"
	"strconv"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/k3s/decision"
	"github.com/drover-dev/drover/internal/provision/k3s/distribution"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// Timeouts of tasks, in seconds. When the encryption keys are rotated, the distributions encrypt five Secrets per
// second.
const (
	keysTimeout     = 4 * 3600
	snapshotTimeout = 3600
)

// tasks returns the tasks that have not been completed, in order.
func tasks(d *decision.Draft) (all []*decision.Task) {
	s := &d.Roster.Stored
	if want := d.Roster.Spec.EncryptionKeyRotation; want > max(s.Keys, s.KeysFailed) {
		all = append(all, &decision.Task{
			HostInstruction: distribution.Instruction(
				"keys-"+strconv.FormatInt(want, 10), keysTimeout, d.Writer.Distribution.RotateKeys(&d.Roster.Input)),
			What: "rotate the encryption keys", Role: provisionv1.RoleControlPlane, Calm: true,
			Ended: func(o roster.Outcome) {
				if s.KeysProblem = ""; o.Problem != "" {
					s.KeysFailed, s.KeysProblem = want, fmt.Sprintf("host %s: %s", o.Host, o.Problem)
				} else {
					s.Keys = want
				} // the servers are restarted from now on
			},
		})
	}
	for _, snap := range d.Roster.Snapshots {
		if _, ended := s.Outcomes[snap.ID]; ended {
			continue
		}
		all = append(all, &decision.Task{
			HostInstruction: distribution.Instruction(
				snapshotTask(snap.ID), snapshotTimeout, d.Writer.Distribution.Snapshot(&d.Roster.Input, snap.Name)),
			What: "make the snapshot " + snap.Name, Role: provisionv1.RoleEtcd,
			Ended: func(o roster.Outcome) { d.Roster.Remember(snap.ID, o) },
		})
	}
	return all
}

func snapshotTask(id string) string { return "snapshot-" + id }

// decideTask decides which server carries out which task now, and records the outcomes of tasks. Only one task is
// carried out at a time. A task that has started is continued.
func decideTask(d *decision.Draft, removes int) {
	calm := removes == 0
	for _, m := range d.Roster.Ordered() {
		calm = calm && (!m.IsServer() || m.Up() && d.IsCurrent(m))
	}
	for _, t := range tasks(d) {
		m := d.Roster.Holder(t.ID)
		switch {
		case m != nil && m.Up():
			t.Ended(roster.Outcome{Host: m.Name})
			continue
		case m != nil && m.Connected && m.State == progress.Failed:
			t.Ended(roster.Outcome{Host: m.Name, Problem: cmp.Or(m.Problem(), "it has failed")})
			continue
		case m != nil && m.Lost && !t.Calm:
			t.Ended(roster.Outcome{Host: m.Name, Problem: "its agent has not been connected for a long time"})
			continue
		case m == nil && (calm || !t.Calm):
			m = idle(d, t.Role)
		}
		if m != nil {
			t.Host = m.Name
			d.Task, d.Out.Task, d.Out.TaskHost = t, t.ID, m.Name
			return
		}
	}
}

// idle returns a server that has the role and can be given a task, or nil if there is none.
func idle(d *decision.Draft, role provisionv1.HostRole) *roster.Member {
	for _, m := range d.Roster.Ordered() {
		if m.Is(role) && m.Up() && d.IsCurrent(m) {
			return m
		}
	}
	return nil
}
