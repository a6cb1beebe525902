// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package installation_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// restoring returns a world with one server that is up and of which a snapshot has been taken.
func restoring(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.host("s1", "server", "10.1.0.1")
	w.Apply(t, &provisionv1.EtcdSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: "before"}, Spec: provisionv1.EtcdSnapshotSpec{ClusterRef: ofProd}})
	w.reconcile(4)
	for range 3 { // it is up, has made the snapshot, and has its instructions without the snapshot
		w.report("s1", v1.HostActive, v1.ReasonActive, "")
		w.reconcile(2)
	}
	return w
}

// wanted creates an EtcdRestore.
func (w *world) wanted(name string, change func(*provisionv1.EtcdRestoreSpec)) *provisionv1.EtcdRestore {
	w.t.Helper()
	restore := &provisionv1.EtcdRestore{ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: name}, Spec: provisionv1.EtcdRestoreSpec{ClusterRef: ofProd}}
	change(&restore.Spec)
	if err := w.Client.Create(w.t.Context(), restore); err != nil {
		w.t.Fatal(err)
	}
	return restore
}

func ofSnapshot(s *provisionv1.EtcdRestoreSpec) { s.SnapshotName = "before" }

// phase checks the phase, the reason and a part of the message.
func (w *world) phase(name string, want provisionv1.EtcdRestorePhase, reason, message string) *provisionv1.EtcdRestore {
	w.t.Helper()
	restore := get(w, name, &provisionv1.EtcdRestore{})
	ready := meta.FindStatusCondition(restore.Status.Conditions, provisionv1.ConditionReady)
	if restore.Status.Phase != want || ready == nil || ready.Reason != reason || !strings.Contains(ready.Message, message) {
		w.t.Errorf("%s is %s, %+v, want %s, %s, %s", name, restore.Status.Phase, ready, want, reason, message)
	}
	ends := want == provisionv1.RestoreFailed || want == provisionv1.RestoreCanceled || reason == provisionv1.ReasonSourceInvalid
	if stalled := meta.IsStatusConditionTrue(restore.Status.Conditions, provisionv1.ConditionStalled); stalled != ends {
		w.t.Errorf("%s is Stalled: %t", name, stalled)
	}
	return restore
}

// last returns the ID of the last instruction of a Host, without the ID of the restore.
func (w *world) last(host string) string {
	w.t.Helper()
	i := w.instructions(host).Instructions
	kind, _, _ := strings.Cut(i[len(i)-1].ID, "-")
	return kind
}

func TestSnapshotIsRestored(t *testing.T) {
	t.Parallel()
	w := restoring(t)
	w.wanted("back", ofSnapshot)
	w.phase("back", provisionv1.RestorePending, provisionv1.ReasonPending, "waiting for its cluster")
	want(t, w.reconcile(1), "0/1", provisionv1.ReasonRestoring, "EtcdRestore back is in progress, and nothing else is changed: waits for host s1, which looks for the file")
	restore := w.phase("back", provisionv1.RestorePending, provisionv1.ReasonWaiting, "host s1, which looks for the file")
	snapshot := get(w, "before", &provisionv1.EtcdSnapshot{}).Status.Snapshot
	if restore.Status.Host != "s1" || restore.Status.Snapshot != snapshot || !slices.Contains(w.instructions("s1").Instructions[0].Command, "FILE="+snapshot) {
		t.Errorf("%+v, %+v", restore.Status, w.instructions("s1").Instructions)
	}
	for _, step := range []struct {
		last, reason, message string
		phase                 provisionv1.EtcdRestorePhase
	}{
		{"stop", provisionv1.ReasonStopping, "host s1 to stop", provisionv1.RestoreStopping},
		{"restore", provisionv1.ReasonRestoring, "host s1, which replaces its data", provisionv1.RestoreRestoring},
		{"password", provisionv1.ReasonJoining, "host s1, which is started again", provisionv1.RestoreJoining},
		{"nodes", provisionv1.ReasonJoining, "host s1, which removes nodes", provisionv1.RestoreJoining},
	} {
		w.report("s1", v1.HostActive, v1.ReasonActive, "")
		w.reconcile(1)
		if got := w.last("s1"); got != step.last {
			t.Errorf("s1 is told %s, want %s", got, step.last)
		}
		w.phase("back", step.phase, step.reason, step.message)
	}
	w.report("s1", v1.HostActive, v1.ReasonActive, "")
	w.reconcile(1)
	w.phase("back", provisionv1.RestoreSucceeded, provisionv1.ReasonSucceeded, "host s1 has restored the snapshot, and all servers are up")
	w.report("s1", v1.HostActive, v1.ReasonActive, "")
	want(t, w.reconcile(2), "1/1", provisionv1.ReasonInstalled, "1 hosts have")
	before := get(w, "back", restore).ResourceVersion
	if w.reconcile(3); get(w, "back", restore).ResourceVersion != before {
		t.Error("its status is written again")
	}
}

