// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
	"github.com/drover-dev/drover/internal/provision/etcd"
	"github.com/drover-dev/drover/internal/provision/hosts"
	"github.com/drover-dev/drover/internal/provision/kubeadm"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// clientPort is the client port of the etcd that kubeadm installs.
const clientPort = 2379

// lostTime is how long a snapshot or copy waits for a disconnected host before it fails.
const lostTime = 10 * time.Minute

// gather reads everything that a decision depends on. It reads the machines before the snapshots and restores. A
// machine keeps the outcome of a task until the status of the corresponding object contains the outcome. A finished
// object is therefore never mistaken for a new one.
func (in *input) gather(ctx context.Context) (err error) {
	if err = in.gatherMachines(ctx); err != nil {
		return err
	}
	if in.objects, err = etcd.Read(ctx, in.Live, in.name.Namespace, refTo(in.name.Name)); err != nil {
		return err
	}
	in.gatherWishes()
	if err := in.gatherSource(ctx, in.active()); err != nil {
		return err
	}
	holding := in.restores
	if in.active() != nil && in.decide.Restore.Problem != "" {
		// the objects that the rejected restore refers to no longer exist
		holding = holding[1:]
	}
	in.decide.Retention, in.decide.Stored = retention(in.cluster), stored(in.scheduled, holding)
	if in.problem != "" || in.active() == nil {
		return nil
	}
	in.decide.Paused, err = clusterapi.ControlPlanePaused(ctx, in.Live, in.owner)
	return err
}

// gatherMachines reads the cluster and its control plane machines.
func (in *input) gatherMachines(ctx context.Context) error {
	cluster := &infrav1.DroverCluster{}
	if err := in.Client.Get(ctx, in.name, cluster); apierrors.IsNotFound(err) {
		in.problem = "there is no DroverCluster " + in.name.Name
		return nil
	} else if err != nil {
		return err
	}
	in.cluster = cluster
	owner, problem, err := clusterapi.ClusterOf(ctx, in.Live, cluster)
	if err != nil || problem != "" {
		in.problem = problem
		return err
	}
	name := owner.Name
	if in.owner = owner; owner.Spec.ControlPlaneRef.Kind != clusterapi.KubeadmControlPlane {
		in.problem, in.hopeless = fmt.Sprintf("the control plane of the Cluster %s is not made by kubeadm, but by a %.64s", name, owner.Spec.ControlPlaneRef.Kind), true
		return nil
	}
	machines := &infrav1.DroverMachineList{}
	if err := in.Live.List(ctx, machines, client.InNamespace(in.name.Namespace), client.MatchingLabels{clusterapi.LabelCluster: name}, client.HasLabels{clusterapi.LabelControlPlane}); err != nil {
		return err
	}
	slices.SortFunc(machines.Items, func(a, b infrav1.DroverMachine) int { return cmp.Compare(a.Name, b.Name) })
	in.machines = machines.Items
	for i := range in.machines {
		host, err := in.hostOf(ctx, &in.machines[i])
		if err != nil {
			return err
		}
		in.decide.Machines = append(in.decide.Machines, machine(&in.machines[i], host, in.Now()))
	}
	return nil
}

// hostOf reads a machine's Host. It returns nil if the machine has no Host.
func (in *input) hostOf(ctx context.Context, m *infrav1.DroverMachine) (*v1.Host, error) {
	if m.Status.HostName == "" {
		return nil, nil
	}
	host := &v1.Host{}
	if err := in.Client.Get(ctx, types.NamespacedName{Namespace: m.Namespace, Name: m.Status.HostName}, host); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return host, nil
}

// machine returns the facts about a machine that decisions depend on. It has no side effects.
func machine(m *infrav1.DroverMachine, host *v1.Host, now time.Time) kubeadm.Machine {
	provisioned := m.Status.Initialization.Provisioned
	out := kubeadm.Machine{
		Name: m.Name, Host: m.Status.HostName, Provisioned: provisioned != nil && *provisioned, Connected: host != nil && hosts.Connected(host),
		Gone: host == nil && m.Status.HostName != "" || host != nil && !host.DeletionTimestamp.IsZero() && !hosts.Connected(host),
		Lost: lost(host, now), Leaving: !m.DeletionTimestamp.IsZero(),
	}
	for _, a := range m.Status.Addresses {
		if address, err := netip.ParseAddr(a.Address); a.Type == "InternalIP" && err == nil && address.Zone() == "" {
			out.Endpoints = append(out.Endpoints, "https://"+netip.AddrPortFrom(address, clientPort).String())
		}
	}
	for _, t := range m.Spec.Tasks {
		if t.Etcd == nil {
			continue
		}
		task := kubeadm.Task{MachineTask: t}
		if i := slices.IndexFunc(m.Status.Tasks, func(s infrav1.MachineTaskStatus) bool { return s.ID == t.ID }); i >= 0 {
			task.Status = m.Status.Tasks[i]
		}
		out.Tasks = append(out.Tasks, task)
	}
	return out
}

// lost reports whether a Host has been disconnected for lostTime. If the hub started after the agent's last connection,
// the Host's status has no lastSeen. In that case, lost uses the last transition time of the Ready condition, which is
// never earlier than the disconnection. lost has no side effects.
func lost(host *v1.Host, now time.Time) bool {
	if host == nil || hosts.Connected(host) {
		return false
	}
	since := host.Status.LastSeen
	if ready := meta.FindStatusCondition(host.Status.Conditions, v1.ConditionReady); since == nil && ready != nil {
		since = &ready.LastTransitionTime
	}
	return since != nil && now.After(since.Add(lostTime))
}

