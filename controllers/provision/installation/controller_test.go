// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package installation_test

import (
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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/provision/installation"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/hosts"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// ofProd refers to the installation.
var ofProd = provisionv1.EtcdClusterRef{Kind: provisionv1.EtcdOfInstallation, Name: "prod"}

// world is a workspace with a Cluster whose agent has not joined.
type world struct {
	*testkit.Env
	t    *testing.T
	r    *installation.Reconciler
	name types.NamespacedName
	now  time.Time
}

func newWorld(t *testing.T) *world {
	t.Helper()
	env := testkit.Shared(t)
	env.Provision(t)
	w := &world{Env: env, t: t, name: types.NamespacedName{Namespace: env.Workspace(t), Name: "prod"}, now: time.Now()}
	w.r = &installation.Reconciler{
		Hub:      hosts.Hub{Client: env.Client, Live: env.Client, Finalizer: provisionv1.FinalizerNode},
		Recorder: events.NewFakeRecorder(1000), Now: func() time.Time { return w.now },
	}
	w.Apply(t, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: "prod"}})
	w.registration(get(w, "prod", &v1.Cluster{}).UID)
	w.Apply(t, &provisionv1.ClusterInstallation{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: "prod"},
		Spec: provisionv1.ClusterInstallationSpec{
			ClusterName: "prod", Distribution: provisionv1.DistributionK3s, Version: "v1.35.1+k3s1",
			Config: &runtime.RawExtension{Raw: []byte(`{"node-label":["a=b"]}`)}, ServerConfig: &runtime.RawExtension{Raw: []byte(`{"disable":["traefik"]}`)},
			Pools: []provisionv1.HostPool{
				{Name: "servers", Roles: []provisionv1.HostRole{provisionv1.RoleEtcd, provisionv1.RoleControlPlane}, Selector: metav1.LabelSelector{MatchLabels: map[string]string{"for": "server"}}, Replicas: new(int32(1))},
				{Name: "workers", Roles: []provisionv1.HostRole{provisionv1.RoleWorker}, Selector: metav1.LabelSelector{MatchLabels: map[string]string{"for": "worker"}}},
			},
		},
	})
	return w
}

// ofCluster returns the labels of a Secret that Drover created for the Cluster.
func ofCluster(kind string) map[string]string {
	return map[string]string{v1.LabelCluster: "prod", v1.LabelSecretKind: kind}
}

func (w *world) secret(name string, labels, data map[string]string) {
	w.t.Helper()
	if err := w.Client.Create(w.t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: name, Labels: labels}, StringData: data}); err != nil {
		w.t.Fatal(err)
	}
}

// registration creates the Secret with the agent's manifest, as the Cluster controller does for the Cluster with this
// UID.
func (w *world) registration(owner types.UID) {
	w.t.Helper()
	w.Apply(w.t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: w.name.Namespace, Name: registration.RegistrationSecret(w.name).Name, Labels: ofCluster(v1.SecretKindRegistration),
		OwnerReferences: []metav1.OwnerReference{{APIVersion: v1.GroupVersion.String(), Kind: "Cluster", Name: "prod", UID: owner}},
	}, StringData: map[string]string{registration.KeyManifest: "the agent's manifest"}})
}

func get[T client.Object](w *world, name string, object T) T {
	w.t.Helper()
	if err := w.Client.Get(w.t.Context(), types.NamespacedName{Namespace: w.name.Namespace, Name: name}, object); err != nil {
		w.t.Fatal(err)
	}
	return object
}

// host creates a free Host.
func (w *world) host(name, use, address string) {
	w.t.Helper()
	w.Apply(w.t, &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: name, Labels: map[string]string{"for": use}}})
	w.report(name, v1.HostAvailable, v1.ReasonHostAvailable, address)
}