func TestFailedRestoreNamesTheHostAndTheReason(t *testing.T) {
	t.Parallel()
	w := restoring(t)
	w.wanted("back", ofSnapshot)
	w.reconcile(1)
	w.report("s1", v1.HostInstalling, v1.ReasonInstructionFailed, "")
	host := get(w, "s1", &v1.Host{})
	host.Status.Progress.Output = "3 files have the name"
	if err := w.Client.Status().Update(t.Context(), host); err != nil {
		t.Fatal(err)
	}
	w.reconcile(1)
	w.phase("back", provisionv1.RestoreFailed, provisionv1.ReasonFailed, "host s1: it is InstructionFailed; its last lines: 3 files have the name")
	w.wanted("again", func(s *provisionv1.EtcdRestoreSpec) { s.File, s.Host = "scheduled-1", "s1" })
	w.reconcile(1)
	w.phase("again", provisionv1.RestorePending, provisionv1.ReasonWaiting, "host s1, which looks for the file")
}

func TestImpossibleRestoresAreReportedWithAReason(t *testing.T) {
	t.Parallel()
	w := restoring(t)
	for name, tt := range map[string]struct {
		change  func(*provisionv1.EtcdRestoreSpec)
		message string
	}{
		"no-snapshot": {func(s *provisionv1.EtcdRestoreSpec) { s.SnapshotName = "none" }, "there is no EtcdSnapshot none of this installation"},
		"no-store":    {func(s *provisionv1.EtcdRestoreSpec) { s.File = "f" }, "name the host whose disk has the file"},
	} {
		w.wanted(name, tt.change)
		w.reconcile(1)
		w.phase(name, provisionv1.RestorePending, provisionv1.ReasonSourceInvalid, tt.message)
	}
	w.wanted("other-host", func(s *provisionv1.EtcdRestoreSpec) { s.File, s.Host = "f", "w9" })
	w.reconcile(1)
	w.phase("other-host", provisionv1.RestorePending, provisionv1.ReasonWaiting, "Host w9 to be a server with etcd")
	w.wanted("queued", ofSnapshot)
	w.reconcile(1)
	restore := w.phase("queued", provisionv1.RestorePending, provisionv1.ReasonWaiting, "waits for EtcdRestore other-host")
	restore.Spec.Cancel = true
	if err := w.Client.Update(t.Context(), restore); err != nil {
		t.Fatal(err)
	}
	if err := w.Client.Delete(t.Context(), get(w, "other-host", &provisionv1.EtcdRestore{})); err != nil {
		t.Fatal(err)
	}
	w.reconcile(2)
	w.phase("queued", provisionv1.RestoreCanceled, provisionv1.ReasonCanceled, "no data was replaced")
	restore = get(w, "queued", restore)
	for field, change := range map[string]func(*provisionv1.EtcdRestoreSpec){
		"cancel cannot be set back to false":       func(s *provisionv1.EtcdRestoreSpec) { s.Cancel = false },
		"spec cannot be changed":                   func(s *provisionv1.EtcdRestoreSpec) { s.SnapshotName = "other" },
		"set exactly one of snapshotName and file": func(s *provisionv1.EtcdRestoreSpec) { s.File = "f" },
	} {
		changed := restore.DeepCopy()
		change(&changed.Spec)
		if err := w.Client.Update(t.Context(), changed); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestRestoreBringsTheSnapshotsConfiguration(t *testing.T) {
	t.Parallel()
	w := restoring(t)
	i := w.reconcile(1)
	i.Spec.Version, i.Spec.CertificateRotation, i.Spec.Etcd.Schedule = "v1.36.0+k3s1", 3, "0 1 * * *"
	i.Spec.Pools = append(i.Spec.Pools, provisionv1.HostPool{Name: "more", Roles: []provisionv1.HostRole{provisionv1.RoleWorker}, Selector: metav1.LabelSelector{MatchLabels: map[string]string{"for": "more"}}})
	if err := w.Client.Update(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	w.reconcile(2)
	w.report("s1", v1.HostActive, v1.ReasonActive, "")
	w.reconcile(2)
	w.wanted("back", func(s *provisionv1.EtcdRestoreSpec) {
		s.SnapshotName, s.Configuration = "before", provisionv1.ConfigurationRestore
	})
	w.reconcile(1)
	for range 2 {
		w.report("s1", v1.HostActive, v1.ReasonActive, "")
		w.reconcile(1)
	}
	i = w.reconcile(1)
	if i.Spec.Version != "v1.35.1+k3s1" || i.Spec.Etcd.Schedule != "" || i.Spec.CertificateRotation != 3 || len(i.Spec.Pools) != 3 {
		t.Errorf("the spec is %+v", i.Spec)
	}
	if got := w.instructions("s1"); w.last("s1") != "restore" || !slices.ContainsFunc(got.Instructions, func(i protocol.HostInstruction) bool {
		return slices.Contains(i.Command, "INSTALL_K3S_VERSION=v1.35.1+k3s1")
	}) {
		t.Errorf("s1 is told %+v, want it to install the version of the snapshot first", got.Instructions)
	}
	want(t, i, "0/1", provisionv1.ReasonRestoring, "host s1, which replaces its data")
	w.report("s1", v1.HostActive, v1.ReasonActive, "")
	w.reconcile(1)
	w.phase("back", provisionv1.RestoreJoining, provisionv1.ReasonJoining, "")
}

func TestObjectsOfKubeadmClustersWakeNoInstallation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	for want, ref := range []provisionv1.EtcdClusterRef{{Kind: provisionv1.EtcdOfDroverCluster, Name: "prod"}, ofProd} {
		for _, object := range []client.Object{
			&provisionv1.EtcdSnapshot{Spec: provisionv1.EtcdSnapshotSpec{ClusterRef: ref}}, &provisionv1.EtcdRestore{Spec: provisionv1.EtcdRestoreSpec{ClusterRef: ref}},
		} {
			if w.r.Handler().Create(t.Context(), event.CreateEvent{Object: object}, queue); queue.Len() != want {
				t.Errorf("%T of %s %s: %d are woken, want %d", object, ref.Kind, ref.Name, queue.Len(), want)
			}
		}
	}
}

func TestSnapshotEndsOnlyOnceItsOutcomeIsStored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.host("s1", "server", "10.1.0.1")
	w.Apply(t, &provisionv1.EtcdSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: "before"}, Spec: provisionv1.EtcdSnapshotSpec{ClusterRef: ofProd}})
	phase := func(want provisionv1.EtcdSnapshotPhase, message string) {
		t.Helper()
		snap := get(w, "before", &provisionv1.EtcdSnapshot{})
		ready := meta.FindStatusCondition(snap.Status.Conditions, provisionv1.ConditionReady)
		if snap.Status.Phase != want || ready == nil || !strings.Contains(ready.Message, message) {
			t.Fatalf("the snapshot is %s, %+v, want %s, %q", snap.Status.Phase, ready, want, message)
		}
	}
	w.reconcile(4)
	w.report("s1", v1.HostActive, v1.ReasonActive, "")
	w.reconcile(2)
	phase(provisionv1.SnapshotRunning, "host s1 is making the snapshot")
	w.report("s1", v1.HostActive, v1.ReasonActive, "")
	w.r.Client = interceptor.NewClient(w.Client, interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			if o.GetName() == w.name.Name+provisionv1.SecretSuffix {
				return errors.New("the Secret is not stored")
			}
			return c.Update(ctx, o, options...)
		},
	})
	if _, err := w.r.Reconcile(t.Context(), reconcile.Request{NamespacedName: w.name}); err == nil {
		t.Error("the outcome was not stored without an error, want the error")
	}
	phase(provisionv1.SnapshotRunning, "host s1 is making the snapshot")
	w.r.Client = w.Client
	w.reconcile(1)
	phase(provisionv1.SnapshotSucceeded, "host s1 has made the snapshot")
	if snap := get(w, "before", &provisionv1.EtcdSnapshot{}); snap.Status.Configuration == nil || !strings.Contains(string(snap.Status.Configuration.Raw), "v1.35.1+k3s1") {
		t.Errorf("its configuration is %+v, want the spec of the installation", snap.Status.Configuration)
	}
}

