// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
)

// follows gives the cluster a schedule.
func (w *world) follows(etcd infrav1.Etcd) {
	w.t.Helper()
	cluster := &infrav1.DroverCluster{}
	w.get("web-infra", cluster)
	cluster.Spec.Etcd = etcd
	if err := w.Client.Update(w.t.Context(), cluster); err != nil {
		w.t.Fatal(err)
	}
}

// followsOnOneHost gives the cluster a schedule that keeps one snapshot, which only h1 can take. The first snapshot
// succeeds.
func (w *world) followsOnOneHost() {
	w.t.Helper()
	w.connect("h2", false)
	w.connect("h3", false)
	w.follows(infrav1.Etcd{Schedule: "0 * * * *", Retention: 1})
	w.now = w.now.Add(30 * time.Minute)
	w.reconcile(1)
	w.succeed(infrav1.TaskSucceeded)
}

// scheduled returns the snapshots that the schedule has created, with the oldest first.
func (w *world) scheduled() []provisionv1.EtcdSnapshot {
	w.t.Helper()
	list := &provisionv1.EtcdSnapshotList{}
	if err := w.Client.List(w.t.Context(), list, client.InNamespace(w.namespace), client.MatchingLabels{provisionv1.LabelScheduled: "true"}); err != nil {
		w.t.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b provisionv1.EtcdSnapshot) int { return strings.Compare(a.Name, b.Name) })
	return list.Items
}

// times checks that the scheduled snapshots are for these times of the day.
func (w *world) times(want string) {
	w.t.Helper()
	var got []string
	for _, o := range w.scheduled() {
		got = append(got, strings.TrimSuffix(strings.TrimPrefix(o.Annotations[provisionv1.AnnotationScheduledFor], "2026-03-01T"), ":00Z"))
	}
	if strings.Join(got, " ") != want {
		w.t.Fatalf("the schedule has made the snapshots of %q, want %q", got, want)
	}
}

// succeed makes the host with the task carry it out, and returns the files that it was told to remove.
func (w *world) succeed(state infrav1.TaskState) []string {
	w.t.Helper()
	w.reconcile(1)
	host := w.busy()
	m := w.given(host, state, infrav1.TaskEtcdSnapshot)
	w.reconcile(2)
	w.given(host, "")
	return m.Spec.Tasks[1].Etcd.Remove
}

// busy returns the host that was given a task.
func (w *world) busy() string {
	w.t.Helper()
	for _, host := range []string{"h1", "h2", "h3"} {
		m := &infrav1.DroverMachine{}
		if w.get("m-"+host, m); len(m.Spec.Tasks) > 1 {
			return host
		}
	}
	w.t.Fatal("no host was given a task")
	return ""
}

func TestScheduleMakesOneSnapshotForAllMissedTimes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.reconcile(1)
	w.follows(infrav1.Etcd{Schedule: "0 * * * *"})
	w.reconcile(3)
	w.times("") // a schedule that was just set has missed none
	if w.again != 30*time.Minute {
		t.Errorf("it looks again after %v, want at the next time", w.again)
	}
	w.now = w.now.Add(30 * time.Minute)
	w.reconcile(3)
	w.times("11:00")
	one := w.scheduled()[0]
	owner := &infrav1.DroverCluster{}
	w.get("web-infra", owner)
	if !metav1.IsControlledBy(&one, owner) || one.Name != "web-infra-"+fmt.Sprint(w.now.Unix()/60) || len(w.events) != 1 || !strings.Contains(w.events[0], "SnapshotScheduled") {
		t.Errorf("%+v, %q", one.ObjectMeta, w.events)
	}
	w.now = w.now.Add(5 * time.Hour) // while one has not ended, no others are created
	w.reconcile(3)
	w.times("11:00")
	w.given("h1", infrav1.TaskSucceeded, infrav1.TaskEtcdSnapshot)
	w.reconcile(2)
	w.times("11:00 16:00")
	if saved := w.scheduled()[0].Status.Conditions; !meta.IsStatusConditionTrue(saved, provisionv1.ConditionSaved) {
		t.Errorf("%+v, want Saved", saved)
	}
	w.succeed(infrav1.TaskSucceeded)
	w.now = w.now.Add(time.Hour + time.Minute)
	w.wantRestore("r", provisionv1.EtcdRestoreSpec{File: "f.db", Host: "h2"})
	w.reconcile(3)
	w.times("11:00 16:00") // while a restore is in progress, none is created
	restore := &provisionv1.EtcdRestore{}
	w.get("r", restore)
	restore.Spec.Cancel = true
	if err := w.Client.Update(t.Context(), restore); err != nil {
		t.Fatal(err)
	}
	w.paused(true)
	w.reconcile(3)
	w.restore("r", provisionv1.RestoreCanceled, provisionv1.ReasonCanceled, "")
	w.reconcile(1)
	w.times("11:00 16:00 17:00")
	w.follows(infrav1.Etcd{Schedule: "often"})
	w.succeed(infrav1.TaskSucceeded) // an existing snapshot continues
	w.now = w.now.Add(10 * time.Hour)
	w.reconcile(2)
	w.times("11:00 16:00 17:00")
}

