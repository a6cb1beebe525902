// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/k3s/decision"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// progressOf returns the progress of all snapshots and restores.
func progressOf(d *decision.Draft) (progress.All, error) {
	all := progress.NewAll()
	if len(d.Roster.Snapshots) > 0 {
		configuration, err := json.Marshal(d.Roster.Spec.ClusterInstallationSpec)
		if err != nil {
			return all, err
		}
		for _, snap := range d.Roster.Snapshots {
			all.Snapshots[types.UID(snap.ID)] = snapshotProgress(d, snap, configuration)
		}
	}
	for _, wanted := range d.Roster.Restores {
		all.Restores[types.UID(wanted.ID)] = restoreProgress(d, wanted)
	}
	return all, nil
}

func snapshotProgress(d *decision.Draft, snap roster.Snapshot, configuration []byte) progress.Snapshot {
	p := progress.Snapshot{
		Phase: provisionv1.SnapshotPending, File: snap.Name,
		Message: "waits for a server with etcd that is up, and has nothing else to do",
	}
	o, hasEnded := d.Roster.Stored.Outcomes[snap.ID]
	switch {
	case hasEnded && o.Problem != "":
		p.Phase, p.Host = provisionv1.SnapshotFailed, o.Host
		p.Message = "create another EtcdSnapshot to try again: host " + o.Host + ": " + o.Problem
	case hasEnded:
		p.Phase, p.Host, p.Message = provisionv1.SnapshotSucceeded, o.Host, "host "+o.Host+" has made the snapshot"
	case d.Out.Task == snapshotTask(snap.ID):
		p.Phase, p.Host = provisionv1.SnapshotRunning, d.Out.TaskHost
		p.Message = "host " + p.Host + " is making the snapshot"
	}
	if p.Phase == provisionv1.SnapshotRunning || p.Phase == provisionv1.SnapshotSucceeded {
		p.Configuration = configuration // the first value is kept
	}
	return p
}

func restoreProgress(d *decision.Draft, wanted roster.Restore) progress.Restore {
	p := progress.Restore{Phase: provisionv1.RestorePending, Reason: provisionv1.ReasonWaiting}
	o, hasEnded := d.Roster.Stored.Outcomes[wanted.ID]
	switch {
	case hasEnded:
		p = ended(o)
	case wanted.Problem != "":
		p.Reason, p.Message, p.Stuck = provisionv1.ReasonSourceInvalid, wanted.Problem, true
	case d.Out.Restore.ID == wanted.ID:
		p = current(d.Out.Restore)
		if wanted.Cancel && d.Roster.Stored.Restore != nil && d.Roster.Stored.Restore.Replacing() {
			p.Message = "it is too late to cancel, since data is being replaced; " + p.Message
		}
	case d.Out.Restore.ID == "":
		p.Message = "waits to begin"
	default:
		p.Message = "waits for EtcdRestore " + d.Out.Restore.Name
	}
	p.File = wanted.File
	return p
}

// ended returns the progress of a restore that has ended.
func ended(o roster.Outcome) progress.Restore {
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

// current returns the progress of the next restore or the restore in progress.
func current(r decision.CurrentRestore) progress.Restore {
	p := progress.Restore{Phase: provisionv1.RestorePending, Reason: provisionv1.ReasonWaiting, Host: r.Host, Message: "in progress" + r.WaitsFor()}
	switch r.Step {
	case roster.StepStop:
		p.Phase, p.Reason = provisionv1.RestoreStopping, provisionv1.ReasonStopping
	case roster.StepRestore:
		p.Phase, p.Reason = provisionv1.RestoreRestoring, provisionv1.ReasonRestoring
	case roster.StepJoin, roster.StepNodes:
		p.Phase, p.Reason = provisionv1.RestoreJoining, provisionv1.ReasonJoining
	}
	if r.Away {
		p.Reason = provisionv1.ReasonHostAway
	}
	return p
}