// TestCacheWithoutTheOutcomeChangesNoStatus reads objects from a cache that does not contain their last status.
func TestCacheWithoutTheOutcomeChangesNoStatus(t *testing.T) {
	t.Parallel()
	w := restoring(t)
	w.wanted("back", func(s *provisionv1.EtcdRestoreSpec) { s.SnapshotName, s.Cancel = "before", true })
	w.reconcile(1)
	w.phase("back", provisionv1.RestoreCanceled, provisionv1.ReasonCanceled, "no data was replaced")
	recorder := events.NewFakeRecorder(10)
	w.r.Recorder = recorder
	w.r.Client = interceptor.NewClient(w.Client, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			err := c.List(ctx, list, options...)
			switch of := list.(type) {
			case *provisionv1.EtcdSnapshotList:
				of.Items[0].Status = provisionv1.EtcdSnapshotStatus{Phase: provisionv1.SnapshotRunning}
			case *provisionv1.EtcdRestoreList:
				of.Items[0].Status = provisionv1.EtcdRestoreStatus{Phase: provisionv1.RestorePending}
			}
			return err
		},
		SubResourcePatch: func(
			ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch,
			options ...client.SubResourcePatchOption,
		) error {
			if o.GetName() != w.name.Name {
				t.Errorf("the status of %T %s is written, want the outcome to stay", o, o.GetName())
			}
			return c.SubResource(sub).Patch(ctx, o, p, options...)
		},
	})
	w.reconcile(1)
	if n := len(recorder.Events); n > 0 {
		t.Errorf("got %d events, the first %q, want none", n, <-recorder.Events)
	}
}

