// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/provision/etcd"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var (
	ofWeb     = provisionv1.EtcdClusterRef{Kind: provisionv1.EtcdOfDroverCluster, Name: "web-infra"}
	ofAnother = provisionv1.EtcdClusterRef{Kind: provisionv1.EtcdOfDroverCluster, Name: "another"}
)

// world is a workspace with a cluster with three control plane machines, on the hosts h1 to h3.
type world struct {
	*testkit.Env
	t         *testing.T
	namespace string
	owner     *unstructured.Unstructured
	plane     *unstructured.Unstructured
	now       time.Time
	events    []string
	again     time.Duration
}

func newWorld(t *testing.T) *world {
	t.Helper()
	env := testkit.Shared(t)
	env.ClusterAPI(t)
	env.Provision(t)
	w := &world{Env: env, t: t, namespace: env.Workspace(t), now: time.Date(2026, 3, 1, 10, 30, 0, 0, time.UTC)}
	w.owner = w.ClusterAPIObject(t, "Cluster", w.namespace, "web", nil, map[string]any{"spec": map[string]any{
		"controlPlaneRef":   map[string]any{"kind": "KubeadmControlPlane", "name": "web"},
		"infrastructureRef": testkit.InfrastructureRef("DroverCluster", "web-infra"),
	}})
	w.plane = w.ClusterAPIObject(t, "KubeadmControlPlane", w.namespace, "web", nil, map[string]any{})
	w.create(&infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "web-infra", OwnerReferences: testkit.OwnedBy(w.owner)}})
	yes := true
	for n, host := range []string{"h1", "h2", "h3"} {
		h := &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: host}}
		w.create(h)
		w.connect(host, true)
		m := &infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "m-" + host, Labels: map[string]string{clusterapi.LabelCluster: "web", clusterapi.LabelControlPlane: ""}}}
		m.Spec.Tasks = []infrav1.MachineTask{{ID: "another", Action: infrav1.TaskUpdate, Update: &infrav1.UpdateTask{Version: "v1.36.3"}}}
		w.create(m)
		m.Status.HostName, m.Status.Initialization.Provisioned = host, &yes
		m.Status.Addresses = []infrav1.MachineAddress{{Type: "Hostname", Address: host}, {Type: "InternalIP", Address: "10.0.0." + string(rune('1'+n))}, {Type: "InternalIP", Address: "fd00::1"}}
		w.status(m)
	}
	return w
}

func (w *world) create(object client.Object) {
	w.t.Helper()
	if err := w.Client.Create(w.t.Context(), object); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) status(object client.Object) {
	w.t.Helper()
	if err := w.Client.Status().Update(w.t.Context(), object); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) get(name string, object client.Object) {
	w.t.Helper()
	if err := w.Client.Get(w.t.Context(), types.NamespacedName{Namespace: w.namespace, Name: name}, object); err != nil {
		w.t.Fatal(err)
	}
}

// connect sets whether the agent of a Host is connected.
func (w *world) connect(name string, is bool) {
	w.t.Helper()
	host := &v1.Host{}
	w.get(name, host)
	condition := metav1.Condition{Type: v1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1.ReasonActive}
	if host.Status.LastSeen = nil; !is {
		host.Status.LastSeen = &metav1.Time{Time: w.now}
		condition.Status, condition.Reason = metav1.ConditionFalse, v1.ReasonTunnelLost
	}
	host.Status.State = v1.HostActive
	meta.SetStatusCondition(&host.Status.Conditions, condition)
	w.status(host)
}

// reconcile reconciles a number of times, each time on a hub that has just started.
func (w *world) reconcile(times int) {
	w.t.Helper()
	for range times {
		if err := w.reconcileBy(w.Client); err != nil {
			w.t.Fatal(err)
		}
	}
}

// reconcileBy reconciles once, with a hub that writes with this client.
func (w *world) reconcileBy(writer client.Client) error {
	w.t.Helper()
	recorder := events.NewFakeRecorder(100)
	r := &etcd.Reconciler{Client: writer, Live: w.Client, Recorder: recorder, Now: func() time.Time { return w.now }}
	result, err := r.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: w.namespace, Name: "web-infra"}})
	w.again = result.RequeueAfter
	for len(recorder.Events) > 0 {
		w.events = append(w.events, <-recorder.Events)
	}
	return err
}