// gatherWishes finds the snapshots and restores that have not ended, and the snapshots that the cluster's schedule has
// created.
func (in *input) gatherWishes() {
	for _, o := range in.objects.Snapshots {
		if !o.DeletionTimestamp.IsZero() {
			continue
		}
		if in.cluster != nil && scheduledBy(o, in.cluster) {
			in.scheduled = append(in.scheduled, o)
		}
		if !progress.SnapshotEnded(o.Status.Phase) {
			in.snapshots = append(in.snapshots, o)
			file := fileOf(o)
			wish := kubeadm.SnapshotWish{UID: string(o.UID), File: file, S3: objectOf(in.cluster, file)}
			in.decide.Snapshots = append(in.decide.Snapshots, wish)
		}
	}
	sortScheduled(in.scheduled, in.Now())
	for _, o := range in.objects.Restores {
		if !progress.RestoreEnded(o.Status.Phase) || slices.Contains(o.Finalizers, provisionv1.FinalizerRestore) {
			in.restores = append(in.restores, o)
		}
	}
}

// fileOf returns the name of a snapshot's file. The name is unique even if a snapshot is deleted and another snapshot
// with the same name is created.
func fileOf(o *provisionv1.EtcdSnapshot) string {
	return o.Name[:min(len(o.Name), 200)] + "-" + string(o.UID)[:8] + ".db"
}

// objectOf returns the location of a file in a cluster's bucket, or nil if the cluster has no bucket. It has no side
// effects.
func objectOf(cluster *infrav1.DroverCluster, file string) *kubeadm.Object {
	if cluster == nil || cluster.Spec.Etcd.S3 == nil {
		return nil
	}
	s3 := cluster.Spec.Etcd.S3
	key := strings.TrimPrefix(path.Join("/", s3.Folder, file), "/")
	return &kubeadm.Object{
		EtcdS3Object:          provisionv1.EtcdS3Object{Endpoint: s3.Endpoint, Bucket: s3.Bucket, Region: s3.Region, BucketLookup: s3.BucketLookup, Key: key},
		CredentialsSecretName: s3.CredentialsSecretName,
	}
}

// copyOf returns the copy of a snapshot if it is at the endpoint and in the bucket that the cluster specifies. The
// cluster's credentials do not give access to any other copy. copyOf has no side effects.
func copyOf(cluster *infrav1.DroverCluster, snapshot *provisionv1.EtcdSnapshot) *kubeadm.Object {
	at, object := snapshot.Status.S3, objectOf(cluster, snapshot.Status.Snapshot)
	if at == nil || object == nil || at.Endpoint != object.Endpoint || at.Bucket != object.Bucket {
		return nil
	}
	object.Key = at.Key
	return object
}

// gatherSource finds the file to restore.
func (in *input) gatherSource(ctx context.Context, restore *provisionv1.EtcdRestore) error {
	if restore == nil {
		return nil
	}
	wish := &kubeadm.RestoreWish{UID: string(restore.UID), Host: restore.Spec.Host, File: restore.Spec.File, Cancel: restore.Spec.Cancel || !restore.DeletionTimestamp.IsZero()}
	in.decide.Restore = wish
	if restore.Spec.SnapshotName == "" {
		if wish.Host == "" {
			if wish.S3 = objectOf(in.cluster, wish.File); wish.S3 == nil {
				wish.Problem = "spec.file without spec.host is in the bucket of spec.etcd.s3 of the DroverCluster, which has none: name the host whose disk has the file"
			}
		}
		return nil
	}
	snapshot := &provisionv1.EtcdSnapshot{}
	err := in.Live.Get(ctx, types.NamespacedName{Namespace: restore.Namespace, Name: restore.Spec.SnapshotName}, snapshot)
	switch {
	case apierrors.IsNotFound(err):
		wish.Problem = "there is no EtcdSnapshot " + restore.Spec.SnapshotName
	case err != nil:
		return err
	case snapshot.Spec.ClusterRef != refTo(in.name.Name):
		wish.Problem = fmt.Sprintf("the EtcdSnapshot %s is not one of the DroverCluster %s", snapshot.Name, in.name.Name)
	case snapshot.Status.Phase != provisionv1.SnapshotSucceeded:
		wish.Problem = fmt.Sprintf("the EtcdSnapshot %s has not succeeded: %s", snapshot.Name, snapshot.Status.Phase)
	default:
		in.source(wish, snapshot)
	}
	return nil
}

// source stores the location of a snapshot's file in wish.
func (in *input) source(wish *kubeadm.RestoreWish, snapshot *provisionv1.EtcdSnapshot) {
	wish.Host, wish.File, wish.S3 = snapshot.Status.Host, snapshot.Status.Snapshot, copyOf(in.cluster, snapshot)
	present := slices.ContainsFunc(in.decide.Machines, func(m kubeadm.Machine) bool { return m.Host == wish.Host && !m.Gone })
	removing := kubeadm.Removing(in.decide.Machines, wish.Host, wish.File, kubeadm.Waiting, kubeadm.Running, kubeadm.Succeeded)
	switch at := snapshot.Status.S3; {
	case wish.S3 != nil || present && !removing:
	case removing:
		wish.Problem = fmt.Sprintf("host %s is removing the file of the EtcdSnapshot %s, which is beyond spec.etcd.retention of the DroverCluster: name a later one", wish.Host, snapshot.Name)
	case at != nil:
		wish.Problem = fmt.Sprintf("host %s is no control plane of the cluster, and the copy of the EtcdSnapshot %s is in the bucket %s at %s, which spec.etcd.s3 of the DroverCluster does not name: set it",
			wish.Host, snapshot.Name, at.Bucket, cmp.Or(at.Endpoint, "AWS"))
	}
}
