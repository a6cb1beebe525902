// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"fmt"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// ended returns the outcome of a snapshot or restore that has ended. If stored is false, the outcome comes from this
// decision and takes effect only after the decision has been stored.
func (in *Input) ended(id string, d Decision) (o Outcome, ended, stored bool) {
	if o, stored = in.Stored.Outcomes[id]; stored {
		return o, true, true
	}
	o, ended = d.Stored.Outcomes[id]
	return o, ended, false
}

// SnapshotProgress returns the progress of a snapshot according to a decision. It returns false if the snapshot ends
// with this decision, because the decision must be stored first.
func (in *Input) SnapshotProgress(snap Snapshot, d Decision) (progress.Snapshot, bool) {
	p := progress.Snapshot{Phase: provisionv1.SnapshotPending, File: snap.Name, Message: "waits for a server with etcd that is up, and has nothing else to do"}
	o, ended, stored := in.ended(snap.ID, d)
	host := d.SnapshotOn(snap.ID)
	switch {
	case ended && o.Problem != "":
		p.Phase, p.Host, p.Message = provisionv1.SnapshotFailed, o.Host, "create another EtcdSnapshot to try again: host "+o.Host+": "+o.Problem
	case ended:
		p.Phase, p.Host, p.Message = provisionv1.SnapshotSucceeded, o.Host, "host "+o.Host+" has made the snapshot"
	case host != "":
		p.Phase, p.Host, p.Message = provisionv1.SnapshotRunning, host, "host "+host+" is making the snapshot"
	}
	return p, ended == stored
}

// RestoreProgress returns the progress of a restore according to a decision. It returns false if the restore ends with
// this decision, because the decision must be stored first.
func (in *Input) RestoreProgress(wanted Restore, d Decision) (progress.Restore, bool) {
	o, ended, stored := in.ended(wanted.ID, d)
	p := progress.Restore{Phase: provisionv1.RestorePending, Reason: provisionv1.ReasonWaiting, Message: "waits for EtcdRestore " + d.Restore.Name}
	switch {
	case ended:
		p = o.progress()
	case wanted.Problem != "":
		p.Reason, p.Message, p.Stuck = provisionv1.ReasonSourceInvalid, wanted.Problem, true
	case d.Restore.ID == wanted.ID:
		p = d.Restore.progress()
		if wanted.Cancel && d.Stored.Restore != nil && d.Stored.Restore.Replacing() {
			p.Message = "it is too late to cancel, since data is being replaced; " + p.Message
		}
	case d.Restore.ID == "":
		p.Message = "waits to begin"
	}
	p.File = wanted.File
	return p, ended == stored
}

// progress returns the progress of a restore that has ended.
func (o Outcome) progress() progress.Restore {
	switch {
	case o.Canceled:
		return progress.Restore{Phase: provisionv1.RestoreCanceled, Reason: provisionv1.ReasonCanceled, Host: o.Host,
			Message: "it was canceled, and no data was replaced; servers that were stopped are started again"}
	case o.Problem != "" && o.Restored:
		return progress.Restore{Phase: provisionv1.RestoreFailed, Reason: provisionv1.ReasonFailed, Host: o.Host,
			Message: fmt.Sprintf("host %s has the data of the snapshot, and servers that have not joined it are waiting: %s", o.Host, o.Problem)}
	case o.Problem != "":
		return progress.Restore{Phase: provisionv1.RestoreFailed, Reason: provisionv1.ReasonFailed, Host: o.Host, Message: fmt.Sprintf(
			"no data was replaced, and servers that were stopped are started again; create another EtcdRestore to try again: host %s: %s", o.Host, o.Problem)}
	}
	return progress.Restore{Phase: provisionv1.RestoreSucceeded, Reason: provisionv1.ReasonSucceeded, Host: o.Host,
		Message: fmt.Sprintf("host %s has restored the snapshot, and all servers are up", o.Host)}
}

// progress returns the progress of the next restore or the restore in progress.
func (r CurrentRestore) progress() progress.Restore {
	p := progress.Restore{Phase: provisionv1.RestorePending, Reason: provisionv1.ReasonWaiting, Host: r.Host, Message: "in progress" + r.WaitsFor()}
	switch r.Step {
	case StepStop:
		p.Phase, p.Reason = provisionv1.RestoreStopping, provisionv1.ReasonStopping
	case StepRestore:
		p.Phase, p.Reason = provisionv1.RestoreRestoring, provisionv1.ReasonRestoring
	case StepJoin, StepNodes:
		p.Phase, p.Reason = provisionv1.RestoreJoining, provisionv1.ReasonJoining
	}
	if r.Away {
		p.Reason = provisionv1.ReasonHostAway
	}
	return p
}

// WaitsFor describes what the restore is waiting for, as the end of a sentence.
func (r CurrentRestore) WaitsFor() string {
	if r.Waits == "" {
		return ""
	}
	return ": waits for " + r.Waits
}
