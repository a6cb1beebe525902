// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/provision/etcd"
	"github.com/drover-dev/drover/internal/provision/k3s/decision"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
	"github.com/drover-dev/drover/internal/provision/progress"
	"github.com/drover-dev/drover/internal/status"
	"github.com/drover-dev/drover/internal/untrusted"
)

// gatherEtcd reads the EtcdSnapshots and EtcdRestores of an installation. It includes objects that have ended, because
// an outcome is discarded once its object is gone. If an object is in progress, gatherEtcd reads the objects from the
// API server. The cache might not contain the last status yet, and contains only some of the finalizers.
func (r *Reconciler) gatherEtcd(ctx context.Context, in *input) (err error) {
	ref := provisionv1.EtcdClusterRef{Kind: provisionv1.EtcdOfInstallation, Name: in.installation.Name}
	in.etcd, err = etcd.Read(ctx, r.Client, in.installation.Namespace, ref)
	if err == nil && in.etcd.InProgress() {
		in.etcd, err = etcd.Read(ctx, r.Live, in.installation.Namespace, ref)
	}
	return err
}

// wantEtcd converts the snapshots and restores to input for the decision.
func (in *input) wantEtcd() {
	for _, snap := range in.etcd.Snapshots {
		in.decide.Snapshots = append(in.decide.Snapshots, roster.Snapshot{ID: string(snap.UID), Name: fileOf(snap)})
	}
	for _, restore := range in.etcd.Restores {
		in.decide.Restores = append(in.decide.Restores, wantedOf(in, restore))
	}
}

// fileOf returns the prefix of a snapshot's file name. The prefix is unique even if a snapshot is deleted and another
// snapshot with the same name is created.
func fileOf(snap *provisionv1.EtcdSnapshot) string {
	return snap.Name + "-" + string(snap.UID)[:8]
}

// wantedOf converts a restore to input for the decision.
func wantedOf(in *input, restore *provisionv1.EtcdRestore) roster.Restore {
	spec := restore.Spec
	wanted := roster.Restore{ID: string(restore.UID), Name: restore.Name, Host: spec.Host, File: spec.File, Cancel: spec.Cancel || !restore.DeletionTimestamp.IsZero()}
	if spec.File != "" {
		if spec.Host == "" && in.installation.Spec.Etcd.S3 == nil {
			wanted.Problem = "spec.file without spec.host is in the bucket of spec.etcd.s3 of the installation, which has none: name the host whose disk has the file"
		}
		return wanted
	}
	i := slices.IndexFunc(in.etcd.Snapshots, func(s *provisionv1.EtcdSnapshot) bool { return s.Name == spec.SnapshotName })
	if i < 0 {
		wanted.Problem = fmt.Sprintf("there is no EtcdSnapshot %s of this installation: its file outlives it, so name the file in spec.file", spec.SnapshotName)
		return wanted
	}
	snap := in.etcd.Snapshots[i].Status
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

// configure replaces the installation's spec with the spec from the snapshot. It does so only once, before data is
// replaced. Pools and rotation counters keep their values, because the machines do not change.
func (r *Reconciler) configure(ctx context.Context, in *input, d *decision.Decision) error {
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

// waits returns the progress of all snapshots and restores while no decision about the installation is possible. All of
// them are shown as waiting.
func (in *input) waits(why string) progress.All {
	all := progress.NewAll()
	why = "waits for its ClusterInstallation: " + why
	for _, snap := range in.etcd.Snapshots {
		all.Snapshots[snap.UID] = progress.Snapshot{
			Phase: cmp.Or(snap.Status.Phase, provisionv1.SnapshotPending), Host: snap.Status.Host, Message: why,
		}
	}
	for _, restore := range in.etcd.Restores {
		all.Restores[restore.UID] = progress.Restore{
			Phase: cmp.Or(restore.Status.Phase, provisionv1.RestorePending), Reason: provisionv1.ReasonWaiting, Message: why,
		}
	}
	return all
}

// refuseEtcd reports the snapshots and restores of an installation that does not exist as waiting. The caller must have
// asked the API server, not the cache, whether the installation exists.
func (r *Reconciler) refuseEtcd(ctx context.Context, name types.NamespacedName) error {
	in := r.newInput(&provisionv1.ClusterInstallation{
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name},
	})
	if err := r.gatherEtcd(ctx, in); err != nil {
		return err
	}
	return etcd.Write(ctx, r.output(), in.etcd, in.waits("there is none of the name "+name.Name))
}
