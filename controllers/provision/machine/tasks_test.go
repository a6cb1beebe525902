// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/testkit"
)

// provisioned creates a machine whose bootstrap has completed, on the Host h1.
func (w *world) provisioned() types.NamespacedName {
	w.t.Helper()
	w.host("h1", nil)
	name := w.machine("m1", func(m *infrav1.DroverMachine, _ map[string]any) {
		m.Spec.InPlaceUpdate = &infrav1.InPlaceUpdate{Installer: infrav1.Installer{Path: "/opt/install.sh"}}
	})
	w.reconcile(name, 2)
	w.setHost("h1", v1.HostActive, v1.ReasonActive)
	w.want(w.reconcile(name, 1), infrav1.ReasonProvisioned, "h1")
	return name
}

// tasks writes the tasks of a machine.
func (w *world) tasks(name types.NamespacedName, ids ...string) {
	w.t.Helper()
	testkit.Eventually(w.t, time.Minute, func(ctx context.Context) error {
		m := &infrav1.DroverMachine{}
		if err := w.Client.Get(ctx, name, m); err != nil {
			return err
		}
		m.Spec.Tasks = nil
		for _, id := range ids {
			m.Spec.Tasks = append(m.Spec.Tasks, infrav1.MachineTask{ID: id, Action: infrav1.TaskUpdate, Update: &infrav1.UpdateTask{Version: "v1.36.3"}})
		}
		return w.Client.Update(ctx, m)
	})
}