// report writes a Host's status, as its own controller does when its agent reports.
func (w *world) report(name string, state v1.HostState, reason, address string) {
	w.t.Helper()
	h := get(w, name, &v1.Host{})
	h.Status.State, h.Status.Progress = state, nil
	if address != "" {
		h.Status.Machine = &v1.HostMachine{HostProperties: v1.HostProperties{
			Addresses: []string{"fe80::1", address}, Labels: []string{"disk=fast"},
		}}
	}
	if state != v1.HostAvailable {
		given := get(w, name+v1.HostInstructionsSecretSuffix, &corev1.Secret{})
		h.Status.Progress = &v1.HostProgress{Version: string(given.UID) + "." + given.ResourceVersion}
	}
	ready := metav1.ConditionFalse
	if reason == v1.ReasonHostAvailable || reason == v1.ReasonActive {
		ready = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&h.Status.Conditions, metav1.Condition{Type: v1.ConditionReady, Status: ready, Reason: reason, Message: "it is " + reason, ObservedGeneration: h.Generation})
	if err := w.Client.Status().Update(w.t.Context(), h); err != nil {
		w.t.Fatal(err)
	}
}

// reconcile reconciles n times, and returns the object.
func (w *world) reconcile(n int) *provisionv1.ClusterInstallation {
	w.t.Helper()
	for range n {
		if _, err := w.r.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: w.name}); err != nil {
			w.t.Fatal(err)
		}
	}
	return get(w, "prod", &provisionv1.ClusterInstallation{})
}

// instructions returns the instructions of a Host, or nil if it has none.
func (w *world) instructions(host string) *protocol.HostInstructions {
	w.t.Helper()
	secret := &corev1.Secret{}
	err := w.Client.Get(w.t.Context(), types.NamespacedName{Namespace: w.name.Namespace, Name: host + v1.HostInstructionsSecretSuffix}, secret)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		w.t.Fatal(err)
	}
	given := &protocol.HostInstructions{}
	if err := json.Unmarshal(secret.Data[v1.HostInstructionsKey], given); err != nil {
		w.t.Fatal(err)
	}
	return given
}

func want(t *testing.T, i *provisionv1.ClusterInstallation, summary, reason, message string) {
	t.Helper()
	ready := meta.FindStatusCondition(i.Status.Conditions, provisionv1.ConditionReady)
	if i.Status.Summary != summary || ready == nil || ready.Reason != reason || !strings.Contains(ready.Message, message) || ready.ObservedGeneration != i.Generation {
		t.Errorf("the status is %s %+v, want %s %s %s", i.Status.Summary, ready, summary, reason, message)
	}
}

