// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inplace_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
	"github.com/drover-dev/drover/internal/provision/inplace"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// response holds the fields that Cluster API reads from an answer.
type response struct {
	Status, Message   string
	RetryAfterSeconds int
	Handlers          []struct {
		Name        string
		RequestHook struct{ APIVersion, Hook string }
	}
	MachinePatch, InfrastructureMachinePatch, BootstrapConfigPatch, MachineSetPatch, InfrastructureMachineTemplatePatch *struct {
		PatchType string
		Patch     []byte
	}
}

// call calls a hook as Cluster API does: on the path that it builds from the discovery response.
func call(t *testing.T, hooks inplace.Hooks, hook, request string) (int, response) {
	t.Helper()
	mux := http.NewServeMux()
	inplace.New(hooks).Register(mux)
	post := func(path, body string) (int, response) {
		recorder := httptest.NewRecorder()
		mux.ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, "/v1/cluster-api/hooks.runtime.cluster.x-k8s.io/v1alpha1/"+path+"?timeout=10s", strings.NewReader(body)))
		var out response
		_ = json.Unmarshal(recorder.Body.Bytes(), &out)
		return recorder.Code, out
	}
	if hook == "Discovery" {
		return post("discovery", request)
	}
	_, found := post("discovery", `{"apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1", "kind": "DiscoveryRequest"}`)
	for _, h := range found.Handlers {
		if h.RequestHook.Hook == hook && h.RequestHook.APIVersion == "hooks.runtime.cluster.x-k8s.io/v1alpha1" {
			return post(strings.ToLower(hook)+"/"+h.Name, request)
		}
	}
	t.Fatalf("got a discovery without the hook %s, want it: %+v", hook, found)
	return 0, response{}
}

const (
	ours     = `"apiVersion": "infrastructure.cluster.drover.dev/v1"`
	kubeadm  = `"apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2"`
	byPath   = `"inPlaceUpdate": {"installer": {"path": "/opt/install.sh"}}`
	byOther  = `"inPlaceUpdate": {"installer": {"path": "/opt/other.sh"}}`
	spaced   = `"inPlaceUpdate":{ "installer" :{"path":"/opt/install.sh"}}`
	selector = `"hostSelector": {"matchLabels": {"a": "b"}}`
)