// annotate gives a machine an annotation without a value.
func (w *world) annotate(name types.NamespacedName, annotation string) {
	w.t.Helper()
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"annotations": {"`+annotation+`": ""}}}`))
	if err := w.Client.Patch(w.t.Context(), &infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}, patch); err != nil {
		w.t.Fatal(err)
	}
}

// reports writes a Host's report about its instructions: how many are done, and which one is running or has failed.
func (w *world) reports(host string, state v1.HostState, reason string, done int, instruction string) {
	w.t.Helper()
	w.setHost(host, state, reason)
	secret := &corev1.Secret{}
	if err := w.Client.Get(w.t.Context(), types.NamespacedName{Namespace: w.namespace, Name: host + v1.HostInstructionsSecretSuffix}, secret); err != nil {
		w.t.Fatal(err)
	}
	h := w.getHost(host)
	h.Status.Progress = &v1.HostProgress{Version: string(secret.UID) + "." + secret.ResourceVersion, Done: int32(done), Total: int32(len(w.instructions(host).Instructions)), Instruction: instruction}
	if reason == v1.ReasonInstructionFailed {
		h.Status.Progress.Output = "first line\nno space left"
	}
	if err := w.Client.Status().Update(w.t.Context(), h); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) wantTasks(m *infrav1.DroverMachine, told []string, reason string, states ...infrav1.TaskState) {
	w.t.Helper()
	var got []infrav1.TaskState
	for _, task := range m.Status.Tasks {
		got = append(got, task.State)
	}
	given := []string{}
	for _, instruction := range w.instructions("h1").Instructions {
		given = append(given, instruction.ID)
	}
	if !slices.Equal(given, append([]string{"bootstrap-" + string(m.UID)}, told...)) || !slices.Equal(got, states) {
		w.t.Errorf("the Host has the instructions %v and the tasks are %+v, want the bootstrap, %v and %v", given, m.Status.Tasks, told, states)
	}
	condition := meta.FindStatusCondition(m.Status.Conditions, infrav1.ConditionTasksSucceeded)
	if (condition == nil) != (reason == "") || condition != nil && condition.Reason != reason {
		w.t.Errorf("the condition is %+v, want %s", condition, reason)
	}
	w.want(m, infrav1.ReasonProvisioned, "h1")
}

func TestTasksRunOnceAndOtherInstructionsStay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	name := w.provisioned()
	before := w.instructions("h1")
	w.tasks(name, "a", "b")
	w.wantTasks(w.reconcile(name, 1), nil, infrav1.ReasonTaskRunning, infrav1.TaskPending, infrav1.TaskPending)
	w.wantTasks(w.reconcile(name, 1), []string{"task-a", "task-b"}, infrav1.ReasonTaskRunning, infrav1.TaskPending, infrav1.TaskPending)
	told := w.instructions("h1")
	if command := told.Instructions[1].Command; !slices.Equal(command[3:], []string{"v1.36.3", "/opt/install.sh", "", "", "", ""}) {
		t.Errorf("the words of the command are %q", command[3:])
	}
	told.Instructions = told.Instructions[:1]
	if got, want := asJSON(t, told), asJSON(t, before); got != want {
		t.Errorf("the rest of the instructions are\n%s\nwant them as they were:\n%s", got, want)
	}
	w.reports("h1", v1.HostInstalling, v1.ReasonInstalling, 1, "task-a")
	w.wantTasks(w.reconcile(name, 1), []string{"task-a", "task-b"}, infrav1.ReasonTaskRunning, infrav1.TaskRunning, infrav1.TaskPending)
	w.reports("h1", v1.HostInstalling, v1.ReasonInstalling, 2, "task-b")
	w.wantTasks(w.reconcile(name, 1), []string{"task-a", "task-b"}, infrav1.ReasonTaskRunning, infrav1.TaskSucceeded, infrav1.TaskRunning)
	w.wantTasks(w.reconcile(name, 1), []string{"task-b"}, infrav1.ReasonTaskRunning, infrav1.TaskSucceeded, infrav1.TaskRunning)
	// The Host has not reported the instructions without the task yet. Its report about the former ones is ignored.
	w.setHost("h1", v1.HostActive, v1.ReasonActive)
	w.wantTasks(w.reconcile(name, 1), []string{"task-b"}, infrav1.ReasonTaskRunning, infrav1.TaskSucceeded, infrav1.TaskRunning)
	w.reports("h1", v1.HostActive, v1.ReasonActive, 2, "")
	w.wantTasks(w.reconcile(name, 2), nil, infrav1.ReasonTasksSucceeded, infrav1.TaskSucceeded, infrav1.TaskSucceeded)
	// A restore of etcd pauses the cluster, and consists of tasks.
	w.annotate(name, "cluster.x-k8s.io/paused")
	w.tasks(name, "c")
	w.wantTasks(w.reconcile(name, 2), []string{"task-c"}, infrav1.ReasonTaskRunning, infrav1.TaskPending)
	w.tasks(name)
	w.wantTasks(w.reconcile(name, 2), nil, "")
	if got, want := asJSON(t, w.instructions("h1")), asJSON(t, before); got != want {
		t.Errorf("the instructions are\n%s\nwant them as they were:\n%s", got, want)
	}
}

func TestFailedTaskIsReportedAndDelaysNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	name := w.provisioned()
	w.tasks(name, "a", "b")
	w.reconcile(name, 2)
	w.reports("h1", v1.HostInstalling, v1.ReasonInstructionFailed, 1, "task-a")
	m := w.reconcile(name, 1)
	w.wantTasks(m, []string{"task-a", "task-b"}, infrav1.ReasonTaskFailed, infrav1.TaskFailed, infrav1.TaskPending)
	if c := meta.FindStatusCondition(m.Status.Conditions, infrav1.ConditionTasksSucceeded); !strings.Contains(c.Message, "task a") || !strings.HasSuffix(c.Message, "\nno space left") {
		t.Errorf("the condition says %q, want which task failed and its last line", c.Message)
	}
	w.wantTasks(w.reconcile(name, 1), []string{"task-b"}, infrav1.ReasonTaskFailed, infrav1.TaskFailed, infrav1.TaskPending)
	w.reports("h1", v1.HostInstalling, v1.ReasonInterrupted, 1, "task-b")
	w.wantTasks(w.reconcile(name, 2), nil, infrav1.ReasonTaskFailed, infrav1.TaskFailed, infrav1.TaskFailed)
	// A task that was withdrawn is removed from the instructions, regardless of its outcome.
	w.tasks(name, "c")
	w.reconcile(name, 2)
	w.tasks(name)
	w.wantTasks(w.reconcile(name, 1), nil, "")
}

func TestMachineWithTasksGivesItsHostBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	name := w.provisioned()
	w.tasks(name, "a")
	w.reconcile(name, 2)
	w.setHost("h1", v1.HostInstalling, v1.ReasonTunnelLost)
	w.want(w.reconcile(name, 1), infrav1.ReasonHostLost, "h1")
	if err := w.Client.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "h1-host-plan"}}); err != nil {
		t.Fatal(err)
	}
	w.setHost("h1", v1.HostAvailable, v1.ReasonHostAvailable)
	w.want(w.reconcile(name, 2), infrav1.ReasonHostGone, "h1")
	if w.instructions("h1") != nil {
		t.Error("a task made the instructions again")
	}
	if err := w.Client.Delete(t.Context(), &infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}); err != nil {
		t.Fatal(err)
	}
	if m := w.reconcile(name, 2); m != nil || w.getHost("h1").Spec.ConsumerRef != nil {
		t.Errorf("%+v: want the machine gone and the Host given back", m)
	}
}

func TestTasksAreImmutableAndNotAllowedInTemplates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	name := w.machine("m1", nil)
	w.tasks(name, "a")
	m := &infrav1.DroverMachine{}
	if err := w.Client.Get(t.Context(), name, m); err != nil {
		t.Fatal(err)
	}
	m.Spec.Tasks[0].Update.Version = "v1.36.4"
	if err := w.Client.Update(t.Context(), m); err == nil || !strings.Contains(err.Error(), "with a new id") {
		t.Errorf("%v: want a changed task refused", err)
	}
	m.Spec.Tasks[0].Update = nil
	if err := w.Client.Update(t.Context(), m); err == nil || !strings.Contains(err.Error(), "the action is Update") {
		t.Errorf("%v: want an update to no version refused", err)
	}
	template := &infrav1.DroverMachineTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "t1"}}
	template.Spec.Template.Spec.Tasks = []infrav1.MachineTask{{ID: "a", Action: infrav1.TaskUpdate, Update: &infrav1.UpdateTask{Version: "v1.36.3"}}}
	if err := w.Client.Create(t.Context(), template); err == nil || !strings.Contains(err.Error(), "cannot be set in a template") {
		t.Errorf("%v: want a template with tasks refused", err)
	}
}

func asJSON(t *testing.T, value any) string {
	t.Helper()
	raw, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestForeignInstructionsAreReportedAndNotUsed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	name := w.provisioned()
	w.tasks(name, "a")
	w.reconcile(name, 1)
	theirs := w.Replace(t.Context(), t, types.NamespacedName{Namespace: w.namespace, Name: "h1" + v1.HostInstructionsSecretSuffix})
	m := w.reconcile(name, 2)
	ready := meta.FindStatusCondition(m.Status.Conditions, infrav1.ConditionReady)
	if ready == nil || ready.Reason != infrav1.ReasonSecretConflict || !strings.Contains(ready.Message, "delete their Secret") {
		t.Errorf("the condition is %+v, want %s with what to do", ready, infrav1.ReasonSecretConflict)
	}
	w.WantUnchanged(t, theirs)
}