func TestScheduleContinuesWithoutALostHostOrADeletedMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.follows(infrav1.Etcd{Schedule: "0 * * * *", S3: s3()})
	w.now = w.now.Add(30 * time.Minute)
	w.reconcile(2)
	w.given("h1", infrav1.TaskSucceeded, infrav1.TaskEtcdSnapshot)
	w.reconcile(2) // it is saved, and being copied
	m := &infrav1.DroverMachine{}
	w.get("m-h1", m)
	m.Status.Tasks = []infrav1.MachineTaskStatus{{ID: m.Spec.Tasks[1].ID, State: infrav1.TaskSucceeded}}
	w.status(m)
	w.connect("h1", false)
	w.now = w.now.Add(9 * time.Minute)
	w.reconcile(2)
	if o := w.scheduled()[0]; o.Status.Phase != provisionv1.SnapshotRunning {
		t.Fatalf("%+v, want nine minutes to be waited for", o.Status)
	}
	w.now = w.now.Add(2 * time.Minute)
	w.reconcile(2)
	if o := w.scheduled()[0]; o.Status.Phase != provisionv1.SnapshotFailed || !meta.IsStatusConditionTrue(o.Status.Conditions, provisionv1.ConditionSaved) {
		t.Fatalf("%+v, want the copy to have failed, and the file to be saved", o.Status)
	}
	w.get("m-h2", m)
	m.Finalizers = []string{"example.com/stuck"}
	if err := w.Client.Update(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := w.Client.Delete(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(time.Hour)
	w.reconcile(3)
	w.times("11:00 12:00")
	w.given("h3", infrav1.TaskRunning, infrav1.TaskEtcdSnapshot)
	w.given("h2", "")
}

func TestSnapshotFailsIfItsHostWasLostWhileTheHubWasDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t) // a hub that started after the agent's last connection does not know when that was
	o := &provisionv1.EtcdSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "before"}, Spec: provisionv1.EtcdSnapshotSpec{ClusterRef: ofWeb}}
	w.create(o)
	w.reconcile(2)
	w.connect("h1", false)
	host := &v1.Host{}
	w.get("h1", host)
	host.Status.LastSeen = nil
	host.Status.Conditions[0].LastTransitionTime = metav1.Time{Time: w.now}
	w.status(host)
	w.reconcile(1)
	if w.get("before", o); o.Status.Phase != provisionv1.SnapshotRunning {
		t.Errorf("%+v, want it to be waited for", o.Status)
	}
	w.now = w.now.Add(11 * time.Minute)
	w.reconcile(1)
	if w.get("before", o); o.Status.Phase != provisionv1.SnapshotFailed {
		t.Errorf("%+v, want it to have failed", o.Status)
	}
}

func TestObjectWithTheNameOfAScheduledSnapshotIsReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.follows(infrav1.Etcd{Schedule: "0 * * * *"})
	w.now = w.now.Add(30 * time.Minute)
	name := "web-infra-" + fmt.Sprint(w.now.Unix()/60)
	o := &provisionv1.EtcdSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}, Spec: provisionv1.EtcdSnapshotSpec{ClusterRef: ofAnother}}
	w.create(o)
	w.reconcile(1)
	if len(w.events) != 1 || !strings.Contains(w.events[0], "Warning SnapshotNotMade") || !strings.Contains(w.events[0], "EtcdSnapshot "+name+" has its name, but was not created by this schedule. Delete it") {
		t.Errorf("%q, want a warning that names %s", w.events, name)
	}
	if err := w.Client.Delete(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	w.reconcile(1)
	w.times("11:00")
}

