// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeadm

import (
	"fmt"
	"slices"
	"strings"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// restore returns the next steps of the restore. Earlier steps are known only from the machines' tasks. The steps are:
//
//   - Prepare, on the host with the file: create the data of the new etcd beside the old data.
//   - Stop, on all control planes at the same time.
//   - Replace, on the host with the file. From this step on, the restore cannot be undone.
//   - Join, on the other control planes, one at a time.
//
// If the restore is canceled or fails before Replace, all machines that have a task to prepare or to stop get a task to
// resume.
func (d *decision) restore() {
	switch {
	case d.given(Replace):
		d.finish()
	case d.given(Resume):
		d.undo(d.why())
	case d.Restore.Cancel:
		d.undo("")
	case !d.given(Prepare):
		d.begin()
	default:
		d.advance()
	}
}

func (d *decision) report(phase provisionv1.EtcdRestorePhase, reason, format string, args ...any) {
	host := d.Restore.Host
	if m, _ := d.holder(d.Restore.UID, Prepare); m != nil {
		host = m.Host
	}
	d.out.Restore = progress.Restore{Phase: phase, Reason: reason, Message: fmt.Sprintf(format, args...), Host: host}
}

// wait reports that the restore is waiting for hosts that are not connected.
func (d *decision) wait(phase provisionv1.EtcdRestorePhase, lost []*Machine, why string) {
	d.report(phase, provisionv1.ReasonHostAway, "waits for %s, whose agent is not connected: %s. If the machine is gone for good, delete its Host", hosts(lost), why)
	d.out.Restore.Stuck = true
}

// begin starts the restore when nothing prevents it any longer. Until then, the Cluster is not paused.
func (d *decision) begin() {
	all := d.present()
	first := slices.IndexFunc(all, func(m *Machine) bool { return m.Host == d.Restore.Host })
	if first < 0 && d.Restore.S3 != nil {
		first = slices.IndexFunc(all, func(m *Machine) bool { return m.Provisioned && m.Connected })
	}
	bare, leaving := slices.IndexFunc(all, func(m *Machine) bool { return !m.Provisioned }), slices.IndexFunc(all, func(m *Machine) bool { return m.Leaving })
	d.out.Pause = Release
	switch {
	case d.Restore.Problem != "":
		d.report(provisionv1.RestoreFailed, provisionv1.ReasonSourceInvalid, "%s", d.Restore.Problem)
		return
	case first < 0 && d.Restore.S3 != nil:
		d.report(provisionv1.RestorePending, provisionv1.ReasonWaiting, "waits for a control plane whose host is connected, to fetch %s from %s", d.Restore.File, name(d.Restore.S3))
		return
	case first < 0:
		d.report(provisionv1.RestoreFailed, provisionv1.ReasonSourceInvalid, "host %s is not a control plane of the cluster: copy the file to a host that is, and create an EtcdRestore with file and host", d.Restore.Host)
		return
	case bare >= 0:
		d.report(provisionv1.RestorePending, provisionv1.ReasonWaiting, "waits for the machine %s to be bootstrapped", all[bare].Name)
		return
	case leaving >= 0: // the machine gets no more tasks; its etcd runs until the machine is gone
		d.report(provisionv1.RestorePending, provisionv1.ReasonWaiting, "waits for the machine %s, which is being deleted, to be gone. If the deletion itself waits for the cluster, switch the machine off and delete its Host %s", all[leaving].Name, all[leaving].Host)
		return
	case len(away(all)) > 0:
		d.wait(provisionv1.RestorePending, away(all), "its etcd could go on with the old data. Nothing was stopped yet")
		return
	}
	if m := d.snapshotting(); m != nil {
		d.report(provisionv1.RestorePending, provisionv1.ReasonWaiting, "waits for host %s, which is making a snapshot or copying one to a bucket. This ends within an hour, even if that EtcdSnapshot is deleted", m.Host)
		return
	}
	d.out.Pause = Hold
	if !d.Paused {
		d.report(provisionv1.RestorePending, provisionv1.ReasonWaiting, "waits for Cluster API to stop managing the control plane, because its Cluster is paused")
		return
	}
	d.step(all[first], d.prepare())
	d.report(provisionv1.RestorePending, provisionv1.ReasonWaiting, "host %s is reading %s. Nothing was stopped yet", all[first].Host, d.Restore.File)
}

func (d *decision) prepare() Task {
	return newTask(Prepare, infrav1.EtcdTask{File: d.Restore.File, S3: d.Restore.S3})
}

// snapshotting returns a connected machine that is taking or copying a snapshot, or nil if there is none.
func (d *decision) snapshotting() *Machine {
	for i := range d.Machines {
		m := &d.Machines[i]
		for _, t := range d.out.Tasks[m.Name] {
			if (t.Action == Snapshot || t.Action == Upload) && !t.Status.State.Ended() && m.Connected {
				return m
			}
		}
	}
	return nil
}

// advance performs the steps of the restore that can still be undone. When all control planes have stopped, it starts
// to replace the data.
func (d *decision) advance() {
	d.out.Pause = Hold
	first, _ := d.holder(d.Restore.UID, Prepare)
	if why := d.why(); why != "" {
		d.undo(why)
		return
	}
	if state, _ := d.step(first, d.prepare()); state != Succeeded {
		d.report(provisionv1.RestorePending, provisionv1.ReasonWaiting, "host %s is reading the snapshot. Nothing was stopped yet", first.Host)
		return
	}
	all := d.present()
	if lost := away(all); len(lost) > 0 && !d.given(Stop) {
		d.wait(provisionv1.RestorePending, lost, "its etcd could go on with the old data. Nothing was stopped yet")
		return
	}
	var left []*Machine
	for _, m := range all {
		if state, _ := d.step(m, newTask(Stop, infrav1.EtcdTask{})); state != Succeeded {
			left = append(left, m)
		}
	}
	switch lost := away(left); {
	case len(lost) > 0:
		d.wait(provisionv1.RestoreStopping, lost, "its etcd could go on with the old data. To start the others again, cancel the restore")
	case len(left) > 0:
		d.report(provisionv1.RestoreStopping, provisionv1.ReasonStopping, "etcd and the API server are being stopped on %s", hosts(left))
	default:
		d.step(first, newTask(Replace, infrav1.EtcdTask{}))
		d.report(provisionv1.RestoreRestoring, provisionv1.ReasonRestoring, "host %s is starting a new etcd with the data of the snapshot", first.Host)
	}
}

// why returns the reason why the restore must stop, or "" if it may continue. It is called only before data has been
// replaced.
func (d *decision) why() string {
	first, _ := d.holder(d.Restore.UID, Prepare)
	if first == nil || first.Gone {
		return "the host with the snapshot is gone"
	}
	for i := range d.Machines {
		m := &d.Machines[i]
		for _, action := range []Action{Prepare, Stop} {
			if t := d.find(m, d.Restore.UID, action); t != nil && t.Status.State == Failed && strings.HasSuffix(t.ID, fmt.Sprint("-", attempts)) && !m.Gone {
				return fmt.Sprintf("host %s could not %s: %s", m.Host, verb(action), t.Status.Message)
			}
		}
	}
	return ""
}

// undo restarts the stopped control planes and ends the restore. The restore has failed if the why parameter is not
// empty, and was canceled otherwise.
func (d *decision) undo(why string) {
	if d.Restore.Cancel {
		why = ""
	}
	var left, failed []*Machine
	for _, m := range d.present() {
		if d.find(m, d.Restore.UID, Prepare) == nil && d.find(m, d.Restore.UID, Stop) == nil {
			continue
		}
		switch state, _ := d.step(m, newTask(Resume, infrav1.EtcdTask{})); state {
		case Succeeded:
		case Failed:
			failed = append(failed, m)
		default:
			left = append(left, m)
		}
	}
	d.out.Pause = Leave
	switch lost := away(left); {
	case len(lost) > 0:
		d.wait(provisionv1.RestoreStopping, lost, "its control plane must be started again with unchanged data")
	case len(left) > 0:
		d.report(provisionv1.RestoreStopping, provisionv1.ReasonStopping, "no data was replaced. The control plane is being started again on %s", hosts(left))
	case len(failed) > 0:
		d.out.Pause = Release
		d.report(provisionv1.RestoreFailed, provisionv1.ReasonFailed, "no data was replaced. The control plane could not be started again on %s: look at /etc/kubernetes/drover-stopped there. %s", hosts(failed), why)
	case why != "":
		d.out.Pause = Release
		d.report(provisionv1.RestoreFailed, provisionv1.ReasonFailed, "no data was replaced, and the control plane is as it was before: %s", why)
	default:
		d.out.Pause = Release
		d.report(provisionv1.RestoreCanceled, provisionv1.ReasonCanceled, "no data was replaced, and the control plane is as it was before")
	}
}

// finish starts the new etcd, and then makes the other machines join it.
func (d *decision) finish() {
	d.out.Pause = Hold
	first, _ := d.holder(d.Restore.UID, Replace)
	switch state, message := d.step(first, newTask(Replace, infrav1.EtcdTask{})); {
	case state == Failed || state != Succeeded && first.Gone:
		d.out.Pause = Leave
		d.report(provisionv1.RestoreFailed, provisionv1.ReasonFailed, "host %s could not start a new etcd, and the control plane is stopped on all hosts. The former data are in member.before-%s of etcd's data directories. The Cluster of Cluster API stays paused: create another EtcdRestore: %s",
			first.Host, d.Restore.UID, message)
		return
	case state != Succeeded:
		d.report(provisionv1.RestoreRestoring, provisionv1.ReasonRestoring, "host %s is starting a new etcd with the data of the snapshot%s", first.Host, d.tooLate())
		if !first.Connected {
			d.wait(provisionv1.RestoreRestoring, []*Machine{first}, "it has the data of the snapshot")
		}
		return
	}
	var problems []string
	for _, m := range d.joiners(first) {
		state, message := d.join(first, m)
		if state == Failed {
			problems = append(problems, fmt.Sprintf("host %s could not join: %s", m.Host, message))
			continue
		}
		if state == Succeeded {
			continue
		}
		d.report(provisionv1.RestoreJoining, provisionv1.ReasonJoining, "etcd has the data of the snapshot on host %s, and host %s is joining it%s", first.Host, m.Host, d.tooLate())
		if !m.Connected {
			d.wait(provisionv1.RestoreJoining, []*Machine{m}, "it is to join etcd, which works with the data of the snapshot")
		}
		return
	}
	d.out.Pause = ReleaseAll
	if len(problems) > 0 {
		d.report(provisionv1.RestoreFailed, provisionv1.ReasonFailed, "etcd works with the data of the snapshot, but not on all hosts: delete the Machines of those that could not join. %s", strings.Join(problems, "; "))
		return
	}
	d.report(provisionv1.RestoreSucceeded, provisionv1.ReasonSucceeded, "etcd has the data of the snapshot on all control planes%s", d.tooLate())
}

// tooLate returns a remark that it is too late to cancel the restore, if a user has tried to cancel it.
func (d *decision) tooLate() string {
	if d.Restore.Cancel {
		return ". It was too late to cancel: data was replaced"
	}
	return ""
}

// joiners returns the machines that must join, in order. A machine that already has a task to join comes first.
// Machines that are not connected come last.
func (d *decision) joiners(first *Machine) []*Machine {
	var all []*Machine
	for _, m := range d.present() {
		if m.Name != first.Name {
			all = append(all, m)
		}
	}
	rank := func(m *Machine) int {
		switch {
		case d.find(m, d.Restore.UID, Join) != nil:
			return 0
		case m.Connected:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(all, func(a, b *Machine) int { return rank(a) - rank(b) })
	return all
}

// join makes a machine join the new etcd. If the machine was created during the restore, join stops it first.
func (d *decision) join(first, m *Machine) (State, string) {
	if state, message := d.step(m, newTask(Stop, infrav1.EtcdTask{})); state != Succeeded {
		return state, message
	}
	return d.step(m, newTask(Join, infrav1.EtcdTask{Endpoints: first.Endpoints}))
}