func TestOnlyVersionAndInstallerAreChangedInPlace(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		from, to, before, after string
		// version and installer report whether the response contains a patch for them, and text is part of its message.
		version, installer bool
		text               string
	}{
		"a patch version":            {"v1.36.2", "v1.36.3", byPath, byPath, true, false, ""},
		"the next minor version":     {"v1.36.2", "v1.37.0", byPath, byPath, true, false, ""},
		"a release of its candidate": {"v1.36.0-rc.1", "v1.36.0", byPath, byPath, true, false, ""},
		"an installer":               {"v1.36.2", "v1.36.2", byPath, byOther, false, true, ""},
		"both":                       {"v1.36.2", "v1.36.3", byPath, byOther, true, true, ""},
		"a first installer":          {"v1.36.2", "v1.36.3", selector, selector + "," + byPath, true, true, ""},
		"the same in other spaces":   {"v1.36.2", "v1.36.3", byPath, spaced, true, false, ""},
		"no installer":               {"v1.36.2", "v1.36.3", selector, selector, false, false, "no inPlaceUpdate"},
		"an installer is taken away": {"v1.36.2", "v1.36.3", byPath, selector, false, false, "no inPlaceUpdate"},
		"back":                       {"v1.36.3", "v1.36.2", byPath, byPath, false, false, "does not downgrade"},
		"two minor versions at once": {"v1.35.2", "v1.37.0", byPath, byPath, false, false, "next minor version"},
		"the next major version":     {"v1.36.2", "v2.0.0", byPath, byPath, false, false, "next minor version"},
		"no version":                 {"v1.36.2", "latest", byPath, byPath, false, false, "not a version"},
		"no version before":          {"", "v1.36.2", byPath, byPath, false, false, "not a version"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, machine := call(t, inplace.Hooks{}, "CanUpdateMachine", fmt.Sprintf(`{
				"current": {"machine": {"spec": {"version": %q}}, "infrastructureMachine": {%s, "kind": "DroverMachine", "spec": {%s}}, "bootstrapConfig": {`+kubeadm+`, "kind": "KubeadmConfig"}},
				"desired": {"machine": {"spec": {"version": %q}}, "infrastructureMachine": {%s, "kind": "DroverMachine", "spec": {%s}}, "bootstrapConfig": {`+kubeadm+`, "kind": "KubeadmConfig"}}}`, tc.from, ours, tc.before, tc.to, ours, tc.after))
			want(t, code, machine, tc.version, tc.installer, tc.text, "/spec", tc.to)
			code, machines := call(t, inplace.Hooks{}, "CanUpdateMachineSet", fmt.Sprintf(`{
				"current": {"machineSet": {"spec": {"template": {"spec": {"version": %q}}}}, "infrastructureMachineTemplate": {%s, "kind": "DroverMachineTemplate", "spec": {"template": {"spec": {%s}}}}, "bootstrapConfigTemplate": {`+kubeadm+`, "kind": "KubeadmConfigTemplate"}},
				"desired": {"machineSet": {"spec": {"template": {"spec": {"version": %q}}}}, "infrastructureMachineTemplate": {%s, "kind": "DroverMachineTemplate", "spec": {"template": {"spec": {%s}}}}, "bootstrapConfigTemplate": {`+kubeadm+`, "kind": "KubeadmConfigTemplate"}}}`, tc.from, ours, tc.before, tc.to, ours, tc.after))
			machines.MachinePatch, machines.InfrastructureMachinePatch = machines.MachineSetPatch, machines.InfrastructureMachineTemplatePatch
			want(t, code, machines, tc.version, tc.installer, tc.text, "/spec/template/spec", tc.to)
		})
	}
}

func want(t *testing.T, code int, got response, version, installer bool, text, path, to string) {
	t.Helper()
	if code != http.StatusOK || got.Status != "Success" || (got.MachinePatch != nil) != version || (got.InfrastructureMachinePatch != nil) != installer || !strings.Contains(got.Message, text) || (got.Message != "") != (text != "") {
		t.Errorf("%d %+v, want success with patches of the version (%v) and the installer (%v), and %q", code, got, version, installer, text)
	}
	if version && got.MachinePatch != nil {
		if patch := string(got.MachinePatch.Patch); got.MachinePatch.PatchType != "JSONPatch" || patch != fmt.Sprintf(`[{"op":"add","path":"%s/version","value":%q}]`, path, to) {
			t.Errorf("got the patch %s, want one of the version", patch)
		}
	}
	if installer && got.InfrastructureMachinePatch != nil {
		if patch := string(got.InfrastructureMachinePatch.Patch); !strings.Contains(patch, `"path":"`+path+`/inPlaceUpdate","value":{"installer":`) {
			t.Errorf("got the patch %s, want one of the installer", patch)
		}
	}
}