func TestHostsBecomeACluster(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	want(t, w.reconcile(2), "0/0", provisionv1.ReasonTooFewHosts, "1 more free Hosts that the pools select are needed")
	w.host("s1", "server", "10.1.0.1")
	w.host("w1", "worker", "10.1.0.2")
	w.host("other", "nothing", "10.1.0.3")
	i := w.reconcile(3)
	want(t, i, "0/2", provisionv1.ReasonHostsWaiting, "0 of 2 hosts are ready; host s1 is given its instructions")
	if w.instructions("w1") != nil || get(w, "w1", &v1.Host{}).Spec.ConsumerRef.Name != "prod" || get(w, "other", &v1.Host{}).Spec.ConsumerRef != nil {
		t.Error("the worker has instructions before there is a cluster, is not taken, or a Host is taken that no pool selects")
	}
	if waiting := i.Status.Waiting; len(waiting) != 2 || waiting[1].Message != "waits for host s1, which begins the cluster" {
		t.Errorf("waiting: %+v", waiting)
	}
	w.report("s1", v1.HostInstalling, v1.ReasonInstructionFailed, "")
	want(t, w.reconcile(1), "0/2", provisionv1.ReasonHostsWaiting, "host s1 has failed: it is InstructionFailed")
	w.report("s1", v1.HostActive, v1.ReasonActive, "")
	w.reconcile(2)
	server, worker := w.instructions("s1"), w.instructions("w1")
	for file, words := range map[*protocol.HostInstructions][]string{
		server: {"cluster-init: true", "disable:\n- traefik", "node-label:\n- a=b\n- disk=fast", "node-taint:\n- node-role.kubernetes.io/etcd:NoExecute", "node-name: s1"},
		worker: {"server: https://10.1.0.1:6443", "node-name: w1", "node-label:\n- a=b\n- disk=fast"},
	} {
		for _, word := range words {
			if config := string(file.Files[0].Content); !strings.Contains(config, word) {
				t.Errorf("%q is not in\n%s", word, config)
			}
		}
	}
	if strings.Contains(string(worker.Files[0].Content), "traefik") || server.Owner != "ClusterInstallation/prod" || !slices.ContainsFunc(server.Files, func(f protocol.HostFile) bool { return string(f.Content) == "the agent's manifest" }) {
		t.Errorf("the worker has an option of servers, or the server no manifest: %+v", server)
	}
	w.report("w1", v1.HostActive, v1.ReasonActive, "")
	w.secret(registration.AgentSecret(w.name).Name, ofCluster(v1.SecretKindAgent), nil) // the agent has joined
	w.reconcile(1)
	w.report("s1", v1.HostActive, v1.ReasonActive, "")
	i = w.reconcile(2)
	want(t, i, "2/2", provisionv1.ReasonInstalled, "2 hosts have v1.35.1+k3s1")
	before := i.ResourceVersion
	if i = w.reconcile(3); i.ResourceVersion != before || string(w.instructions("s1").Files[1].Content) != "" {
		t.Error("an installation that is as it is to be was written again, or the manifest is still there")
	}
}

func TestDeletedInstallationGivesItsHostsBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.host("s1", "server", "10.1.0.1")
	w.host("w1", "worker", "10.1.0.2")
	w.reconcile(4)
	w.report("s1", v1.HostActive, v1.ReasonActive, "")
	i := w.reconcile(2)
	cluster := get(w, "prod", &v1.Cluster{})
	cluster.Spec.DeletionProtection = true
	if err := w.Client.Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	if err := w.Client.Delete(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	if i = w.reconcile(1); !meta.IsStatusConditionTrue(i.Status.Conditions, provisionv1.ConditionStalled) || w.instructions("s1") == nil {
		t.Errorf("a protected cluster is destroyed: %+v", i.Status.Conditions)
	}
	cluster.Spec.DeletionProtection = false
	if err := w.Client.Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	w.reconcile(1)
	if w.instructions("s1") != nil || w.instructions("w1") != nil {
		t.Error("a Host has its instructions still")
	}
	w.report("s1", v1.HostAvailable, v1.ReasonHostAvailable, "")
	away := get(w, "w1", &v1.Host{})
	away.Status.State = v1.HostCleaning
	meta.SetStatusCondition(&away.Status.Conditions, metav1.Condition{Type: v1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1.ReasonTunnelLost, ObservedGeneration: away.Generation})
	if err := w.Client.Status().Update(t.Context(), away); err != nil {
		t.Fatal(err)
	}
	want(t, w.reconcile(1), i.Status.Summary, provisionv1.ReasonGivingBack, "1 hosts are being cleaned")
	w.now = time.Now().Add(time.Minute)
	for range 2 {
		if _, err := w.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: w.name}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Client.Get(t.Context(), w.name, i); !apierrors.IsNotFound(err) {
		t.Errorf("the installation is there still: %v", err)
	}
	if get(w, "s1", &v1.Host{}).Spec.ConsumerRef != nil || get(w, "w1", &v1.Host{}).Spec.ConsumerRef == nil {
		t.Error("the clean Host was not given back, or the one that is away was")
	}
	w.report("w1", v1.HostAvailable, v1.ReasonHostAvailable, "")
	if _, err := w.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: w.name}); err != nil {
		t.Fatal(err)
	}
	if get(w, "w1", &v1.Host{}).Spec.ConsumerRef != nil {
		t.Error("a Host that has come back stays taken")
	}
}

