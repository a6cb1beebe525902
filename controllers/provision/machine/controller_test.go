// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/provision/machine"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
	"github.com/drover-dev/drover/internal/provision/hosts"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const bootstrapData = `## template: jinja
#cloud-config
write_files:
- {path: /run/kubeadm/kubeadm.yaml, permissions: '0640', content: "provider-id: drover://{{ ds.meta_data.instance_id }}\nkey: hush-hush"}
runcmd: ["kubeadm init && echo success > /run/cluster-api/bootstrap-success.complete"]
`

// world is a workspace with a Cluster API Cluster.
type world struct {
	*testkit.Env
	t         *testing.T
	clock     *testkit.Clock
	r         *machine.Reconciler
	namespace string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	env := testkit.Shared(t)
	env.ClusterAPI(t)
	w := &world{Env: env, t: t, clock: testkit.NewClock(), namespace: env.Workspace(t)}
	w.r = &machine.Reconciler{
		Hub: hosts.Hub{Client: env.Client, Live: env.Client}, Recorder: events.NewFakeRecorder(100), Now: w.clock.Now,
	}
	w.ClusterAPIObject(t, "Cluster", w.namespace, "c1", nil, map[string]any{
		"spec": map[string]any{"infrastructureRef": testkit.InfrastructureRef("DroverCluster", "c1")}, "status": map[string]any{"initialization": map[string]any{"infrastructureProvisioned": true}},
	})
	w.Bootstrap(t, w.namespace, "data", "c1", bootstrapData)
	return w
}

// machine creates a Machine and its DroverMachine, as Cluster API does.
func (w *world) machine(name string, change func(*infrav1.DroverMachine, map[string]any)) types.NamespacedName {
	w.t.Helper()
	labels := map[string]string{clusterapi.LabelCluster: "c1"}
	spec := map[string]any{
		"clusterName": "c1", "bootstrap": map[string]any{"dataSecretName": "data"},
		"infrastructureRef": testkit.InfrastructureRef("DroverMachine", name),
	}
	m := &infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name, Labels: labels}}
	if change != nil {
		change(m, spec)
	}
	owner := w.ClusterAPIObject(w.t, "Machine", w.namespace, name, m.Labels, map[string]any{"spec": spec})
	m.OwnerReferences = testkit.OwnedBy(owner)
	if err := w.Client.Create(w.t.Context(), m); err != nil {
		w.t.Fatal(err)
	}
	return client.ObjectKeyFromObject(m)
}

// host creates a free Host.
func (w *world) host(name string, labels map[string]string) {
	w.t.Helper()
	w.Apply(w.t, &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name, Labels: labels}})
	w.setHost(name, v1.HostAvailable, v1.ReasonHostAvailable)
}

// setHost writes a Host's status, as its own controller does.
func (w *world) setHost(name string, state v1.HostState, reason string) {
	w.t.Helper()
	h := w.getHost(name)
	h.Status.State = state
	h.Status.Machine = &v1.HostMachine{HostProperties: v1.HostProperties{Hostname: "Box-" + name, Addresses: []string{"10.0.0.7", "fe80::1", "no address"}}}
	ready := metav1.ConditionFalse
	if reason == v1.ReasonHostAvailable || reason == v1.ReasonActive {
		ready = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&h.Status.Conditions, metav1.Condition{Type: v1.ConditionReady, Status: ready, Reason: reason, Message: "it is " + reason, ObservedGeneration: h.Generation})
	if err := w.Client.Status().Update(w.t.Context(), h); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) getHost(name string) *v1.Host {
	w.t.Helper()
	h := &v1.Host{}
	if err := w.Client.Get(w.t.Context(), types.NamespacedName{Namespace: w.namespace, Name: name}, h); err != nil {
		w.t.Fatal(err)
	}
	return h
}

