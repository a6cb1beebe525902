// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// progress returns the progress of all snapshots and restores.
func (d *decision) progress() (progress.All, error) {
	all := progress.NewAll()
	if len(d.Snapshots) > 0 {
		configuration, err := json.Marshal(d.Spec.ClusterInstallationSpec)
		if err != nil {
			return all, err
		}
		for _, snap := range d.Snapshots {
			all.Snapshots[types.UID(snap.ID)] = d.snapshotProgress(snap, configuration)
		}
	}
	for _, wanted := range d.Restores {
		all.Restores[types.UID(wanted.ID)] = d.restoreProgress(wanted)
	}
	return all, nil
}

func (d *decision) snapshotProgress(snap Snapshot, configuration []byte) progress.Snapshot {
	p := progress.Snapshot{
		Phase: provisionv1.SnapshotPending, File: snap.Name,
		Message: "waits for a server with etcd that is up, and has nothing else to do",
	}
	o, ended := d.Stored.Outcomes[snap.ID]
	switch {
	case ended && o.Problem != "":
		p.Phase, p.Host = provisionv1.SnapshotFailed, o.Host
		p.Message = "create another EtcdSnapshot to try again: host " + o.Host + ": " + o.Problem
	case ended:
		p.Phase, p.Host, p.Message = provisionv1.SnapshotSucceeded, o.Host, "host "+o.Host+" has made the snapshot"
	case d.out.Task == snapshotTask(snap.ID):
		p.Phase, p.Host = provisionv1.SnapshotRunning, d.out.TaskHost
		p.Message = "host " + p.Host + " is making the snapshot"
	}
	if p.Phase == provisionv1.SnapshotRunning || p.Phase == provisionv1.SnapshotSucceeded {
		p.Configuration = configuration // the first value is kept
	}
	return p
}

func (d *decision) restoreProgress(wanted Restore) progress.Restore {
	p := progress.Restore{Phase: provisionv1.RestorePending, Reason: provisionv1.ReasonWaiting}
	o, ended := d.Stored.Outcomes[wanted.ID]
	switch {
	case ended:
		p = o.progress()
	case wanted.Problem != "":
		p.Reason, p.Message, p.Stuck = provisionv1.ReasonSourceInvalid, wanted.Problem, true
	case d.out.Restore.ID == wanted.ID:
		p = d.out.Restore.progress()
		if wanted.Cancel && d.Stored.Restore != nil && d.Stored.Restore.Replacing() {
			p.Message = "it is too late to cancel, since data is being replaced; " + p.Message
		}
	case d.out.Restore.ID == "":
		p.Message = "waits to begin"
	default:
		p.Message = "waits for EtcdRestore " + d.out.Restore.Name
	}
	p.File = wanted.File
	return p
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