func TestImpossibleInstallationsAreReportedWithAReason(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change  func(*provisionv1.ClusterInstallationSpec)
		message string
	}{
		"an option that Drover decides": {func(s *provisionv1.ClusterInstallationSpec) { s.Config.Raw = []byte(`{"token":"hush-hush"}`) }, "spec.config.token cannot be set"},
		"an option that adds to it":     {func(s *provisionv1.ClusterInstallationSpec) { s.ServerConfig.Raw = []byte(`{"server+":"x"}`) }, "spec.serverConfig.server+ cannot be set"},
		"a schedule that is none": {func(s *provisionv1.ClusterInstallationSpec) { s.Etcd.Schedule = "every day" },
			"no snapshots of etcd would be made: spec.etcd.schedule: "},
		"a schedule that is switched off": {func(s *provisionv1.ClusterInstallationSpec) {
			s.Etcd.Schedule, s.ServerConfig.Raw = "@daily", []byte(`{"etcd_disable-snapshots":true}`)
		}, "no snapshots of etcd would be made: spec.serverConfig has etcd-disable-snapshots beside spec.etcd.schedule"},
		"an argument that Drover decides": {func(s *provisionv1.ClusterInstallationSpec) {
			s.Config.Raw = []byte(`{"kubelet-arg":["healthz-port=0"]}`)
		}, "spec.config.kubelet-arg cannot have the argument healthz-port"},
		"a CA that is none": {func(s *provisionv1.ClusterInstallationSpec) {
			s.Etcd.S3 = &provisionv1.EtcdS3{Bucket: "b", CredentialsSecretName: "store"}
		}, "ca.crt of Secret store has no certificate that can be read"},
		"a Secret that is not there": {func(s *provisionv1.ClusterInstallationSpec) { s.RegistriesSecretName = "none" }, "there is no Secret none"},
		"a store's key in the open": {func(s *provisionv1.ClusterInstallationSpec) {
			s.ServerConfig.Raw = []byte(`{"etcd-s3-secret-key":"hush-hush"}`)
		}, "spec.serverConfig.etcd-s3-secret-key cannot be set"},
		"a store without its keys": {func(s *provisionv1.ClusterInstallationSpec) {
			s.Etcd.S3 = &provisionv1.EtcdS3{Bucket: "b", CredentialsSecretName: "ours"}
		}, "Secret ours has no key accessKey"},
		"a Secret that is not for it": {func(s *provisionv1.ClusterInstallationSpec) { s.RegistriesSecretName = "mine" }, "does not have the label provision.cluster.drover.dev/use"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.secret("mine", nil, map[string]string{"registries.yaml": "hush-hush"})
			w.secret("store", map[string]string{provisionv1.LabelUse: "true"},
				map[string]string{"accessKey": "a", "secretKey": "hush-hush", "ca.crt": "hush-hush"})
			w.secret("ours", map[string]string{provisionv1.LabelUse: "true"}, map[string]string{"secretKey": "hush-hush"})
			i := get(w, "prod", &provisionv1.ClusterInstallation{})
			tt.change(&i.Spec)
			if err := w.Client.Update(t.Context(), i); err != nil {
				t.Fatal(err)
			}
			i = w.reconcile(2)
			stalled := meta.FindStatusCondition(i.Status.Conditions, provisionv1.ConditionStalled)
			if stalled == nil || !strings.Contains(stalled.Message, tt.message) || strings.Contains(fmt.Sprint(i.Status), "hush") {
				t.Errorf("stalled: %+v, want %s", stalled, tt.message)
			}
		})
	}
}

func TestForeignSecretIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, labels := range map[string]map[string]string{
		"without labels":             nil,
		"that no policy knows":       {"provision.cluster.drover.dev/installation": "prod"},
		"of another installation":    {v1.LabelSecretKind: v1.SecretKindProvision, "provision.cluster.drover.dev/installation": "other"},
		"of no installation at all":  {v1.LabelSecretKind: v1.SecretKindProvision},
		"of the kind of another one": {v1.LabelSecretKind: v1.SecretKindAgent, "provision.cluster.drover.dev/installation": "prod"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.host("s1", "server", "10.1.0.1")
			w.secret("prod-provision", labels, map[string]string{"state.json": `{"token":"theirs","agentToken":"theirs"}`})
			i := w.reconcile(3)
			if stalled := meta.FindStatusCondition(i.Status.Conditions, provisionv1.ConditionStalled); stalled == nil || stalled.Reason != provisionv1.ReasonSecretConflict {
				t.Errorf("stalled: %+v", stalled)
			}
			if got := get(w, "prod-provision", &corev1.Secret{}); len(got.Data) != 1 || w.instructions("s1") != nil {
				t.Errorf("the Secret was changed, or a host has instructions: %+v", got.Data)
			}
		})
	}
}

func TestManifestOfAFormerClusterIsNotInstalled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.host("s1", "server", "10.1.0.1")
	if err := w.Client.Delete(t.Context(), get(w, registration.RegistrationSecret(w.name).Name, &corev1.Secret{})); err != nil {
		t.Fatal(err)
	}
	w.registration("former")
	want(t, w.reconcile(3), "", provisionv1.ReasonClusterMissing, "waiting for the manifest of the agent")
	if get(w, "s1", &v1.Host{}).Spec.ConsumerRef != nil {
		t.Error("a host was taken to be given the manifest of a former Cluster, want it to be free")
	}
}

func TestHostWithUnreadableInstructionsDelaysNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.host("s1", "server", "10.1.0.1")
	w.host("w1", "worker", "10.1.0.2")
	w.reconcile(4)
	w.report("s1", v1.HostActive, v1.ReasonActive, "10.1.0.1")
	w.reconcile(2)
	w.report("w1", v1.HostActive, v1.ReasonActive, "10.1.0.2")
	w.reconcile(1)
	given := get(w, "w1-host-plan", &corev1.Secret{})
	for key := range given.Annotations {
		if strings.HasSuffix(key, "/plan-note") {
			given.Annotations[key] = "{"
		}
	}
	if err := w.Client.Update(t.Context(), given); err != nil {
		t.Fatal(err)
	}
	w.host("w2", "worker", "10.1.0.3")
	i := w.reconcile(4)
	if w.instructions("w2") == nil {
		t.Errorf("host w2 has no instructions, want it to join: %+v", i.Status.Conditions)
	}
	want(t, i, "1/3", provisionv1.ReasonHostsWaiting, "host w1 cannot be changed: the annotation of Secret w1-host-plan was changed")
	if now := get(w, "w1-host-plan", &corev1.Secret{}); now.ResourceVersion != given.ResourceVersion {
		t.Error("the instructions of w1 were changed, want them to be left as they are")
	}
}

// stalled returns the Stalled condition of the installation, after n reconciles.
func (w *world) stalled(n int) metav1.Condition {
	w.t.Helper()
	stalled := meta.FindStatusCondition(w.reconcile(n).Status.Conditions, provisionv1.ConditionStalled)
	if stalled == nil {
		return metav1.Condition{}
	}
	return *stalled
}