// instructions reads a Host's instructions. It returns nil if there are none.
func (w *world) instructions(host string) *protocol.HostInstructions {
	w.t.Helper()
	secret := &corev1.Secret{}
	name := types.NamespacedName{Namespace: w.namespace, Name: host + v1.HostInstructionsSecretSuffix}
	err := w.Client.Get(w.t.Context(), name, secret)
	if apierrors.IsNotFound(err) {
		return nil
	}
	given := &protocol.HostInstructions{}
	if err := errors.Join(err, json.Unmarshal(secret.Data[v1.HostInstructionsKey], given)); err != nil {
		w.t.Fatal(err)
	}
	return given
}

// reconcile takes steps and returns the machine, or nil if it is gone.
func (w *world) reconcile(name types.NamespacedName, steps int) *infrav1.DroverMachine {
	w.t.Helper()
	for range steps {
		if _, err := w.r.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: name}); err != nil {
			w.t.Fatal(err)
		}
	}
	m := &infrav1.DroverMachine{}
	if err := w.Client.Get(w.t.Context(), name, m); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		w.t.Fatal(err)
	}
	return m
}

func (w *world) want(m *infrav1.DroverMachine, reason, host string) {
	w.t.Helper()
	ready := meta.FindStatusCondition(m.Status.Conditions, infrav1.ConditionReady)
	if ready == nil || ready.Reason != reason || m.Status.HostName != host || (ready.Status == metav1.ConditionTrue) != (reason == infrav1.ReasonProvisioned) {
		w.t.Errorf("the machine has the Host %q and %+v, want %q and %s", m.Status.HostName, ready, host, reason)
	}
	if raw, _ := json.Marshal(m); strings.Contains(string(raw), "hush") {
		w.t.Errorf("the machine quotes the bootstrap data: %s", raw)
	}
}