func TestBootstrapChangesWithoutEffectOnTheMachineAreMadeInPlace(t *testing.T) {
	t.Parallel()
	const gate, etcd, discovery = `"ControlPlaneKubeletLocalMode": true`, `"etcd": {"local": {}}`, `"controlPlane": {}`
	for name, tc := range map[string]struct{ current, desired, left string }{
		"nothing":                      {`{"files": []}`, `{"files": []}`, ""},
		"a gate that a version drops":  {`{"clusterConfiguration": {` + etcd + `, "featureGates": {` + gate + `}}}`, `{"clusterConfiguration": {` + etcd + `}}`, ""},
		"and nothing else there":       {`{"clusterConfiguration": {"featureGates": {` + gate + `}}, "format": "cloud-config"}`, `{"format": "cloud-config"}`, ""},
		"and another gate":             {`{"clusterConfiguration": {"featureGates": {"A": true, ` + gate + `}}}`, `{"clusterConfiguration": {"featureGates": {"A": true}}}`, ""},
		"a gate that a version adds":   {`{"format": "cloud-config"}`, `{"clusterConfiguration": {"featureGates": {` + gate + `}}, "format": "cloud-config"}`, ""},
		"phases of kubeadm init":       {`{"joinConfiguration": {` + discovery + `, "skipPhases": ["addon/coredns"]}}`, `{"joinConfiguration": {` + discovery + `}}`, ""},
		"phases of another join":       {`{"joinConfiguration": {"skipPhases": ["a"]}}`, `{"joinConfiguration": {"skipPhases": ["b"]}}`, ""},
		"both":                         {`{"clusterConfiguration": {"featureGates": {` + gate + `}}, "joinConfiguration": {` + discovery + `, "skipPhases": ["a"]}}`, `{"joinConfiguration": {` + discovery + `}}`, ""},
		"a gate of the user, too":      {`{"clusterConfiguration": {"featureGates": {"A": true, ` + gate + `}}}`, `{"clusterConfiguration": {"featureGates": {"A": false}}}`, `{"clusterConfiguration":{"featureGates":{"A":true}}}`},
		"a file, too":                  {`{"files": [], "joinConfiguration": {"controlPlane": {}, "skipPhases": ["a"]}}`, `{"files": [{}], "joinConfiguration": {"controlPlane": {}}}`, `{"files":[],"joinConfiguration":{"controlPlane":{}}}`},
		"an argument of the kubelet":   {`{"joinConfiguration": {"nodeRegistration": {"name": "a"}}}`, `{"joinConfiguration": {"nodeRegistration": {"name": "b"}}}`, `{"joinConfiguration":{"nodeRegistration":{"name":"a"}}}`},
		"a configuration that is none": {`{"clusterConfiguration": {"featureGates": "all"}}`, `{"clusterConfiguration": {"featureGates": ["all"]}}`, `{"clusterConfiguration":{"featureGates":"all"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			machine := `"machine": {"spec": {"version": "v1.36.%d"}}, "infrastructureMachine": {` + ours + `, "kind": "DroverMachine", "spec": {` + byPath + `}}, "bootstrapConfig": {` + kubeadm + `, "kind": "KubeadmConfig", "spec": %s}`
			code, got := call(t, inplace.Hooks{}, "CanUpdateMachine", fmt.Sprintf(`{"current": {`+machine+`}, "desired": {`+machine+`}}`, 2, tc.current, 3, tc.desired))
			want(t, code, got, true, false, "", "/spec", "v1.36.3")
			after := []byte(`{"spec": ` + tc.current + `}`)
			if p := got.BootstrapConfigPatch; p != nil {
				operations, err := jsonpatch.DecodePatch(p.Patch)
				if err == nil {
					after, err = operations.Apply(after)
				}
				if err != nil || p.PatchType != "JSONPatch" {
					t.Fatalf("the patch %s of the type %s: %v", p.Patch, p.PatchType, err)
				}
			}
			if wanted := []byte(`{"spec": ` + cmp.Or(tc.left, tc.desired) + `}`); !jsonpatch.Equal(after, wanted) {
				t.Errorf("Cluster API compares %s, want %s", after, wanted)
			}
		})
	}
}

func TestMachinesOfOtherProvidersAreNotUpdated(t *testing.T) {
	t.Parallel()
	body := `{"machine": {"spec": {"version": "v1.36.%d"}}, "infrastructureMachine": {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "DroverMachine", "spec": {` + byPath + `}}}`
	_, got := call(t, inplace.Hooks{}, "CanUpdateMachine", fmt.Sprintf(`{"current": `+body+`, "desired": `+body+`}`, 1, 2))
	want(t, http.StatusOK, got, false, false, "do not have the kind", "", "")
	body = `{"machine": {"spec": {"version": "v1.36.%d+rke2r1"}}, "infrastructureMachine": {` + ours + `, "kind": "DroverMachine", "spec": {` + byPath + `}}, "bootstrapConfig": {"apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "RKE2Config"}}`
	_, got = call(t, inplace.Hooks{}, "CanUpdateMachine", fmt.Sprintf(`{"current": `+body+`, "desired": `+body+`}`, 1, 2))
	want(t, http.StatusOK, got, false, false, "kubeadm does not set the machines up", "", "")
	for _, body := range []string{"", "no JSON", `{"current": []}`, `{"current": "` + strings.Repeat("x", 5<<20) + `"}`} {
		if code, _ := call(t, inplace.Hooks{}, "CanUpdateMachine", body); code != http.StatusBadRequest {
			t.Errorf("%.20q: status %d, want 400", body, code)
		}
	}
}

// update is a Machine that can be updated in place, and its DroverMachine.
type update struct {
	*testkit.Env
	t     *testing.T
	hooks inplace.Hooks
	name  types.NamespacedName
}

func newUpdate(t *testing.T) *update {
	t.Helper()
	env := testkit.Shared(t)
	env.ClusterAPI(t)
	u := &update{Env: env, t: t, hooks: inplace.Hooks{Live: env.Client, Writer: env.Client, Log: logr.Discard()}}
	u.name = types.NamespacedName{Namespace: env.Workspace(t), Name: "m1"}
	owner := env.ClusterAPIObject(t, "Machine", u.name.Namespace, u.name.Name, nil, map[string]any{
		"spec": map[string]any{"version": "v1.36.2",
			"infrastructureRef": map[string]any{"apiGroup": infrav1.Group, "kind": "DroverMachine", "name": "d1"},
			"bootstrap":         map[string]any{"configRef": map[string]any{"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfig", "name": "k1"}}},
		"status": map[string]any{"nodeInfo": map[string]any{"kubeletVersion": "v1.36.2"}},
	})
	env.ClusterAPIObject(t, clusterapi.KubeadmConfig, u.name.Namespace, "k1", nil, map[string]any{"spec": map[string]any{
		"initConfiguration": map[string]any{"patches": map[string]any{"directory": "/not/these"}},
		"joinConfiguration": map[string]any{"patches": map[string]any{"directory": "/etc/patches"}, "nodeRegistration": map[string]any{"ignorePreflightErrors": []any{"Swap"}}},
	}})
	of := &infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Namespace: u.name.Namespace, Name: "d1", OwnerReferences: testkit.OwnedBy(owner)}}
	of.Spec.InPlaceUpdate = &infrav1.InPlaceUpdate{Installer: infrav1.Installer{Path: "/opt/install.sh"}}
	if err := env.Client.Create(t.Context(), of); err != nil {
		t.Fatal(err)
	}
	return u
}

func (u *update) patchMachine(patch string) {
	u.t.Helper()
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(clusterapi.GroupVersion.WithKind("Machine"))
	object.SetNamespace(u.name.Namespace)
	object.SetName(u.name.Name)
	if err := u.Client.Patch(u.t.Context(), object, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		u.t.Fatal(err)
	}
}

const inProgress = `"in-place-updates.internal.cluster.x-k8s.io/update-in-progress": ""`

// begin starts an update in the same way as Cluster API, with three writes.
func (u *update) begin(version string) {
	u.t.Helper()
	u.patchMachine(`{"metadata": {"annotations": {` + inProgress + `}}}`)
	u.patchDrover(`{"metadata": {"annotations": {` + inProgress + `}}}`)
	u.patchMachine(`{"metadata": {"annotations": {"runtime.cluster.x-k8s.io/pending-hooks": "AfterClusterUpgrade,UpdateMachine"}}, "spec": {"version": "` + version + `"}}`)
}

func (u *update) patchDrover(patch string) {
	u.t.Helper()
	of := &infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Namespace: u.name.Namespace, Name: "d1"}}
	if err := u.Client.Patch(u.t.Context(), of, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		u.t.Fatal(err)
	}
}