// given checks the tasks of a machine, in addition to another controller's task, and ends the unfinished ones.
func (w *world) given(host string, state infrav1.TaskState, want ...infrav1.TaskAction) *infrav1.DroverMachine {
	w.t.Helper()
	m := &infrav1.DroverMachine{}
	w.get("m-"+host, m)
	var got []infrav1.TaskAction
	others := 0
	m.Status.Tasks = nil
	for _, task := range m.Spec.Tasks {
		if task.Etcd == nil {
			others++
			continue
		}
		got = append(got, task.Action)
		m.Status.Tasks = append(m.Status.Tasks, infrav1.MachineTaskStatus{ID: task.ID, State: state, Message: "no space"})
	}
	if !slices.Equal(got, want) || others != 1 {
		w.t.Fatalf("%s has the tasks %v and %d of others, want %v and 1", host, got, others, want)
	}
	w.status(m)
	return m
}

// paused checks whether the Cluster is paused, and makes its control plane see it.
func (w *world) paused(want bool) {
	w.t.Helper()
	w.get("web", w.owner)
	if got, _, _ := unstructured.NestedBool(w.owner.Object, "spec", "paused"); got != want {
		w.t.Fatalf("the Cluster is paused: %t, want %t", got, want)
	}
	w.get("web", w.plane)
	state := map[bool]string{true: "True", false: "False"}[want]
	w.plane.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Paused", "status": state, "reason": state, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}}}
	if err := w.Client.Update(w.t.Context(), w.plane); err != nil {
		w.t.Fatal(err)
	}
}

// restore checks the phase, the reason and a part of the message of a restore.
func (w *world) restore(name string, phase provisionv1.EtcdRestorePhase, reason, message string) *provisionv1.EtcdRestore {
	w.t.Helper()
	o := &provisionv1.EtcdRestore{}
	w.get(name, o)
	ready := meta.FindStatusCondition(o.Status.Conditions, provisionv1.ConditionReady)
	if o.Status.Phase != phase || ready == nil || ready.Reason != reason || !strings.Contains(ready.Message, message) || ready.ObservedGeneration != o.Generation {
		w.t.Fatalf("%s is %s, %+v, want %s, %s, %q", name, o.Status.Phase, ready, phase, reason, message)
	}
	return o
}

func (w *world) wantRestore(name string, spec provisionv1.EtcdRestoreSpec) *provisionv1.EtcdRestore {
	w.t.Helper()
	spec.ClusterRef = ofWeb
	o := &provisionv1.EtcdRestore{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}, Spec: spec}
	w.create(o)
	return o
}

// snapshotted takes a snapshot on h1.
func (w *world) snapshotted() *provisionv1.EtcdSnapshot {
	w.t.Helper()
	o := &provisionv1.EtcdSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "before"}, Spec: provisionv1.EtcdSnapshotSpec{ClusterRef: ofWeb}}
	w.create(o)
	w.reconcile(2)
	w.get("before", o)
	if o.Status.Phase != provisionv1.SnapshotRunning || o.Status.Host != "h1" || o.Status.Snapshot != "before-"+string(o.UID)[:8]+".db" {
		w.t.Fatalf("%+v, want h1 to make it", o.Status)
	}
	m := w.given("h1", infrav1.TaskSucceeded, infrav1.TaskEtcdSnapshot)
	if task := m.Spec.Tasks[1]; task.ID != "snapshot-"+string(o.UID) || task.Etcd.File != o.Status.Snapshot {
		w.t.Errorf("%+v", task)
	}
	w.reconcile(1)
	if w.get("before", o); o.Status.Phase != provisionv1.SnapshotSucceeded || !meta.IsStatusConditionTrue(o.Status.Conditions, provisionv1.ConditionReady) {
		w.t.Fatalf("%+v, want it to have succeeded", o.Status)
	}
	w.given("h1", infrav1.TaskSucceeded, infrav1.TaskEtcdSnapshot) // until the status has the outcome
	w.reconcile(1)
	w.given("h1", "")
	return o
}