func TestMachineTakesAHostAndGivesItBackClean(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	name := w.machine("m1", nil)
	w.want(w.reconcile(name, 2), infrav1.ReasonNoHost, "")
	w.host("h1", nil)
	m := w.reconcile(name, 1)
	w.want(m, infrav1.ReasonBootstrapping, "h1")
	if m.Spec.ProviderID != "drover://"+w.namespace+"/h1" || m.Status.Initialization.Provisioned != nil {
		t.Errorf("provider ID %q, provisioned %v", m.Spec.ProviderID, m.Status.Initialization.Provisioned)
	}
	given := w.instructions("h1")
	if given == nil || len(given.Files) != 2 || !strings.Contains(string(given.Files[0].Content), m.Spec.ProviderID+"\n") || len(given.Instructions) != 1 ||
		given.Instructions[0].ID != "bootstrap-"+string(m.UID) || len(given.Clean) != 2 || given.Clean[0].ID != "k3s-"+string(m.UID) || given.Clean[1].ID != "reset-"+string(m.UID) {
		t.Fatalf("the instructions are %+v", given)
	}
	for _, script := range []string{"/usr/bin/rke2-uninstall.sh", "/opt/rke2/bin/rke2-uninstall.sh", "/opt/bin/k3s-uninstall.sh", "/usr/local/bin/k3s-agent-uninstall.sh"} {
		if !slices.Contains(given.Clean[0].Command, script) {
			t.Errorf("a Host is cleaned without %s", script)
		}
	}
	w.setHost("h1", v1.HostInstalling, v1.ReasonInstalling)
	w.want(w.reconcile(name, 1), infrav1.ReasonBootstrapping, "h1")
	w.setHost("h1", v1.HostActive, v1.ReasonActive)
	m = w.reconcile(name, 1)
	w.want(m, infrav1.ReasonProvisioned, "h1")
	if want := []infrav1.MachineAddress{{Type: "Hostname", Address: "Box-h1"}, {Type: "InternalIP", Address: "10.0.0.7"}, {Type: "InternalIP", Address: "fe80::1"}}; !slices.Equal(m.Status.Addresses, want) {
		t.Errorf("addresses %v, want %v", m.Status.Addresses, want)
	}
	w.setHost("h1", v1.HostActive, v1.ReasonTunnelLost)
	m = w.reconcile(name, 1)
	w.want(m, infrav1.ReasonHostLost, "h1")
	if !*m.Status.Initialization.Provisioned {
		t.Error("a Host that is lost was provisioned all the same")
	}
	w.setHost("h1", v1.HostActive, v1.ReasonActive)

	if err := w.Client.Delete(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	w.want(w.reconcile(name, 1), infrav1.ReasonReleasing, "h1")
	w.setHost("h1", v1.HostCleaning, v1.ReasonCleaning)
	if m := w.reconcile(name, 2); m == nil || w.instructions("h1") != nil || w.getHost("h1").Spec.ConsumerRef == nil {
		t.Error("want the instructions gone, and the machine and its hold of the Host there until that is clean")
	}
	w.setHost("h1", v1.HostAvailable, v1.ReasonHostAvailable)
	if m := w.reconcile(name, 1); m != nil || w.getHost("h1").Spec.ConsumerRef != nil {
		t.Errorf("the machine is %+v, want it gone and the Host given back", m)
	}
}

func TestMachineWithALostHostIsReleasedAndTheHostCleanedLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.host("h1", nil)
	name := w.machine("m1", nil)
	m := w.reconcile(name, 2)
	w.setHost("h1", v1.HostInstalling, v1.ReasonTunnelLost)
	if err := w.Client.Delete(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	w.clock.Advance(time.Since(w.clock.Now())) // the API server writes its own time
	if m := w.reconcile(name, 2); m == nil {
		t.Fatal("the machine does not wait for its Host")
	}
	w.clock.Advance(time.Minute)
	if m := w.reconcile(name, 1); m != nil || w.getHost("h1").Spec.ConsumerRef == nil {
		t.Fatalf("%+v: want the machine gone, and the Host taken until it was cleaned", m)
	}
	w.host("h2", nil)
	former := &unstructured.Unstructured{}
	former.SetGroupVersionKind(clusterapi.GroupVersion.WithKind("Machine"))
	former.SetNamespace(w.namespace)
	former.SetName("m1")
	if err := w.Client.Delete(t.Context(), former); err != nil {
		t.Fatal(err)
	}
	second := w.machine("m1", nil) // with the same name
	w.want(w.reconcile(second, 2), infrav1.ReasonBootstrapping, "h2")
	if w.getHost("h1").Spec.ConsumerRef == nil {
		t.Error("the Host was given back before it was clean")
	}
	w.setHost("h1", v1.HostAvailable, v1.ReasonHostAvailable)
	w.reconcile(second, 1)
	if ref := w.getHost("h1").Spec.ConsumerRef; ref != nil {
		t.Errorf("the Host that is back is held by %+v", ref)
	}
	if ref := w.getHost("h2").Spec.ConsumerRef; ref == nil {
		t.Error("the Host of the machine that is there was given back")
	}
}

func TestADroverMachineThatNamesAForeignMachineAsItsOwnerGetsNoBootstrapData(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.host("h1", nil)
	w.machine("prod", func(_ *infrav1.DroverMachine, spec map[string]any) {
		spec["infrastructureRef"] = testkit.InfrastructureRef("DroverMachine", "another")
	})
	name := types.NamespacedName{Namespace: w.namespace, Name: "prod"}
	for range 3 {
		if _, err := w.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: name}); err != nil {
			t.Fatal(err)
		}
	}
	if host := w.getHost("h1"); host.Spec.ConsumerRef != nil {
		t.Errorf("the Host is taken by %+v, want it to stay free", host.Spec.ConsumerRef)
	}
}

