// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/etcd"
	"github.com/drover-dev/drover/internal/provision/progress"
	"github.com/drover-dev/drover/internal/status"
)

var ofProd = provisionv1.EtcdClusterRef{Kind: provisionv1.EtcdOfInstallation, Name: "prod"}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name)}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	refuses := errors.New("the status is refused")
	for name, tt := range map[string]struct {
		phase   provisionv1.EtcdRestorePhase
		fails   error
		want    provisionv1.EtcdRestorePhase
		keeps   bool // the finalizer
		events  int
		unknown bool // the progress has no such restore
	}{
		"an outcome removes the finalizer":                   {want: provisionv1.RestoreSucceeded, events: 1},
		"an outcome that is not written keeps the finalizer": {fails: refuses, keeps: true},
		"an outcome never changes, and its finalizer is removed": {
			phase: provisionv1.RestoreFailed, want: provisionv1.RestoreFailed,
		},
		"the status of a restore without progress is left unchanged": {unknown: true, keeps: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			restore := &provisionv1.EtcdRestore{ObjectMeta: meta("back"), Spec: provisionv1.EtcdRestoreSpec{ClusterRef: ofProd}}
			restore.Finalizers, restore.Status.Phase = []string{provisionv1.FinalizerRestore}, tt.phase
			hub := newHub(t, tt.fails, restore)
			how := progress.NewAll()
			if !tt.unknown {
				how.Restores["back"] = progress.Restore{
					Phase: provisionv1.RestoreSucceeded, Reason: provisionv1.ReasonSucceeded,
				}
			}
			recorder := events.NewFakeRecorder(10)
			if err := write(t, hub, recorder, how); !errors.Is(err, tt.fails) {
				t.Errorf("got the error %v, want %v", err, tt.fails)
			}
			if err := hub.Get(t.Context(), client.ObjectKeyFromObject(restore), restore); err != nil {
				t.Fatal(err)
			}
			if restore.Status.Phase != tt.want || (len(restore.Finalizers) > 0) != tt.keeps ||
				len(recorder.Events) != tt.events {
				t.Errorf("got the phase %q, the finalizers %v and %d events, want %q, a finalizer: %t, and %d",
					restore.Status.Phase, restore.Finalizers, len(recorder.Events), tt.want, tt.keeps, tt.events)
			}
		})
	}
}

func TestOnlySnapshotsInProgressAreWritten(t *testing.T) {
	t.Parallel()
	failed := &provisionv1.EtcdSnapshot{ObjectMeta: meta("failed"), Spec: provisionv1.EtcdSnapshotSpec{ClusterRef: ofProd}}
	failed.Status.Phase = provisionv1.SnapshotFailed
	other := &provisionv1.EtcdSnapshot{ObjectMeta: meta("other")}
	pending := &provisionv1.EtcdSnapshot{ObjectMeta: meta("pending"), Spec: failed.Spec}
	hub := newHub(t, nil, failed, other, pending)
	how := progress.NewAll()
	for _, name := range []types.UID{"failed", "other", "pending"} {
		how.Snapshots[name] = progress.Snapshot{Phase: provisionv1.SnapshotSucceeded}
	}
	if err := write(t, hub, events.NewFakeRecorder(10), how); err != nil {
		t.Fatal(err)
	}
	for o, want := range map[*provisionv1.EtcdSnapshot]provisionv1.EtcdSnapshotPhase{
		failed: provisionv1.SnapshotFailed, other: "", pending: provisionv1.SnapshotSucceeded,
	} {
		if err := hub.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil || o.Status.Phase != want {
			t.Errorf("snapshot %s: got the phase %q (%v), want %q", o.Name, o.Status.Phase, err, want)
		}
	}
}

// newHub returns a client for a hub with the objects. If fails is set, the hub refuses to write statuses.
func newHub(t *testing.T, fails error, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := provisionv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(objects...).
		WithInterceptorFuncs(interceptor.Funcs{
			SubResourcePatch: func(
				ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch,
				options ...client.SubResourcePatchOption,
			) error {
				if fails != nil {
					return fails
				}
				return c.SubResource(sub).Patch(ctx, o, p, options...)
			},
		}).Build()
}

// write reads the objects of the cluster prod, and writes the progress to them.
func write(t *testing.T, hub client.Client, recorder events.EventRecorder, how progress.All) error {
	t.Helper()
	all, err := etcd.Read(t.Context(), hub, "team", ofProd)
	if err != nil {
		t.Fatal(err)
	}
	return etcd.Write(t.Context(), status.Output{Client: hub, Recorder: recorder}, all, how)
}
