// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/provision/kubeadm"
	"github.com/drover-dev/drover/internal/provision/progress"
	"github.com/drover-dev/drover/internal/provision/schedule"
)

const (
	// firstWindow is the maximum age of a due time while no scheduled snapshot exists. It prevents times before the
	// schedule was set from counting as missed.
	firstWindow = 10 * time.Minute
	// maxName limits the length of the cluster's name within a snapshot's name.
	maxName = 200
)

// scheduledBy reports whether a snapshot was created by a cluster's schedule. The label alone is not sufficient,
// because any user can set it. scheduledBy performs the same checks as the drover-provisioner-etcdsnapshots policy, so
// it returns false for a snapshot that the policy does not allow the provisioner to delete.
func scheduledBy(o *provisionv1.EtcdSnapshot, cluster *infrav1.DroverCluster) bool {
	by := metav1.GetControllerOf(o)
	if by == nil || o.Labels[provisionv1.LabelScheduled] != "true" || o.Spec.ClusterRef != refTo(cluster.Name) {
		return false
	}
	return strings.HasPrefix(by.APIVersion, infrav1.GroupVersion.Group+"/") && by.Kind == "DroverCluster" && by.Name == cluster.Name && by.UID == cluster.UID
}

// scheduledFor returns the scheduled time that a snapshot was created for.
func scheduledFor(o *provisionv1.EtcdSnapshot) time.Time {
	if t, err := time.Parse(time.RFC3339, o.Annotations[provisionv1.AnnotationScheduledFor]); err == nil {
		return t
	}
	return o.CreationTimestamp.Time
}

// sortScheduled sorts scheduled snapshots from newest to oldest. A snapshot whose scheduled time is in the future was
// created while a clock was wrong. It counts as the oldest snapshot. Otherwise, it would be kept forever.
func sortScheduled(all []*provisionv1.EtcdSnapshot, now time.Time) {
	ahead := func(o *provisionv1.EtcdSnapshot) int {
		if scheduledFor(o).After(now) {
			return 1
		}
		return 0
	}
	slices.SortFunc(all, func(a, b *provisionv1.EtcdSnapshot) int {
		return cmp.Or(ahead(a)-ahead(b), scheduledFor(b).Compare(scheduledFor(a)), progress.Older(b, a))
	})
}

// retention returns the number of scheduled snapshots that each control plane keeps, or 0 to keep all of them. It has
// no side effects.
func retention(cluster *infrav1.DroverCluster) int {
	switch {
	case cluster == nil || cluster.Spec.Etcd.Schedule == "":
		return 0
	case cluster.Spec.Etcd.Retention == 0:
		return kubeadm.DefaultRetention
	}
	return int(cluster.Spec.Etcd.Retention)
}

// stored returns the scheduled snapshots that have ended, without changing their order. It has no side effects.
func stored(scheduled []*provisionv1.EtcdSnapshot, restores []*provisionv1.EtcdRestore) []kubeadm.Stored {
	var all []kubeadm.Stored
	for _, o := range scheduled {
		if progress.SnapshotEnded(o.Status.Phase) {
			all = append(all, kubeadm.Stored{
				UID: string(o.UID), Host: o.Status.Host, File: fileOf(o), Saved: meta.IsStatusConditionTrue(o.Status.Conditions, provisionv1.ConditionSaved),
				Held: slices.ContainsFunc(restores, func(r *provisionv1.EtcdRestore) bool { return r.Spec.SnapshotName == o.Name }),
			})
		}
	}
	return all
}

// timing describes when a snapshot is due.
type timing struct {
	// due is the scheduled time of a snapshot that must be created now. It is zero if no snapshot is due.
	due time.Time
	// again is the time of the next check, or zero if no further check is needed.
	again time.Time
}

// timed returns the scheduled time of a snapshot that must be created now. It has no side effects, and depends on no
// state except for the snapshots that the schedule has created. If several times were missed, only one snapshot is
// created, for the latest time. No snapshot is created while another snapshot or a restore is in progress.
func timed(s schedule.Schedule, scheduled []*provisionv1.EtcdSnapshot, restoring bool, now time.Time) timing {
	t := timing{again: s.Next(now)}
	last := now.Add(-firstWindow)
	for _, o := range slices.Backward(scheduled) { // from oldest to newest
		if !progress.SnapshotEnded(o.Status.Phase) {
			return t
		}
		if at := scheduledFor(o); !at.After(now) { // a time in the future means that a clock is wrong
			last = at
		}
	}
	if due, found := s.Latest(last, now); found && !restoring {
		t.due = due
	}
	return t
}