func TestScheduleMakesNothingWithoutAControlPlane(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.follows(infrav1.Etcd{Schedule: "*/5 * * * *"})
	for _, host := range []string{"h1", "h2", "h3"} {
		m := &infrav1.DroverMachine{}
		w.get("m-"+host, m)
		m.Status.Initialization.Provisioned = nil
		w.status(m)
	}
	w.reconcile(2)
	w.times("")
	if w.again <= 0 || w.again > 5*time.Minute {
		t.Errorf("it looks again after %v, want within five minutes", w.again)
	}
}

// failures checks how many scheduled snapshots have failed, and how many there are.
func (w *world) failures(want, of int) {
	w.t.Helper()
	failed := 0
	for _, o := range w.scheduled() {
		if o.Status.Phase == provisionv1.SnapshotFailed {
			failed++
		}
	}
	if failed != want || len(w.scheduled()) != of {
		w.t.Errorf("%d of %d have failed, want %d of %d", failed, len(w.scheduled()), want, of)
	}
}

func TestOnlySnapshotsBeyondTheRetentionAreRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.connect("h2", false)
	w.connect("h3", false)
	w.follows(infrav1.Etcd{Schedule: "0 * * * *", Retention: 2})
	// A user's snapshot with the label is kept, because the cluster does not own it.
	w.create(&provisionv1.EtcdSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "mine"}, Spec: provisionv1.EtcdSnapshotSpec{ClusterRef: ofWeb}})
	w.succeed(infrav1.TaskSucceeded)
	var removed []string
	for hour := range 4 {
		w.now = time.Date(2026, 3, 1, 11+hour, 0, 0, 0, time.UTC)
		w.reconcile(1)
		removed = append(removed, w.succeed(infrav1.TaskSucceeded)...)
	}
	w.times("13:00 14:00")
	if len(removed) != 2 {
		t.Errorf("%q were removed on the host, want the files of 11:00 and 12:00", removed)
	}
	w.get("mine", &provisionv1.EtcdSnapshot{})
	mine := &provisionv1.EtcdSnapshot{}
	w.get("mine", mine)
	mine.Labels = map[string]string{provisionv1.LabelScheduled: "true"}
	if err := w.Client.Update(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(time.Hour)
	w.reconcile(1)
	if got := w.succeed(infrav1.TaskSucceeded); len(got) != 1 || strings.HasPrefix(got[0], "mine") {
		t.Errorf("%q were removed", got)
	}
	w.get("mine", mine)
	if err := w.Client.Delete(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	for range 6 { // failed snapshots are kept, but not all of them
		w.now = w.now.Add(time.Hour)
		w.reconcile(1)
		w.succeed(infrav1.TaskFailed)
	}
	w.reconcile(1)
	w.failures(6, 8) // no file was removed
	w.now = w.now.Add(time.Hour)
	w.reconcile(1)
	w.succeed(infrav1.TaskSucceeded)
	w.reconcile(1)
	w.failures(3, 5)
}

// refusing is a client whose deletions are refused.
type refusing struct{ client.Client }

func (refusing) Delete(context.Context, client.Object, ...client.DeleteOption) error {
	return errors.New("refused")
}

func TestFailedCleanupDoesNotDelayOtherSnapshots(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.followsOnOneHost()
	w.now = w.now.Add(time.Hour)
	w.reconcile(2)
	w.given(w.busy(), infrav1.TaskSucceeded, infrav1.TaskEtcdSnapshot)
	if err := w.reconcileBy(refusing{w.Client}); err == nil || !strings.Contains(err.Error(), "beyond the retention: refused") {
		t.Errorf("%v, want the error of the cleanup", err)
	}
	w.times("11:00 12:00")
	if o := w.scheduled()[1]; o.Status.Phase != provisionv1.SnapshotSucceeded {
		t.Errorf("%+v, want it to have ended", o.Status)
	}
	w.reconcile(1)
	w.times("12:00")
}

func TestSnapshotBeingRemovedIsNotRestored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.followsOnOneHost()
	first := w.scheduled()[0].Name
	w.now = w.now.Add(time.Hour)
	w.reconcile(2)
	if m := w.given("h1", infrav1.TaskRunning, infrav1.TaskEtcdSnapshot); len(m.Spec.Tasks[1].Etcd.Remove) != 1 {
		t.Fatalf("%+v", m.Spec.Tasks)
	}
	w.wantRestore("late", provisionv1.EtcdRestoreSpec{SnapshotName: first})
	w.reconcile(2)
	w.restore("late", provisionv1.RestoreFailed, provisionv1.ReasonSourceInvalid, "beyond spec.etcd.retention")
	w.given("h1", infrav1.TaskSucceeded, infrav1.TaskEtcdSnapshot)
	w.reconcile(2)
	w.times("12:00")
}