// ends writes the end of a machine's task, as the machine's controller does.
func (u *update) ends(id string, state infrav1.TaskState) {
	u.t.Helper()
	testkit.Eventually(u.t, time.Minute, func(ctx context.Context) error {
		of := &infrav1.DroverMachine{}
		if err := u.Client.Get(ctx, types.NamespacedName{Namespace: u.name.Namespace, Name: "d1"}, of); err != nil {
			return err
		}
		of.Status.HostName, of.Status.Tasks = "h1", []infrav1.MachineTaskStatus{{ID: id, State: state, Message: "hush"}}
		return u.Client.Status().Update(ctx, of)
	})
}

func (u *update) tasks() []infrav1.MachineTask {
	u.t.Helper()
	of := &infrav1.DroverMachine{}
	if err := u.Client.Get(u.t.Context(), types.NamespacedName{Namespace: u.name.Namespace, Name: "d1"}, of); err != nil {
		u.t.Fatal(err)
	}
	return of.Spec.Tasks
}

// want calls the hook, checks the answer, and returns the machine's only update.
func (u *update) want(status string, done bool, text string, tasks int) infrav1.MachineTask {
	u.t.Helper()
	code, got := call(u.t, u.hooks, "UpdateMachine", fmt.Sprintf(`{"desired": {"machine": {"metadata": {"namespace": %q, "name": %q}, "spec": {"version": "v9.9.9"}}}}`, u.name.Namespace, u.name.Name))
	if code != http.StatusOK || got.Status != status || (got.RetryAfterSeconds == 0) != done || !strings.Contains(got.Message, text) || strings.Contains(got.Message, "hush") {
		u.t.Errorf("%d %+v, want %s, done: %v, %q", code, got, status, done, text)
	}
	all := u.tasks()
	if len(all) != tasks {
		u.t.Fatalf("the machine has the tasks %+v, want %d", all, tasks)
	}
	if tasks == 0 {
		return infrav1.MachineTask{}
	}
	return all[len(all)-1]
}