// TestFinalizerOfAnEndedRestoreIsRemovedDespiteAStaleCache reads a restore whose version in the cache is outdated.
func TestFinalizerOfAnEndedRestoreIsRemovedDespiteAStaleCache(t *testing.T) {
	t.Parallel()
	w := restoring(t)
	restore := w.wanted("back", func(s *provisionv1.EtcdRestoreSpec) { s.SnapshotName, s.Cancel = "before", true })
	w.reconcile(1)
	restore = get(w, "back", restore)
	stale := restore.DeepCopy()
	stale.Finalizers = []string{provisionv1.FinalizerRestore} // the cache contains only some finalizers
	restore.Finalizers = []string{"example.com/other", provisionv1.FinalizerRestore}
	if err := w.Client.Update(t.Context(), restore); err != nil {
		t.Fatal(err)
	}
	w.r.Client = interceptor.NewClient(w.Client, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if of, is := list.(*provisionv1.EtcdRestoreList); is {
				of.Items = []provisionv1.EtcdRestore{*stale}
				return nil
			}
			return c.List(ctx, list, options...)
		},
	})
	w.reconcile(1)
	if got := get(w, "back", restore).Finalizers; !slices.Equal(got, []string{"example.com/other"}) {
		t.Errorf("the restore has the finalizers %q, want only example.com/other", got)
	}
}