// s3 returns a bucket of the cluster.
func s3() *provisionv1.EtcdS3 {
	return &provisionv1.EtcdS3{Endpoint: "s3.example.com", Bucket: "b", BucketLookup: provisionv1.BucketLookupDNS, Folder: "prod/web", CredentialsSecretName: "keys"}
}

func TestSnapshotIsCopiedToTheBucketAndRestoredFromThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.follows(infrav1.Etcd{S3: s3()})
	o := &provisionv1.EtcdSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "before"}, Spec: provisionv1.EtcdSnapshotSpec{ClusterRef: ofWeb}}
	w.create(o)
	w.reconcile(2)
	w.given("h1", infrav1.TaskSucceeded, infrav1.TaskEtcdSnapshot)
	w.reconcile(2)
	if w.get("before", o); o.Status.Phase != provisionv1.SnapshotRunning {
		t.Fatalf("%+v, want it to be copied", o.Status)
	}
	m := w.given("h1", infrav1.TaskSucceeded, infrav1.TaskEtcdSnapshot, infrav1.TaskEtcdUpload)
	want := infrav1.EtcdTaskS3{EtcdS3Object: provisionv1.EtcdS3Object{Endpoint: "s3.example.com", Bucket: "b", BucketLookup: provisionv1.BucketLookupDNS, Key: "prod/web/" + o.Status.Snapshot}, CredentialsSecretName: "keys"}
	if task := m.Spec.Tasks[2].Etcd; *task.S3 != want || task.File != o.Status.Snapshot {
		t.Errorf("%+v, want %+v", task.S3, want)
	}
	w.reconcile(2)
	if w.get("before", o); o.Status.Phase != provisionv1.SnapshotSucceeded || o.Status.S3 == nil || *o.Status.S3 != want.EtcdS3Object {
		t.Fatalf("%+v, want it to say where the copy is", o.Status)
	}
	host := &v1.Host{} // the machine is gone for good
	w.get("h1", host)
	w.connect("h1", false)
	if err := w.Client.Delete(t.Context(), host); err != nil {
		t.Fatal(err)
	}
	other := s3()
	other.Bucket = "another"
	w.follows(infrav1.Etcd{S3: other})
	w.wantRestore("elsewhere", provisionv1.EtcdRestoreSpec{SnapshotName: "before"})
	w.reconcile(3)
	w.restore("elsewhere", provisionv1.RestoreFailed, provisionv1.ReasonSourceInvalid, "in the bucket b at s3.example.com, which spec.etcd.s3 of the DroverCluster does not name")
	moved := s3()
	moved.Folder = "others"
	w.follows(infrav1.Etcd{S3: moved}) // the copy is kept
	w.wantRestore("r", provisionv1.EtcdRestoreSpec{SnapshotName: "before"})
	w.reconcile(2)
	w.paused(true)
	w.reconcile(2)
	if task := w.given("h2", infrav1.TaskRunning, infrav1.TaskEtcdPrepare).Spec.Tasks[1].Etcd; *task.S3 != want || task.File != o.Status.Snapshot {
		t.Errorf("%+v, want h2 to fetch %+v", task, want)
	}
	if got := w.restore("r", provisionv1.RestorePending, provisionv1.ReasonWaiting, "h2 is reading"); got.Status.Host != "h2" {
		t.Errorf("%+v", got.Status)
	}
}