func TestOnlyOneInstallationMakesACluster(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.reconcile(2)
	second := get(w, "prod", &provisionv1.ClusterInstallation{}).DeepCopy()
	second.ObjectMeta = metav1.ObjectMeta{Namespace: second.Namespace, Name: "zweite"}
	if err := w.Client.Create(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	w.host("s1", "server", "10.1.0.1")
	w.name.Name = "zweite"
	for range 2 {
		if _, err := w.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: w.name}); err != nil {
			t.Fatal(err)
		}
	}
	second = get(w, "zweite", second)
	if c := meta.FindStatusCondition(second.Status.Conditions, provisionv1.ConditionStalled); c == nil || c.Reason != provisionv1.ReasonClusterTaken || !strings.Contains(c.Message, "ClusterInstallation prod already makes") {
		t.Errorf("the second one: %+v", second.Status.Conditions)
	}
	if get(w, "s1", &v1.Host{}).Spec.ConsumerRef != nil {
		t.Error("it has taken a Host")
	}
}

func TestClusterWithAnAgentIsNotMadeAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.secret(registration.AgentSecret(w.name).Name, ofCluster(v1.SecretKindAgent), nil)
	w.host("s1", "server", "10.1.0.1")
	if c := w.stalled(3); c.Reason != provisionv1.ReasonClusterTaken || !strings.Contains(c.Message, "has an agent already") {
		t.Errorf("stalled: %+v", c)
	}
}

func TestForeignSecretsDoNotIdentifyAnAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.host("s1", "server", "10.1.0.1")
	w.secret(registration.AgentSecret(w.name).Name, nil, nil) // no agent has joined with it
	secret := get(w, registration.RegistrationSecret(w.name).Name, &corev1.Secret{})
	secret.Labels = nil
	if err := w.Client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if c := w.stalled(3); c.Reason != provisionv1.ReasonSecretConflict || !strings.Contains(c.Message, "Secret prod-registration exists and is not Drover's") {
		t.Errorf("stalled: %+v", c)
	}
	if get(w, "s1", &v1.Host{}).Spec.ConsumerRef != nil {
		t.Error("a host was given the manifest of another")
	}
	secret.Labels = ofCluster(v1.SecretKindRegistration)
	if err := w.Client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	w.reconcile(2)
	if get(w, "s1", &v1.Host{}).Spec.ConsumerRef == nil {
		t.Error("the installation did not go on with Drover's Secret")
	}
}

func TestMachinesBehindNATJoinWithTheirHostsInternalAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, use := range map[string]string{"s1": "server", "w1": "worker"} {
		w.host(name, use, "10.0.2.15") // the address of a NAT
		h := get(w, name, &v1.Host{})
		h.Spec.InternalAddress = map[string]string{"s1": "192.168.56.11", "w1": "192.168.56.12"}[name]
		if err := w.Client.Update(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		w.report(name, v1.HostAvailable, v1.ReasonHostAvailable, "10.0.2.15")
	}
	w.reconcile(5)
	w.report("s1", v1.HostActive, v1.ReasonActive, "")
	w.reconcile(3)
	for name, words := range map[string][]string{"s1": {"node-ip: 192.168.56.11"}, "w1": {"node-ip: 192.168.56.12", "server: https://192.168.56.11:6443"}} {
		given := w.instructions(name)
		if given == nil {
			t.Fatalf("%s has no instructions", name)
		}
		for _, word := range words {
			if config := string(given.Files[0].Content); !strings.Contains(config, word) {
				t.Errorf("%s: %q is not in\n%s", name, word, config)
			}
		}
	}
}

func TestHostsOfAFormerInstallationAreGivenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.host("w1", "worker", "10.1.0.2")
	host := get(w, "w1", &v1.Host{})
	host.Spec.ConsumerRef = &v1.HostConsumerRef{APIVersion: provisionv1.GroupVersion.String(), Kind: installation.Kind, Name: "prod", UID: "former"}
	if err := w.Client.Update(t.Context(), host); err != nil {
		t.Fatal(err)
	}
	w.report("w1", v1.HostAvailable, v1.ReasonHostAvailable, "")
	w.reconcile(2)
	if ref := get(w, "w1", &v1.Host{}).Spec.ConsumerRef; ref != nil && ref.UID == "former" {
		t.Error("it is taken by the former one still")
	}
}