func TestRepeatedCallsGiveOneUpdateTask(t *testing.T) {
	t.Parallel()
	u := newUpdate(t)
	u.begin("v1.36.3")
	first := u.want("Success", false, "is given the update to v1.36.3", 1)
	if first.Action != infrav1.TaskUpdate || first.Update.Version != "v1.36.3" {
		t.Fatalf("got the task %+v, want the Machine's version, and not the request's", first)
	}
	if first.Update.Patches != "/etc/patches" || !slices.Equal(first.Update.IgnorePreflightErrors, []string{"Swap"}) {
		t.Errorf("got the task %+v, want the KubeadmConfig's settings for a machine that joins", first.Update)
	}
	u.patchMachine(`{"spec": {"deletion": {"nodeDrainTimeoutSeconds": 7}}}`) // a new generation
	u.ends(first.ID, infrav1.TaskRunning)
	if again := u.want("Success", false, "Running", 1); again.ID != first.ID {
		t.Errorf("got the task %s, want it to stay %s", again.ID, first.ID)
	}
	u.ends(first.ID, infrav1.TaskSucceeded)
	u.want("Success", false, "reports the kubelet v1.36.2", 1)
	u.patchMachine(`{"status": {"nodeInfo": {"kubeletVersion": "v1.36.3"}}}`)
	u.want("Success", true, "was updated to v1.36.3", 0)
	u.want("Success", true, "the kubelet has version", 0) // Cluster API asks again because it did not receive the response
}