func TestFailedCopyIsReportedWithTheFileOnTheHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.follows(infrav1.Etcd{S3: s3()})
	o := &provisionv1.EtcdSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "before"}, Spec: provisionv1.EtcdSnapshotSpec{ClusterRef: ofWeb}}
	w.create(o)
	w.reconcile(2)
	w.given("h1", infrav1.TaskSucceeded, infrav1.TaskEtcdSnapshot)
	for attempt := range 2 {
		w.reconcile(2)
		m := &infrav1.DroverMachine{}
		w.get("m-h1", m)
		if len(m.Spec.Tasks) != 3+attempt {
			t.Fatalf("%+v, want another attempt", m.Spec.Tasks)
		}
		m.Status.Tasks = []infrav1.MachineTaskStatus{{ID: m.Spec.Tasks[1].ID, State: infrav1.TaskSucceeded}}
		for _, task := range m.Spec.Tasks[2:] {
			m.Status.Tasks = append(m.Status.Tasks, infrav1.MachineTaskStatus{ID: task.ID, State: infrav1.TaskFailed, Message: "access denied"})
		}
		w.status(m)
	}
	w.reconcile(2)
	w.get("before", o)
	ready := meta.FindStatusCondition(o.Status.Conditions, provisionv1.ConditionReady)
	if o.Status.Phase != provisionv1.SnapshotFailed || o.Status.S3 != nil || !strings.Contains(ready.Message, "it is saved as "+o.Status.Snapshot+" on host h1, and could not be copied to the bucket b: access denied") ||
		!meta.IsStatusConditionTrue(o.Status.Conditions, provisionv1.ConditionSaved) || !meta.IsStatusConditionTrue(o.Status.Conditions, provisionv1.ConditionStalled) {
		t.Errorf("%+v, %+v", o.Status, ready)
	}
}

func TestUploadTaskWithoutABucketIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, s3 := range map[string]*infrav1.EtcdTaskS3{"without": nil, "with": {EtcdS3Object: provisionv1.EtcdS3Object{Endpoint: "s3.example.com", Bucket: "b", Key: "k"}}} {
		o := &infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "x" + name}}
		o.Spec.Tasks = []infrav1.MachineTask{{ID: "a", Action: infrav1.TaskEtcdUpload, Etcd: &infrav1.EtcdTask{Of: "a", File: "a.db", S3: s3}}}
		if err := w.Client.Create(t.Context(), o); apierrors.IsInvalid(err) != (s3 == nil) {
			t.Errorf("%s s3: %v, want that to be invalid only without", name, err)
		}
	}
}

func TestInvalidEtcdSettingsAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, etcd := range map[string]infrav1.Etcd{
		"a time zone":            {Schedule: "TZ=Asia/Tokyo 0 * * * *"},
		"a negative retention":   {Schedule: "@daily", Retention: -1},
		"too many":               {Schedule: "@daily", Retention: 101},
		"an endpoint with a URL": {S3: &provisionv1.EtcdS3{Endpoint: "http://s3.example.com", Bucket: "b"}},
		"no bucket":              {S3: &provisionv1.EtcdS3{Endpoint: "s3.example.com"}},
		"a folder above":         {S3: &provisionv1.EtcdS3{Bucket: "b", Folder: "a/../b"}},
		"a folder named ..":      {S3: &provisionv1.EtcdS3{Bucket: "b", Folder: ".."}},
		"a folder from the root": {S3: &provisionv1.EtcdS3{Bucket: "b", Folder: "/a"}},
		"a folder without name":  {S3: &provisionv1.EtcdS3{Bucket: "b", Folder: "a//b"}},
		"a folder that ends so":  {S3: &provisionv1.EtcdS3{Bucket: "b", Folder: "a/"}},
	} {
		o := &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "x"}, Spec: infrav1.DroverClusterSpec{Etcd: etcd}}
		if err := w.Client.Create(t.Context(), o); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v, want it to be invalid", name, err)
		}
	}
	for i, folder := range []string{"a", "a/b.c", "..a/.b", "a.."} {
		o := &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: fmt.Sprintf("y%d", i)}}
		o.Spec.Etcd.S3 = &provisionv1.EtcdS3{Bucket: "b", Folder: folder}
		if err := w.Client.Create(t.Context(), o); err != nil {
			t.Errorf("the folder %s: %v, want it taken", folder, err)
		}
	}
}