// followSchedule creates a snapshot if one is due. It returns the time of the next check, or zero if no further check
// is needed. If the schedule cannot be parsed, the status of the DroverCluster says so.
func (in *input) followSchedule(ctx context.Context) (time.Time, error) {
	if in.cluster == nil || in.cluster.Spec.Etcd.Schedule == "" || !in.cluster.DeletionTimestamp.IsZero() {
		return time.Time{}, nil
	}
	s, err := schedule.Parse(in.cluster.Spec.Etcd.Schedule)
	if err != nil {
		return time.Time{}, nil // the controller of DroverClusters reports the problem
	}
	t := timed(s, in.scheduled, len(in.restores) > 0, in.Now())
	bootstrapped := slices.ContainsFunc(in.decide.Machines, func(m kubeadm.Machine) bool { return m.Provisioned && !m.Gone })
	if t.due.IsZero() || in.problem != "" || !bootstrapped {
		if !t.due.IsZero() && in.hopeless {
			in.Recorder.Eventf(in.cluster, nil, corev1.EventTypeWarning, "SnapshotNotMade", "Snapshot", "no EtcdSnapshot was made for %s: %s. Remove spec.etcd.schedule", t.due.Format(time.RFC3339), in.problem)
		}
		return t.again, nil
	}
	o := scheduledSnapshot(in.cluster, t.due)
	err = in.Client.Create(ctx, o)
	if apierrors.IsAlreadyExists(err) {
		return t.again, in.inTheWay(ctx, in.cluster, o, t.due)
	} else if err != nil {
		return time.Time{}, fmt.Errorf("make EtcdSnapshot %s/%s: %w", o.Namespace, o.Name, err)
	}
	in.Recorder.Eventf(in.cluster, o, corev1.EventTypeNormal, "SnapshotScheduled", "Snapshot", "made EtcdSnapshot %s for %s", o.Name, t.due.Format(time.RFC3339))
	return t.again, nil
}

// inTheWay returns an error if another object has the name of a snapshot that is due. An object that the schedule
// created causes no error. Such an object can exist if the provisioner was killed right after creating it.
func (in *input) inTheWay(ctx context.Context, cluster *infrav1.DroverCluster, o *provisionv1.EtcdSnapshot, due time.Time) error {
	present := &provisionv1.EtcdSnapshot{}
	if err := in.Live.Get(ctx, client.ObjectKeyFromObject(o), present); err != nil {
		return client.IgnoreNotFound(err)
	}
	if !scheduledBy(present, cluster) {
		in.Recorder.Eventf(cluster, present, corev1.EventTypeWarning, "SnapshotNotMade", "Snapshot",
			"no EtcdSnapshot was made for %s: EtcdSnapshot %s has its name, but was not created by this schedule. Delete it", due.Format(time.RFC3339), present.Name)
	}
	return nil
}

// scheduledSnapshot returns the snapshot to create for a cluster and a scheduled time. The snapshot's name contains
// both the cluster and the time, so the snapshot is created only once. scheduledSnapshot has no side effects.
func scheduledSnapshot(cluster *infrav1.DroverCluster, due time.Time) *provisionv1.EtcdSnapshot {
	name := cluster.Name
	if len(name) > maxName {
		sum := sha256.Sum256([]byte(name))
		name = name[:maxName] + "-" + hex.EncodeToString(sum[:4])
	}
	yes := true
	return &provisionv1.EtcdSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cluster.Namespace, Name: name + "-" + strconv.FormatInt(due.Unix()/60, 10),
			Labels:          map[string]string{provisionv1.LabelScheduled: "true"},
			Annotations:     map[string]string{provisionv1.AnnotationScheduledFor: due.UTC().Format(time.RFC3339)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: infrav1.GroupVersion.String(), Kind: "DroverCluster", Name: cluster.Name, UID: cluster.UID, Controller: &yes}},
		},
		Spec: provisionv1.EtcdSnapshotSpec{ClusterRef: refTo(cluster.Name)},
	}
}

// expire deletes scheduled snapshots in excess of the retention.
func (in *input) expire(ctx context.Context, d kubeadm.Decision) error {
	var errs []error
	for _, o := range in.scheduled {
		if slices.Contains(d.Expired, string(o.UID)) {
			if err := owned.Delete(ctx, in.Client, o); err != nil {
				errs = append(errs, fmt.Errorf("delete EtcdSnapshot %s/%s, which is beyond the retention: %w", o.Namespace, o.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}