func TestHostKeepsInstructionsOfAFormerInstallation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.host("s1", "server", "10.1.0.1")
	w.reconcile(4)
	w.report("s1", v1.HostActive, v1.ReasonActive, "")
	w.reconcile(1)
	given := get(w, "s1-host-plan", &corev1.Secret{}).UID
	// A restored hub has the installation with another UID.
	i := get(w, "prod", &provisionv1.ClusterInstallation{})
	i.Finalizers = nil
	if err := errors.Join(w.Client.Update(t.Context(), i), w.Client.Delete(t.Context(), i)); err != nil {
		t.Fatal(err)
	}
	again := &provisionv1.ClusterInstallation{ObjectMeta: metav1.ObjectMeta{Namespace: i.Namespace, Name: i.Name}, Spec: i.Spec}
	for _, there := range []bool{false, true} {
		if there {
			w.Apply(t, again)
		}
		for range 3 {
			if _, err := w.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: w.name}); err != nil {
				t.Fatal(err)
			}
		}
		if now := get(w, "s1-host-plan", &corev1.Secret{}).UID; now != given {
			t.Errorf("the installation is there %t: the instructions were replaced", there)
		}
	}
	status := get(w, "prod", &provisionv1.ClusterInstallation{}).Status
	if c := meta.FindStatusCondition(status.Conditions, provisionv1.ConditionStalled); c == nil || !strings.Contains(c.Message, "former") {
		t.Errorf("%+v: want a condition that says who has the Host", status)
	}
}

func TestHostThatRefusesInstructionsDelaysNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.host("s1", "server", "10.1.0.1")
	w.host("w1", "worker", "10.1.0.2")
	w.host("w2", "worker", "10.1.0.3")
	w.reconcile(4)
	foreign := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: "w1-host-plan"}, Type: v1.SecretTypeHostInstructions}
	if err := w.Client.Create(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	w.report("s1", v1.HostActive, v1.ReasonActive, "")
	i := w.reconcile(2)
	if w.instructions("w2") == nil {
		t.Error("w2 has no instructions")
	}
	if !slices.ContainsFunc(i.Status.Waiting, func(h provisionv1.WaitingHost) bool {
		return h.Host == "w1" && strings.Contains(h.Message, "instructions that Drover did not make")
	}) {
		t.Errorf("waiting: %+v", i.Status.Waiting)
	}
}

func TestMinorVersionsAreNotSkipped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.host("s1", "server", "10.1.0.1")
	w.reconcile(4)
	w.report("s1", v1.HostActive, v1.ReasonActive, "")
	i := w.reconcile(2)
	i.Spec.Version = "v1.37.0+k3s1"
	if err := w.Client.Update(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	if c := w.stalled(1); c.Reason != provisionv1.ReasonSpecInvalid || !strings.Contains(c.Message, "more than one minor version above the v1.35.1+k3s1 of server s1") {
		t.Errorf("stalled: %+v", c)
	}
}

func TestRotationCountsCanOnlyRise(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := get(w, "prod", &provisionv1.ClusterInstallation{})
	i.Spec.CertificateRotation, i.Spec.EncryptionKeyRotation = 2, 2
	if err := w.Client.Update(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	for field, lower := range map[string]func(*provisionv1.ClusterInstallationSpec){
		"certificateRotation":   func(s *provisionv1.ClusterInstallationSpec) { s.CertificateRotation = 1 },
		"encryptionKeyRotation": func(s *provisionv1.ClusterInstallationSpec) { s.EncryptionKeyRotation = 0 },
	} {
		changed := i.DeepCopy()
		lower(&changed.Spec)
		if err := w.Client.Update(t.Context(), changed); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), field+" can only be raised") {
			t.Errorf("%s: %v", field, err)
		}
	}
	if c := w.stalled(3); c.Reason != provisionv1.ReasonSpecInvalid || !strings.Contains(c.Message, "secrets-encryption: true") {
		t.Errorf("a rotation of keys that there are none of: %+v", c)
	}
}

