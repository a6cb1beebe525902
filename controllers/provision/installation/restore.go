// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/installation"
	"github.com/drover-dev/drover/internal/status"
	"github.com/drover-dev/drover/internal/untrusted"
)

// gatherRestores reads the EtcdRestores of an installation, the oldest first. Its snapshots were read before.
func (r *Reconciler) gatherRestores(ctx context.Context, in *input) (*status.Readiness, error) {
	list := &provisionv1.EtcdRestoreList{}
	if err := r.Client.List(ctx, list, client.InNamespace(in.installation.Namespace)); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if restore := &list.Items[i]; restore.Spec.InstallationName == in.installation.Name {
			in.restores = append(in.restores, restore)
		}
	}
	slices.SortFunc(in.restores, func(a, b *provisionv1.EtcdRestore) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	for _, restore := range in.restores {
		in.decide.Restores = append(in.decide.Restores, wantedOf(in, restore))
	}
	return nil, nil
}

// wantedOf is what the planner is told of a restore.
func wantedOf(in *input, restore *provisionv1.EtcdRestore) installation.Restore {
	spec := restore.Spec
	wanted := installation.Restore{ID: string(restore.UID), Name: restore.Name, Host: spec.Host, File: spec.File, Cancel: spec.Cancel || !restore.DeletionTimestamp.IsZero()}
	if spec.File != "" {
		if spec.Host == "" && in.installation.Spec.Etcd.S3 == nil {
			wanted.Problem = "spec.file without spec.host is in the bucket of spec.etcd.s3 of the installation, which has none: name the host whose disk has the file"
		}
		return wanted
	}
	i := slices.IndexFunc(in.snapshots, func(s *provisionv1.EtcdSnapshot) bool { return s.Name == spec.SnapshotName })
	if i < 0 {
		wanted.Problem = fmt.Sprintf("there is no EtcdSnapshot %s of this installation: the file outlives it, so name that by spec.file", spec.SnapshotName)
		return wanted
	}
	snap := in.snapshots[i].Status
	wanted.Host, wanted.File, wanted.Begins = snap.Host, snap.Snapshot, true
	switch {
	case snap.Phase != provisionv1.SnapshotSucceeded:
		wanted.Problem = fmt.Sprintf("EtcdSnapshot %s is %s, and has not succeeded", spec.SnapshotName, cmp.Or(string(snap.Phase), "not made yet"))
	case spec.Configuration != provisionv1.ConfigurationRestore:
	case snap.Configuration == nil || len(snap.Configuration.Raw) == 0:
		wanted.Problem = fmt.Sprintf("EtcdSnapshot %s has no configuration: use configuration: Keep", spec.SnapshotName)
	default:
		wanted.Configuration = snap.Configuration.Raw
	}
	return wanted
}

// configure writes back the spec that a restore brings, once, before data is replaced. Pools and the counts of rotations stay as they are, since machines do.
func (r *Reconciler) configure(ctx context.Context, in *input, d *installation.Decision) error {
	if d.Configure == nil {
		return nil
	}
	spec := provisionv1.ClusterInstallationSpec{}
	if err := untrusted.JSON(d.Configure, &spec, untrusted.Large()); err != nil {
		return fmt.Errorf("read the configuration that EtcdRestore %s brings: %w", d.Restore.Name, err)
	}
	now := in.installation.Spec
	spec.ClusterName, spec.Distribution, spec.DataDir, spec.Pools = now.ClusterName, now.Distribution, now.DataDir, now.Pools
	spec.CertificateRotation, spec.EncryptionKeyRotation = now.CertificateRotation, now.EncryptionKeyRotation
	patched := in.installation.DeepCopy()
	patched.Spec = spec
	if err := r.Client.Patch(ctx, patched, client.MergeFromWithOptions(in.installation, client.MergeFromWithOptimisticLock{}), client.FieldOwner("drover")); err != nil {
		return fmt.Errorf("write back the spec that EtcdRestore %s brings: %w", d.Restore.Name, err)
	}
	d.Stored.Restore.Configured = patched.Generation
	in.update.Event(status.Event{Reason: "ConfigurationRestored", Action: "Restore", Message: fmt.Sprintf(
		"EtcdRestore %s has written back the spec that the installation had when the snapshot was made, with version %s. Let Git follow", d.Restore.Name, spec.Version)})
	return nil
}

// writeRestores writes the status of each EtcdRestore.
func (r *Reconciler) writeRestores(ctx context.Context, in *input, d installation.Decision) error {
	return r.eachRestore(ctx, in, func(restore *provisionv1.EtcdRestore, wanted installation.Restore) progressOfRestore {
		return judgeRestore(restore, wanted, d)
	})
}