// TestObjectsOfANewInstallationAreNotRefused reconciles an installation that the cache does not contain yet.
func TestObjectsOfANewInstallationAreNotRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.wanted("back", func(s *provisionv1.EtcdRestoreSpec) { s.File, s.Host = "f", "s1" })
	w.r.Client = interceptor.NewClient(w.Client, interceptor.Funcs{
		Get: func(
			ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption,
		) error {
			if _, is := o.(*provisionv1.ClusterInstallation); is {
				resource := provisionv1.GroupVersion.WithResource("clusterinstallations").GroupResource()
				return apierrors.NewNotFound(resource, key.Name)
			}
			return c.Get(ctx, key, o, options...)
		},
	})
	w.reconcile(1)
	got := get(w, "back", &provisionv1.EtcdRestore{}).Status
	ready := meta.FindStatusCondition(got.Conditions, provisionv1.ConditionReady)
	if ready == nil || ready.Reason != provisionv1.ReasonPending {
		t.Errorf("the restore has the status %+v, want the reason Pending until its installation is reconciled", got)
	}
}

func TestObjectsOfAMissingInstallationWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.name.Name = "other"
	restore := &provisionv1.EtcdRestore{ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: "back"}, Spec: provisionv1.EtcdRestoreSpec{
		ClusterRef: provisionv1.EtcdClusterRef{Kind: provisionv1.EtcdOfInstallation, Name: "other"}, File: "f", Host: "s1"}}
	if err := w.Client.Create(t.Context(), restore); err != nil {
		t.Fatal(err)
	}
	if _, err := w.r.Reconcile(t.Context(), reconcile.Request{NamespacedName: w.name}); err != nil {
		t.Fatal(err)
	}
	w.phase("back", provisionv1.RestorePending, provisionv1.ReasonWaiting, "waits for its ClusterInstallation: there is none of the name other")
	restore.Name, restore.ResourceVersion, restore.Spec.ClusterRef.Kind = "wrong", "", "Cluster"
	if err := w.Client.Create(t.Context(), restore); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `supported values: "ClusterInstallation", "DroverCluster"`) {
		t.Errorf("a clusterRef of the kind Cluster: %v, want an error with the kinds that can be", err)
	}
}

func TestLateCancelOfAnEndedRestoreIsObserved(t *testing.T) {
	t.Parallel()
	w := restoring(t)
	restore := w.wanted("back", func(s *provisionv1.EtcdRestoreSpec) { s.SnapshotName, s.Cancel = "before", true })
	w.reconcile(1)
	w.phase("back", provisionv1.RestoreCanceled, provisionv1.ReasonCanceled, "no data was replaced")
	restore = get(w, "back", restore)
	restore.Status.Phase = provisionv1.RestoreSucceeded
	restore.Status.ObservedGeneration = 0
	if err := w.Client.Status().Update(t.Context(), restore); err != nil {
		t.Fatal(err)
	}
	w.reconcile(1)
	if restore = get(w, "back", restore); restore.Status.ObservedGeneration != restore.Generation || !meta.IsStatusConditionTrue(restore.Status.Conditions, provisionv1.ConditionReady) {
		t.Errorf("%+v, want the generation %d to be observed, and Ready as its phase says", restore.Status, restore.Generation)
	}
}
