// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/provision/hub"
	"github.com/drover-dev/drover/internal/provision/k3s"
	"github.com/drover-dev/drover/internal/provision/progress"
	"github.com/drover-dev/drover/internal/status"
	"github.com/drover-dev/drover/internal/untrusted"
)

// gatherWanted reads the EtcdSnapshots and EtcdRestores of an installation, from oldest to newest. It includes objects
// that have ended, because an outcome is discarded once its object is gone.
func (r *Reconciler) gatherWanted(ctx context.Context, in *input) error {
	snapshots, restores := &provisionv1.EtcdSnapshotList{}, &provisionv1.EtcdRestoreList{}
	for _, list := range []client.ObjectList{snapshots, restores} {
		if err := r.Client.List(ctx, list, client.InNamespace(in.installation.Namespace)); err != nil {
			return err
		}
	}
	ref := provisionv1.EtcdClusterRef{Kind: provisionv1.EtcdOfInstallation, Name: in.installation.Name}
	for i := range snapshots.Items {
		if snap := &snapshots.Items[i]; snap.Spec.ClusterRef == ref {
			in.snapshots = append(in.snapshots, snap)
		}
	}
	for i := range restores.Items {
		if restore := &restores.Items[i]; restore.Spec.ClusterRef == ref {
			in.restores = append(in.restores, restore)
		}
	}
	slices.SortFunc(in.snapshots, func(a, b *provisionv1.EtcdSnapshot) int { return progress.Older(a, b) })
	slices.SortFunc(in.restores, func(a, b *provisionv1.EtcdRestore) int { return progress.Older(a, b) })
	for _, snap := range in.snapshots {
		in.decide.Snapshots = append(in.decide.Snapshots, k3s.Snapshot{ID: string(snap.UID), Name: fileOf(snap)})
	}
	for _, restore := range in.restores {
		in.decide.Restores = append(in.decide.Restores, wantedOf(in, restore))
	}
	return nil
}

// fileOf returns the prefix of a snapshot's file name. The prefix is unique even if a snapshot is deleted and another
// snapshot with the same name is created.
func fileOf(snap *provisionv1.EtcdSnapshot) string {
	return snap.Name + "-" + string(snap.UID)[:8]
}

// wantedOf converts a restore to the form that the decision needs.
func wantedOf(in *input, restore *provisionv1.EtcdRestore) k3s.Restore {
	spec := restore.Spec
	wanted := k3s.Restore{ID: string(restore.UID), Name: restore.Name, Host: spec.Host, File: spec.File, Cancel: spec.Cancel || !restore.DeletionTimestamp.IsZero()}
	if spec.File != "" {
		if spec.Host == "" && in.installation.Spec.Etcd.S3 == nil {
			wanted.Problem = "spec.file without spec.host is in the bucket of spec.etcd.s3 of the installation, which has none: name the host whose disk has the file"
		}
		return wanted
	}
	i := slices.IndexFunc(in.snapshots, func(s *provisionv1.EtcdSnapshot) bool { return s.Name == spec.SnapshotName })
	if i < 0 {
		wanted.Problem = fmt.Sprintf("there is no EtcdSnapshot %s of this installation: its file outlives it, so name the file in spec.file", spec.SnapshotName)
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

// configure replaces the installation's spec with the spec from the snapshot. This happens only once, before data is
// replaced. Pools and rotation counters keep their values, because the machines do not change.
func (r *Reconciler) configure(ctx context.Context, in *input, d *k3s.Decision) error {
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
	if err := r.Client.Patch(ctx, patched, client.MergeFromWithOptions(in.installation, client.MergeFromWithOptimisticLock{}), owned.FieldOwner); err != nil {
		return fmt.Errorf("write back the spec that EtcdRestore %s brings: %w", d.Restore.Name, err)
	}
	d.Stored.Restore.Configured = patched.Generation
	in.update.Event(status.Event{Reason: "ConfigurationRestored", Action: "Restore", Message: fmt.Sprintf(
		"EtcdRestore %s has written back the spec that the installation had when the snapshot was made, with version %s. Let Git follow", d.Restore.Name, spec.Version)})
	return nil
}

// EtcdProgress returns the progress of all snapshots and restores of an installation. It makes the same decision as
// Reconcile, but does not carry it out.
func (r *Reconciler) EtcdProgress(ctx context.Context, name types.NamespacedName) (progress.All, error) {
	object := &provisionv1.ClusterInstallation{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	in := r.newInput(object)
	err := r.Client.Get(ctx, name, object)
	switch {
	case apierrors.IsNotFound(err):
		object.Namespace, object.Name = name.Namespace, name.Name
		err = r.gatherWanted(ctx, in)
		return in.waits("there is none of the name " + name.Name), err
	case err != nil:
		return progress.All{}, err
	case !object.DeletionTimestamp.IsZero():
		err = r.gatherWanted(ctx, in)
		return in.waits("it is being deleted"), err
	}
	why, err := r.gather(ctx, in)
	switch denied := hub.NotPermitted(ctx, r.Live, name.Namespace, err); {
	case denied != "":
		return in.waits(denied), nil
	case err != nil:
		return progress.All{}, err
	case why != nil:
		return in.waits(why.Message), nil
	}
	decision, err := k3s.Decide(in.decide)
	if err != nil {
		return progress.All{}, err
	}
	return in.progress(decision)
}

// progress returns the progress of all snapshots and restores after a decision.
func (in *input) progress(d k3s.Decision) (progress.All, error) {
	all := progress.All{Snapshots: map[types.UID]progress.Snapshot{}, Restores: map[types.UID]progress.Restore{}}
	spec, err := json.Marshal(in.installation.Spec)
	if err != nil {
		return all, err
	}
	for i, snap := range in.snapshots {
		p, settled := in.decide.SnapshotProgress(in.decide.Snapshots[i], d)
		if !settled {
			all.Again = soon
			continue
		}
		if p.Phase == provisionv1.SnapshotRunning || p.Phase == provisionv1.SnapshotSucceeded {
			p.Configuration = spec // the first value is kept
		}
		all.Snapshots[snap.UID] = p
	}
	for i, restore := range in.restores {
		p, settled := in.decide.RestoreProgress(in.decide.Restores[i], d)
		if !settled {
			all.Again = soon
			continue
		}
		all.Restores[restore.UID] = p
	}
	return all, nil
}

// waits returns the progress of all snapshots and restores while no decision about the installation is possible: they
// are all waiting.
func (in *input) waits(why string) progress.All {
	all := progress.All{Snapshots: map[types.UID]progress.Snapshot{}, Restores: map[types.UID]progress.Restore{}, Again: lookAgain}
	why = "waits for its ClusterInstallation: " + why
	for _, snap := range in.snapshots {
		all.Snapshots[snap.UID] = progress.Snapshot{Phase: cmp.Or(snap.Status.Phase, provisionv1.SnapshotPending), Host: snap.Status.Host, Message: why}
	}
	for _, restore := range in.restores {
		all.Restores[restore.UID] = progress.Restore{Phase: cmp.Or(restore.Status.Phase, provisionv1.RestorePending), Reason: provisionv1.ReasonWaiting, Message: why}
	}
	return all
}