func TestRestoreSurvivesARestartOfTheHubAtEachStep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	snapshot := w.snapshotted()
	w.wantRestore("r", provisionv1.EtcdRestoreSpec{SnapshotName: "before"})
	w.connect("h3", false)
	w.reconcile(2)
	if o := w.restore("r", provisionv1.RestorePending, provisionv1.ReasonHostAway, "h3"); !meta.IsStatusConditionTrue(o.Status.Conditions, provisionv1.ConditionStalled) {
		t.Error("want it to be Stalled while a person must act")
	}
	w.paused(false)
	w.connect("h3", true)
	w.reconcile(2)
	w.restore("r", provisionv1.RestorePending, provisionv1.ReasonWaiting, "waits for Cluster API")
	w.given("h1", "")
	w.paused(true)
	w.reconcile(2)
	if m := w.given("h1", infrav1.TaskSucceeded, infrav1.TaskEtcdPrepare); m.Spec.Tasks[1].Etcd.File != snapshot.Status.Snapshot {
		t.Errorf("%+v", m.Spec.Tasks[1].Etcd)
	}
	w.reconcile(2)
	w.restore("r", provisionv1.RestoreStopping, provisionv1.ReasonStopping, "h1, h2, h3")
	for _, host := range []string{"h2", "h3"} {
		w.given(host, infrav1.TaskSucceeded, infrav1.TaskEtcdStop)
	}
	w.reconcile(1)
	w.given("h1", infrav1.TaskSucceeded, infrav1.TaskEtcdPrepare, infrav1.TaskEtcdStop)
	w.reconcile(2)
	w.restore("r", provisionv1.RestoreRestoring, provisionv1.ReasonRestoring, "h1")
	w.given("h1", infrav1.TaskSucceeded, infrav1.TaskEtcdPrepare, infrav1.TaskEtcdStop, infrav1.TaskEtcdReplace)
	w.given("h2", infrav1.TaskSucceeded, infrav1.TaskEtcdStop)
	w.reconcile(2)
	m := w.given("h2", infrav1.TaskSucceeded, infrav1.TaskEtcdStop, infrav1.TaskEtcdJoin)
	if got := m.Spec.Tasks[2].Etcd.Endpoints; !slices.Equal(got, []string{"https://10.0.0.1:2379", "https://[fd00::1]:2379"}) {
		t.Errorf("it joins %q", got)
	}
	w.restore("r", provisionv1.RestoreJoining, provisionv1.ReasonJoining, "h2")
	w.given("h3", infrav1.TaskSucceeded, infrav1.TaskEtcdStop)
	w.reconcile(1)
	w.given("h3", infrav1.TaskSucceeded, infrav1.TaskEtcdStop, infrav1.TaskEtcdJoin)
	w.reconcile(1)
	if o := w.restore("r", provisionv1.RestoreSucceeded, provisionv1.ReasonSucceeded, "on all control planes"); len(o.Finalizers) != 0 || o.Status.Host != "h1" {
		t.Errorf("%+v", o)
	}
	w.paused(false)
	w.reconcile(2)
	for _, host := range []string{"h1", "h2", "h3"} {
		w.given(host, "")
	}
	w.restore("r", provisionv1.RestoreSucceeded, provisionv1.ReasonSucceeded, "on all control planes")
}

func TestDeletedRestoreIsCanceled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.wantRestore("r", provisionv1.EtcdRestoreSpec{File: "f.db", Host: "h2"})
	w.reconcile(2)
	w.paused(true)
	w.reconcile(2)
	w.given("h2", infrav1.TaskSucceeded, infrav1.TaskEtcdPrepare)
	w.reconcile(1)
	w.given("h3", infrav1.TaskSucceeded, infrav1.TaskEtcdStop)
	if err := w.Client.Delete(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	w.reconcile(1)
	w.paused(true)
	w.given("h1", infrav1.TaskSucceeded, infrav1.TaskEtcdStop, infrav1.TaskEtcdResume)
	w.given("h2", infrav1.TaskSucceeded, infrav1.TaskEtcdPrepare, infrav1.TaskEtcdStop, infrav1.TaskEtcdResume)
	w.given("h3", infrav1.TaskSucceeded, infrav1.TaskEtcdStop, infrav1.TaskEtcdResume)
	w.reconcile(1)
	if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(o), o); !apierrors.IsNotFound(err) {
		t.Errorf("%v, %+v: want it to be gone when all was started again", err, o.Status)
	}
	w.paused(false)
	w.reconcile(1)
	w.given("h2", "")
}