func TestFailedUpdateIsRetriedOnlyWhenAPersonAsks(t *testing.T) {
	t.Parallel()
	u := newUpdate(t)
	u.begin("v1.36.3")
	first := u.want("Success", false, "", 1)
	u.ends(first.ID, infrav1.TaskFailed)
	for range 2 {
		if again := u.want("Failure", true, "TasksSucceeded of DroverMachine d1", 1); again.ID != first.ID {
			t.Error("got another try of the update, want none")
		}
	}
	// The kubelet was updated before the task failed. Even so, the update has failed.
	u.patchMachine(`{"status": {"nodeInfo": {"kubeletVersion": "v1.36.3"}}}`)
	u.patchDrover(`{"metadata": {"annotations": {"infrastructure.cluster.drover.dev/update-attempt": "2"}}}`)
	second := u.want("Success", false, "is given", 1)
	if second.ID == first.ID || second.Update.Attempt != "2" {
		t.Errorf("got the second attempt %+v, want another task", second)
	}
	u.ends(second.ID, infrav1.TaskFailed)
	u.want("Failure", true, "", 1)
	u.patchMachine(`{"spec": {"version": "v1.36.4"}}`)
	if third := u.want("Success", false, "v1.36.4", 1); third.ID == second.ID || third.Update.Version != "v1.36.4" {
		t.Errorf("got the update to another version %+v, want another task", third)
	}
}

func TestCallsWithoutAnUpdateInProgressDoNothing(t *testing.T) {
	t.Parallel()
	u := newUpdate(t)
	u.want("Failure", true, "no such Machine", 0)
	u.patchMachine(`{"metadata": {"annotations": {` + inProgress + `}}, "spec": {"version": "v1.36.3"}}`)
	u.want("Failure", true, "no such Machine", 0)
	u.patchMachine(`{"metadata": {"annotations": {"runtime.cluster.x-k8s.io/pending-hooks": "UpdateMachine"}}}`)
	u.want("Failure", true, "no such Machine", 0) // the DroverMachine is not marked
	u.patchDrover(`{"metadata": {"annotations": {` + inProgress + `}}, "spec": {"inPlaceUpdate": null}}`)
	u.want("Failure", true, "no spec.inPlaceUpdate", 0)
	u.patchMachine(`{"spec": {"bootstrap": {"configRef": {"kind": "RKE2Config"}}}}`)
	u.want("Failure", true, "kubeadm does not set up Machine", 0)
	u.patchDrover(`{"metadata": {"ownerReferences": null}, "spec": {"inPlaceUpdate": {"installer": {"path": "/opt/install.sh"}}}}`)
	u.want("Failure", true, "no such Machine", 0) // it belongs to another Machine
	u.name.Name = "m2"
	u.want("Failure", true, "no such Machine", 0)
}

// TestAnUpdateTouchesNoTaskOfAnotherController: an etcd restore has tasks on the same machine.
func TestAnUpdateTouchesNoTaskOfAnotherController(t *testing.T) {
	t.Parallel()
	u := newUpdate(t)
	foreign := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"tasks": []any{map[string]any{"id": "foreign", "action": "Update", "update": map[string]any{"version": "v1.0.0"}}}}}}
	foreign.SetGroupVersionKind(infrav1.GroupVersion.WithKind("DroverMachine"))
	foreign.SetNamespace(u.name.Namespace)
	foreign.SetName("d1")
	if err := u.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(foreign), client.FieldOwner("another")); err != nil {
		t.Fatal(err)
	}
	u.begin("v1.36.3")
	task := u.want("Success", false, "", 2)
	u.ends(task.ID, infrav1.TaskSucceeded)
	u.patchMachine(`{"status": {"nodeInfo": {"kubeletVersion": "v1.36.3"}}}`)
	if left := u.want("Success", true, "", 1); left.ID != "foreign" {
		t.Errorf("got the task %+v, want only the other controller's", left)
	}
}

// stale is a reader whose data is older than another replica's write.
type stale struct {
	client.Client
	before *infrav1.DroverMachine
}

func (s stale) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	if of, ok := into.(*infrav1.DroverMachine); ok {
		s.before.DeepCopyInto(of)
		return nil
	}
	return s.Client.Get(ctx, key, into, options...)
}

