// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeadm

import (
	"cmp"
	"slices"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/progress"
)

const (
	// DefaultRetention is the number of scheduled snapshots that each control plane machine keeps.
	DefaultRetention = 5
	// keptFailures is the number of failed scheduled snapshots that are kept, so that users can find out why they
	// failed. While their hosts may still have files from them, up to maxFailures failed snapshots are kept.
	keptFailures, maxFailures = 3, 32
	// maxRemove is the maximum number of files that one task removes.
	maxRemove = 64
)

// Stored is a scheduled snapshot that has ended.
type Stored struct {
	UID, Host, File string
	// Saved reports whether the file was written.
	Saved bool
	// Held reports whether the snapshot is in use by an EtcdRestore that has neither ended nor been refused. Such a
	// snapshot is not removed.
	Held bool
}

// upload gives the machine that took a snapshot the task to copy it to the bucket, and returns the snapshot's progress.
// The file is kept even if the copy fails.
func (d *decision) upload(wish SnapshotWish, m *Machine) progress.Snapshot {
	p := progress.Snapshot{Phase: provisionv1.SnapshotSucceeded, Host: m.Host, Message: "host " + m.Host + " has made it", Saved: true}
	task := d.find(m, wish.UID, Upload)
	if task == nil && wish.S3 == nil {
		return p
	}
	if task == nil && d.Restore != nil {
		p.Phase, p.Message = provisionv1.SnapshotRunning, "host "+m.Host+" has saved it, and copies it to the bucket when the EtcdRestore of this cluster has ended"
		return p
	}
	to := wish.S3
	if task != nil {
		to = task.Etcd.S3
	}
	if !m.Gone && m.away() != "" && (task == nil || !task.Status.State.Ended()) {
		p.Phase = provisionv1.SnapshotFailed
		p.Message = "it is saved as " + wish.File + " on host " + m.Host + ", which " + m.away() + " while it was to copy it to " + name(to)
		return p
	}
	state, message := d.try(m, "upload", wish.UID, newTask(Upload, infrav1.EtcdTask{File: wish.File, S3: to}))
	switch {
	case state == Succeeded:
		p.Message, p.S3 = p.Message+", and copied it to "+name(to), &to.EtcdS3Object
	case state == Failed:
		p.Phase = provisionv1.SnapshotFailed
		p.Message = "it is saved as " + wish.File + " on host " + m.Host + ", and could not be copied to " + name(to) + ": " + message
	case m.Gone:
		p.Phase, p.Saved, p.Message = provisionv1.SnapshotFailed, false, tryAgain+"host "+m.Host+" is gone, and had not copied it to "+name(to)
	default:
		p.Phase, p.Message = provisionv1.SnapshotRunning, "host "+m.Host+" has saved it, and copies it to "+name(to)
		if !m.Connected {
			p.Message = "host " + m.Host + " has saved it, was told to copy it to " + name(to) + ", and its agent is not connected"
		}
	}
	return p
}

// name returns the name of the bucket. It is empty if the task does not name a bucket. Drover creates no such tasks,
// and they fail on their hosts.
func name(o *Object) string {
	if o == nil {
		return "no bucket"
	}
	return "the bucket " + o.Bucket
}

// surplus returns the files that a host must remove: files that exceed the retention, and files that a failed snapshot
// may have left behind. more is the number of files that are about to be created.
func (d *decision) surplus(host string, more int) []string {
	if d.Retention <= 0 { // the schedule has been removed
		return nil
	}
	var files []string
	kept := more
	for _, s := range d.Stored { // newest first
		switch {
		case s.Host != host || s.Held:
		case !s.Saved:
			files = append(files, s.File)
		case kept < d.Retention:
			kept++
		default:
			files = append(files, s.File)
		}
	}
	if len(files) > maxRemove { // remove only the oldest files now; the next task removes the other files
		files = files[len(files)-maxRemove:]
	}
	return files
}

// expire finds the scheduled snapshots whose objects must be deleted. An object is deleted if the file of the snapshot
// has been removed, or if the snapshot failed and is not among the latest failures. It is also deleted if the snapshot
// exceeds the retention and its host is no longer a control plane machine.
func (d *decision) expire() {
	if d.Retention <= 0 {
		return
	}
	failures, elsewhere := 0, 0
	for _, s := range d.Stored { // newest first
		switch {
		case s.Held:
		case !s.Saved:
			if failures++; failures > maxFailures || failures > keptFailures && (d.elsewhere(s) || Removing(d.Machines, s.Host, s.File, Succeeded)) {
				d.out.Expired = append(d.out.Expired, s.UID)
			}
		case d.elsewhere(s):
			if elsewhere++; elsewhere > d.Retention {
				d.out.Expired = append(d.out.Expired, s.UID)
			}
		case Removing(d.Machines, s.Host, s.File, Succeeded):
			d.out.Expired = append(d.out.Expired, s.UID)
		}
	}
}

// elsewhere reports whether a snapshot is on none of the current control plane machines. No task can remove the file of
// such a snapshot.
func (d *decision) elsewhere(s Stored) bool {
	return !slices.ContainsFunc(d.Machines, func(m Machine) bool { return s.Host != "" && m.Host == s.Host && !m.Gone })
}

// Removing reports whether a host has a task in one of the given states that removes a file.
func Removing(machines []Machine, host, file string, states ...State) bool {
	for _, m := range machines {
		for _, t := range m.Tasks {
			if m.Host == host && t.Action == Snapshot && slices.Contains(t.Etcd.Remove, file) &&
				slices.Contains(states, cmp.Or(t.Status.State, Waiting)) {
				return true
			}
		}
	}
	return false
}