func TestClusterPausedByAPersonStaysPaused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := w.Client.Patch(t.Context(), w.owner.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec": {"paused": true}}`))); err != nil {
		t.Fatal(err)
	}
	w.paused(true)
	o := w.wantRestore("r", provisionv1.EtcdRestoreSpec{File: "f.db", Host: "h2"})
	w.reconcile(2)
	w.get("r", o)
	o.Spec.Cancel = true
	if err := w.Client.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	w.reconcile(1)
	w.given("h2", infrav1.TaskSucceeded, infrav1.TaskEtcdPrepare, infrav1.TaskEtcdResume)
	w.reconcile(1)
	w.restore("r", provisionv1.RestoreCanceled, provisionv1.ReasonCanceled, "no data was replaced")
	w.paused(true)
}

func TestADroverClusterOfAnotherGivesTheMachinesOfAForeignClusterNoTask(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(&infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: w.namespace, Name: "mine", OwnerReferences: testkit.OwnedBy(w.owner),
	}})
	snapshot := &provisionv1.EtcdSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "theft"}}
	snapshot.Spec.ClusterRef = ofWeb
	snapshot.Spec.ClusterRef.Name = "mine"
	w.create(snapshot)
	recorder := events.NewFakeRecorder(100)
	r := &etcd.Reconciler{Client: w.Client, Live: w.Client, Recorder: recorder, Now: func() time.Time { return w.now }}
	for range 2 {
		request := ctrl.Request{NamespacedName: types.NamespacedName{Namespace: w.namespace, Name: "mine"}}
		if _, err := r.Reconcile(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	for _, host := range []string{"h1", "h2", "h3"} {
		w.given(host, infrav1.TaskRunning)
	}
	w.get("theft", snapshot)
	ready := meta.FindStatusCondition(snapshot.Status.Conditions, provisionv1.ConditionReady)
	if ready == nil || !strings.Contains(ready.Message, "does not name the DroverCluster mine") {
		t.Errorf("the snapshot says %+v, want it to say that the Cluster names another DroverCluster", ready)
	}
}

func TestRestoreWithAnInvalidSourceFailsWithTheReason(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(&provisionv1.EtcdSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "other"}, Spec: provisionv1.EtcdSnapshotSpec{ClusterRef: ofAnother}})
	for name, c := range map[string]struct {
		spec provisionv1.EtcdRestoreSpec
		want string
	}{
		"a": {provisionv1.EtcdRestoreSpec{SnapshotName: "none"}, "there is no EtcdSnapshot none"},
		"b": {provisionv1.EtcdRestoreSpec{SnapshotName: "other"}, "not one of the DroverCluster web-infra"},
		"c": {provisionv1.EtcdRestoreSpec{File: "f.db", Host: "h9"}, "h9 is not a control plane"},
		"e": {provisionv1.EtcdRestoreSpec{File: "f.db"}, "spec.etcd.s3 of the DroverCluster, which has none"},
	} {
		w.wantRestore(name, c.spec)
		w.reconcile(3)
		w.restore(name, provisionv1.RestoreFailed, provisionv1.ReasonSourceInvalid, c.want)
	}
	w.paused(false)
	if err := w.Client.Patch(t.Context(), w.owner.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec": {"controlPlaneRef": {"kind": "RKE2ControlPlane"}}}`))); err != nil {
		t.Fatal(err)
	}
	w.wantRestore("d", provisionv1.EtcdRestoreSpec{File: "f.db", Host: "h1"})
	w.reconcile(2)
	w.restore("d", provisionv1.RestoreFailed, provisionv1.ReasonSourceInvalid, "not made by kubeadm, but by a RKE2ControlPlane")
	for name, change := range map[string]func(*provisionv1.EtcdRestoreSpec){
		"a kind that has no etcd": func(s *provisionv1.EtcdRestoreSpec) { s.ClusterRef.Kind = "Cluster" },
		"no cluster":              func(s *provisionv1.EtcdRestoreSpec) { s.ClusterRef = provisionv1.EtcdClusterRef{} },
		"its configuration, too":  func(s *provisionv1.EtcdRestoreSpec) { s.Configuration = provisionv1.ConfigurationRestore },
		"a host of no file":       func(s *provisionv1.EtcdRestoreSpec) { s.Host = "h1" },
	} {
		o := &provisionv1.EtcdRestore{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "x"}, Spec: provisionv1.EtcdRestoreSpec{ClusterRef: ofWeb, SnapshotName: "before"}}
		change(&o.Spec)
		if err := w.Client.Create(t.Context(), o); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v, want it to be invalid", name, err)
		}
	}
}