func TestWaitingMachineReportsItsReason(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.host("h1", nil)
	w.Bootstrap(t, w.namespace, "users", "c1", "#cloud-config\nusers: [{name: hush}]\n")
	w.Bootstrap(t, w.namespace, "nameless", "c1", "#cloud-config\nruncmd: [hush]\n")
	w.Bootstrap(t, w.namespace, "others", "c2", bootstrapData)
	w.Bootstrap(t, w.namespace, "pathless", "c1", strings.Replace(bootstrapData, "write_files:", "write_files:\n- {path: '', content: hush}", 1))
	data := func(name string) func(*infrav1.DroverMachine, map[string]any) {
		return func(_ *infrav1.DroverMachine, spec map[string]any) {
			spec["bootstrap"] = map[string]any{"dataSecretName": name}
		}
	}
	for i, c := range []struct {
		change       func(*infrav1.DroverMachine, map[string]any)
		reason, text string
	}{
		{data(""), infrav1.ReasonWaitingForBootstrap, "bootstrap provider"},
		{data("missing"), infrav1.ReasonWaitingForBootstrap, "does not exist"},
		{data("users"), infrav1.ReasonBootstrapRefused, "users"},
		{data("nameless"), infrav1.ReasonBootstrapRefused, "provider-id"},
		{data("pathless"), infrav1.ReasonBootstrapRefused, "files[0]: the path"},
		{data("others"), infrav1.ReasonBootstrapRefused, "label"},
		{func(_ *infrav1.DroverMachine, spec map[string]any) { spec["clusterName"] = "c9" }, infrav1.ReasonWaitingForOwner, "Cluster API"},
		{func(m *infrav1.DroverMachine, _ map[string]any) { m.Labels[clusterapi.LabelControlPlane] = "" }, infrav1.ReasonClusterMissing, "Cluster c1"},
		{func(m *infrav1.DroverMachine, _ map[string]any) {
			m.Spec.HostSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"size": "large"}}
		}, infrav1.ReasonNoHost, "0 are selected"},
	} {
		m := w.reconcile(w.machine(fmt.Sprint("m", i), c.change), 2)
		w.want(m, c.reason, "")
		if ready := meta.FindStatusCondition(m.Status.Conditions, infrav1.ConditionReady); ready == nil || !strings.Contains(ready.Message, c.text) || m.Spec.ProviderID != "" {
			t.Errorf("%d: %+v with provider ID %q, want a message with %q and none", i, ready, m.Spec.ProviderID, c.text)
		}
	}
	if w.getHost("h1").Spec.ConsumerRef != nil {
		t.Error("a machine that cannot be bootstrapped has taken the Host")
	}
	paused := w.machine("paused", func(m *infrav1.DroverMachine, _ map[string]any) {
		m.Annotations = map[string]string{"cluster.x-k8s.io/paused": ""}
	})
	if m := w.reconcile(paused, 2); !meta.IsStatusConditionTrue(m.Status.Conditions, infrav1.ConditionPaused) || m.Spec.ProviderID != "" {
		t.Errorf("%+v: want it paused", m.Status)
	}
}

// TestKilledManagerTakesOnlyOneHost: the provider ID is written, but the Host is not claimed, or another object has
// claimed it in the meantime.
func TestKilledManagerTakesOnlyOneHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.host("h1", nil)
	w.host("h2", nil)
	name := w.machine("m1", func(m *infrav1.DroverMachine, _ map[string]any) {
		m.Spec.ProviderID = "drover://" + w.namespace + "/h2"
	})
	w.want(w.reconcile(name, 2), infrav1.ReasonBootstrapping, "h2")
	other := w.machine("m2", func(m *infrav1.DroverMachine, _ map[string]any) {
		m.Spec.ProviderID = "drover://" + w.namespace + "/h2"
	})
	w.want(w.reconcile(other, 2), infrav1.ReasonNoHost, "")
	w.want(w.reconcile(other, 1), infrav1.ReasonBootstrapping, "h1")
	if w.instructions("h1") == nil || w.instructions("h2") == nil || w.getHost("h2").Spec.ConsumerRef.Name != "m1" {
		t.Error("want each machine to have a Host of its own")
	}
}

// TestHostWaitsForTheNodeOfItsFormerMachine: Cluster API deletes a Node by its name, after the machine's
// infrastructure, and kubeadm refuses to join with the name of an existing Node.
func TestHostWaitsForTheNodeOfItsFormerMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.host("h1", nil)
	former := w.ClusterAPIObject(t, "Machine", w.namespace, "former", nil, map[string]any{"spec": map[string]any{"clusterName": "c1", "providerID": "drover://" + w.namespace + "/h1"}})
	name := w.machine("m1", nil)
	w.want(w.reconcile(name, 2), infrav1.ReasonNoHost, "")
	if err := w.Client.Delete(t.Context(), former); err != nil {
		t.Fatal(err)
	}
	w.want(w.reconcile(name, 1), infrav1.ReasonBootstrapping, "h1")
}

func TestTheFirstControlPlaneInstallsTheAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.host("h1", nil)
	w.host("h2", nil)
	cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "c1"}}
	w.Apply(t, cluster)
	controlPlane := func(m *infrav1.DroverMachine, _ map[string]any) { m.Labels[clusterapi.LabelControlPlane] = "" }
	first := w.machine("m1", controlPlane)
	w.want(w.reconcile(first, 2), infrav1.ReasonWaitingForCluster, "")
	secret := registration.RegistrationSecret(types.NamespacedName{Namespace: w.namespace, Name: "c1"})
	if err := w.Client.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name, Labels: map[string]string{v1.LabelCluster: "c1", v1.LabelSecretKind: v1.SecretKindRegistration}},
		Data:       map[string][]byte{registration.KeyManifest: []byte("the manifest")},
	}); err != nil {
		t.Fatal(err)
	}
	w.want(w.reconcile(first, 1), infrav1.ReasonWaitingForCluster, "") // it may belong to a former Cluster
	owned := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"ownerReferences":[{"apiVersion":"cluster.drover.dev/v1","kind":"Cluster","name":"c1","uid":%q}]}}`, cluster.UID))
	if err := w.Client.Patch(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name}}, owned); err != nil {
		t.Fatal(err)
	}
	m := w.reconcile(first, 1)
	w.want(m, infrav1.ReasonBootstrapping, "h1")
	given := w.instructions("h1")
	if last := given.Files[len(given.Files)-1]; string(last.Content) != "the manifest" || last.Mode != "0600" || len(given.Instructions) != 2 || given.Instructions[1].ID != "agent-"+string(m.UID) || given.Instructions[1].Command[3] != last.Path {
		t.Errorf("the instructions have the file %q and %+v", last.Path, given.Instructions)
	}
	meta.SetStatusCondition(&cluster.Status.Conditions, metav1.Condition{Type: v1.ConditionRegistered, Status: metav1.ConditionTrue, Reason: "Registered"})
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error { return w.Client.Status().Update(ctx, cluster) })
	w.want(w.reconcile(w.machine("m2", controlPlane), 2), infrav1.ReasonBootstrapping, "h2")
	if given := w.instructions("h2"); len(given.Instructions) != 1 {
		t.Errorf("the second control plane installs the agent again: %+v", given.Instructions)
	}
}

func TestMachineReportsTheStateOfItsHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.host("h1", nil)
	name := w.machine("m1", nil)
	w.reconcile(name, 2)
	w.setHost("h1", v1.HostInstalling, v1.ReasonInstructionFailed)
	w.want(w.reconcile(name, 1), infrav1.ReasonBootstrapFailed, "h1")
	w.setHost("h1", v1.HostActive, v1.ReasonActive)
	w.want(w.reconcile(name, 1), infrav1.ReasonProvisioned, "h1")
	if err := w.Client.Delete(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "h1-host-plan"}}); err != nil {
		t.Fatal(err)
	}
	w.setHost("h1", v1.HostCleaning, v1.ReasonCleaning)
	w.want(w.reconcile(name, 1), infrav1.ReasonHostGone, "h1")
	w.setHost("h1", v1.HostAvailable, v1.ReasonHostAvailable)
	w.want(w.reconcile(name, 1), infrav1.ReasonHostGone, "h1")
	if w.instructions("h1") != nil {
		t.Error("a machine that was provisioned was bootstrapped again")
	}
	h := w.getHost("h1")
	if err := w.Client.Delete(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	w.want(w.reconcile(name, 1), infrav1.ReasonHostGone, "h1")
	m := &infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	if err := w.Client.Delete(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if m := w.reconcile(name, 2); m != nil {
		t.Errorf("%+v: want it gone with its Host", m.Status)
	}
}