func TestRequestedSnapshotIsMade(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.host("s1", "server", "10.1.0.1")
	snap := &provisionv1.EtcdSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: w.name.Namespace, Name: "before"}, Spec: provisionv1.EtcdSnapshotSpec{ClusterRef: ofProd}}
	if err := w.Client.Create(t.Context(), snap); err != nil {
		t.Fatal(err)
	}
	// phase checks the phase, the reason and a part of the message.
	phase := func(want provisionv1.EtcdSnapshotPhase, reason, message string) {
		t.Helper()
		snap = get(w, "before", snap)
		ready := meta.FindStatusCondition(snap.Status.Conditions, provisionv1.ConditionReady)
		if snap.Status.Phase != want || ready == nil || ready.Reason != reason || !strings.Contains(ready.Message, message) {
			t.Errorf("%s, %+v, want %s, %s, %s", snap.Status.Phase, ready, want, reason, message)
		}
	}
	phase(provisionv1.SnapshotPending, provisionv1.ReasonPending, "waiting for its cluster")
	w.reconcile(4)
	phase(provisionv1.SnapshotPending, provisionv1.ReasonWaiting, "waits for a server with etcd")
	w.report("s1", v1.HostActive, v1.ReasonActive, "")
	w.reconcile(2)
	phase(provisionv1.SnapshotRunning, provisionv1.ReasonRunning, "host s1 is making the snapshot")
	given := w.instructions("s1")
	if last := given.Instructions[len(given.Instructions)-1]; last.ID != "snapshot-"+string(snap.UID) || last.Command[len(last.Command)-1] != snap.Status.Snapshot || !strings.HasPrefix(snap.Status.Snapshot, "before-") {
		t.Errorf("the instruction is %+v, the snapshot %s", last, snap.Status.Snapshot)
	}
	w.report("s1", v1.HostActive, v1.ReasonActive, "")
	w.reconcile(2)
	phase(provisionv1.SnapshotSucceeded, provisionv1.ReasonSucceeded, "host s1 has made the snapshot")
	version := snap.ResourceVersion
	w.report("s1", v1.HostActive, v1.ReasonActive, "")
	w.reconcile(3)
	if get(w, "before", snap).ResourceVersion != version || len(w.instructions("s1").Instructions) == len(given.Instructions) {
		t.Error("it is written again, or its instruction is there still")
	}
	snap.Spec.ClusterRef.Name = "other"
	if err := w.Client.Update(t.Context(), snap); !apierrors.IsInvalid(err) {
		t.Errorf("its spec is changed: %v", err)
	}
}

func TestNodeWithoutAHostIsReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := get(w, "prod", &provisionv1.ClusterInstallation{})
	i.Spec.Pools = i.Spec.Pools[:1] // servers
	if err := w.Client.Update(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	w.host("s1", "server", "10.1.0.1")
	w.reconcile(4)
	w.report("s1", v1.HostActive, v1.ReasonActive, "")
	for nodes, want := range map[int32]string{1: "1 hosts have v1.35.1+k3s1", 2: "Cluster prod has 2 nodes, and 1 of them are hosts"} {
		cluster := get(w, "prod", &v1.Cluster{})
		cluster.Status.Nodes = &v1.NodeCount{Total: nodes, Ready: nodes, Summary: "x"}
		if err := w.Client.Status().Update(t.Context(), cluster); err != nil {
			t.Fatal(err)
		}
		ready := meta.FindStatusCondition(w.reconcile(2).Status.Conditions, provisionv1.ConditionReady)
		if ready.Status != metav1.ConditionTrue || !strings.Contains(ready.Message, want) || (nodes == 1) == strings.Contains(ready.Message, "nodes") {
			t.Errorf("with %d nodes and one host: %+v, want %q", nodes, ready, want)
		}
	}
}