func TestOnlyOneOfTwoReplicasWritesTheTask(t *testing.T) {
	t.Parallel()
	u := newUpdate(t)
	u.begin("v1.36.3")
	before := &infrav1.DroverMachine{}
	if err := u.Client.Get(t.Context(), types.NamespacedName{Namespace: u.name.Namespace, Name: "d1"}, before); err != nil {
		t.Fatal(err)
	}
	first := u.want("Success", false, "", 1)
	u.patchMachine(`{"spec": {"deletion": {"nodeDrainTimeoutSeconds": 7}}}`)
	conflict := &lastError{}
	code, _ := call(t, inplace.Hooks{Live: stale{u.Client, before}, Writer: u.Client, Log: logr.New(conflict)}, "UpdateMachine", fmt.Sprintf(`{"desired": {"machine": {"metadata": {"namespace": %q, "name": "m1"}}}}`, u.name.Namespace))
	if tasks := u.tasks(); code != http.StatusServiceUnavailable || !apierrors.IsConflict(conflict.err) || len(tasks) != 1 || tasks[0].ID != first.ID {
		t.Errorf("status %d, %v, tasks %+v: want a conflict, and the one task", code, conflict.err, tasks)
	}
}

func TestUpdateDoesNotRecreateADeletedMachine(t *testing.T) {
	t.Parallel()
	u := newUpdate(t)
	u.begin("v1.36.3")
	machine := &infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Namespace: u.name.Namespace, Name: "d1"}}
	writer := testkit.Competing(u.Client, func(ctx context.Context, _ any) bool {
		if err := u.Client.Delete(ctx, machine.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		return true
	})
	conflict := &lastError{}
	code, _ := call(t, inplace.Hooks{Live: u.Client, Writer: writer, Log: logr.New(conflict)}, "UpdateMachine", fmt.Sprintf(`{"desired": {"machine": {"metadata": {"namespace": %q, "name": "m1"}}}}`, u.name.Namespace))
	if err := u.Client.Get(t.Context(), client.ObjectKeyFromObject(machine), machine); code != http.StatusServiceUnavailable || !apierrors.IsConflict(conflict.err) || !apierrors.IsNotFound(err) {
		t.Errorf("status %d, %v, and the machine: %v: want a conflict, and none", code, conflict.err, err)
	}
}

// lastError is a log sink that keeps the last error.
type lastError struct{ err error }

func (*lastError) Init(logr.RuntimeInfo)                 {}
func (*lastError) Enabled(int) bool                      { return true }
func (*lastError) Info(int, string, ...any)              {}
func (l *lastError) Error(err error, _ string, _ ...any) { l.err = err }
func (l *lastError) WithValues(...any) logr.LogSink      { return l }
func (l *lastError) WithName(string) logr.LogSink        { return l }

// held is a request body that stays open until the test releases it.
type held struct {
	begun, end chan struct{}
	once       sync.Once
}

func (h *held) Read([]byte) (int, error) {
	h.once.Do(func() { close(h.begun) })
	<-h.end
	return 0, io.EOF
}

func TestOneNetworkCannotTakeAllSeats(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	inplace.New(inplace.Hooks{}).Register(mux)
	call := func(ctx context.Context, from string, body io.Reader) int {
		request := httptest.NewRequestWithContext(ctx, http.MethodPost, inplace.Path+"/hooks.runtime.cluster.x-k8s.io/v1alpha1/discovery", body)
		request.RemoteAddr = from
		recorder := httptest.NewRecorder()
		mux.ServeHTTP(recorder, request)
		return recorder.Code
	}
	end, done := make(chan struct{}), sync.WaitGroup{}
	for _, from := range []string{"[2001:db8::1]:1", "[2001:db8::2]:1"} {
		body := &held{begun: make(chan struct{}), end: end}
		done.Go(func() { call(t.Context(), from, body) })
		<-body.begun // it has taken its seat
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if code := call(ctx, "[2001:db8::3]:1", strings.NewReader("{}")); code != http.StatusTooManyRequests {
		t.Errorf("a third call of one /64 got %d, want %d", code, http.StatusTooManyRequests)
	}
	if code := call(t.Context(), "[2001:db8:0:1::1]:1", strings.NewReader("{}")); code != http.StatusOK {
		t.Errorf("a call of another network got %d, want %d", code, http.StatusOK)
	}
	close(end)
	done.Wait()
}