// writeRestoresThatWait writes the status of those that have not ended while the planner cannot be asked.
func (r *Reconciler) writeRestoresThatWait(ctx context.Context, in *input, why string) error {
	return r.eachRestore(ctx, in, func(restore *provisionv1.EtcdRestore, _ installation.Restore) progressOfRestore {
		p := progressOfRestore{phase: cmp.Or(restore.Status.Phase, provisionv1.RestorePending), reason: provisionv1.ReasonWaiting, message: "waits for its ClusterInstallation: " + why, host: restore.Status.Host}
		if c := meta.FindStatusCondition(restore.Status.Conditions, provisionv1.ConditionReady); c != nil && endedPhase(p.phase) {
			p.reason, p.message = c.Reason, c.Message
		}
		return p
	})
}

func endedPhase(phase provisionv1.EtcdRestorePhase) bool {
	return phase == provisionv1.RestoreSucceeded || phase == provisionv1.RestoreFailed || phase == provisionv1.RestoreCanceled
}

// progressOfRestore is what a restore's status says.
type progressOfRestore struct {
	phase                 provisionv1.EtcdRestorePhase
	reason, message, host string
}

func (r *Reconciler) eachRestore(ctx context.Context, in *input, judge func(*provisionv1.EtcdRestore, installation.Restore) progressOfRestore) error {
	var errs []error
	for i, restore := range in.restores {
		restore = restore.DeepCopy()
		update, before, wanted := status.Begin(restore), restore.Status.Phase, in.decide.Restores[i]
		p := judge(restore, wanted)
		restore.Status.Phase, restore.Status.Host, restore.Status.Snapshot = p.phase, p.host, wanted.File
		succeeded := p.phase == provisionv1.RestoreSucceeded
		stalled := p.reason == provisionv1.ReasonSourceInvalid || endedPhase(p.phase) && !succeeded
		status.Readiness{Ready: succeeded, Stalled: stalled, Reason: p.reason, Message: p.message}.Write(restore.Generation, &restore.Status.ObservedGeneration, &restore.Status.Conditions)
		if before != p.phase && p.phase != provisionv1.RestorePending {
			update.Event(status.Event{Warning: p.phase == provisionv1.RestoreFailed, Reason: string(p.phase), Action: "Restore", Message: p.message})
		}
		errs = append(errs, update.Commit(ctx, r.Client, r.Recorder))
	}
	return errors.Join(errs...)
}

// judgeRestore says how far a restore is.
func judgeRestore(restore *provisionv1.EtcdRestore, wanted installation.Restore, d installation.Decision) progressOfRestore {
	if o, ended := d.Stored.Outcomes[wanted.ID]; ended {
		return judgeOutcome(o)
	}
	p := progressOfRestore{phase: provisionv1.RestorePending, reason: provisionv1.ReasonWaiting, message: "waits for EtcdRestore " + d.Restore.Name}
	switch {
	case wanted.Problem != "":
		p.reason, p.message = provisionv1.ReasonSourceInvalid, wanted.Problem
	case d.Restore.ID == wanted.ID:
		p = judgeStep(d.Restore)
		if restore.Spec.Cancel && d.Stored.Restore != nil && d.Stored.Restore.Replacing() {
			p.message = "it is too late to cancel, since data is being replaced; " + p.message
		}
	case d.Restore.ID == "":
		p.message = "waits to begin"
	}
	return p
}

func judgeOutcome(o installation.Outcome) progressOfRestore {
	switch {
	case o.Canceled:
		return progressOfRestore{provisionv1.RestoreCanceled, provisionv1.ReasonCanceled, "it was canceled, and no data was replaced; servers that were stopped are started again", o.Host}
	case o.Problem != "" && o.Restored:
		return progressOfRestore{provisionv1.RestoreFailed, provisionv1.ReasonFailed, fmt.Sprintf("host %s has the data of the snapshot, and servers that have not joined it wait for it: %s", o.Host, o.Problem), o.Host}
	case o.Problem != "":
		return progressOfRestore{provisionv1.RestoreFailed, provisionv1.ReasonFailed, fmt.Sprintf(
			"the data is what it was, and servers that were stopped are started again; make another EtcdRestore to try again: host %s: %s", o.Host, o.Problem), o.Host}
	}
	return progressOfRestore{provisionv1.RestoreSucceeded, provisionv1.ReasonSucceeded, fmt.Sprintf("host %s has restored it, and all servers are up", o.Host), o.Host}
}

func judgeStep(r installation.RestoreProgress) progressOfRestore {
	p := progressOfRestore{phase: provisionv1.RestorePending, reason: provisionv1.ReasonWaiting, message: "in progress" + waitsFor(r), host: r.Host}
	switch r.Step {
	case installation.StepStop:
		p.phase, p.reason = provisionv1.RestoreStopping, provisionv1.ReasonStopping
	case installation.StepRestore:
		p.phase, p.reason = provisionv1.RestoreRestoring, provisionv1.ReasonRestoring
	case installation.StepJoin, installation.StepNodes:
		p.phase, p.reason = provisionv1.RestoreJoining, provisionv1.ReasonJoining
	}
	if r.Away {
		p.reason = provisionv1.ReasonHostAway
	}
	return p
}

func waitsFor(r installation.RestoreProgress) string {
	if r.Waits == "" {
		return ""
	}
	return ": waits for " + r.Waits
}
