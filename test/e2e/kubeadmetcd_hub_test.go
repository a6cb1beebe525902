// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
	"github.com/drover-dev/drover/internal/provision/config"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// clusterAPIKinds are the kinds of Cluster API without their schemas. None of its controllers run here.
const clusterAPIKinds = `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: @PLURAL@.@GROUP@}, spec: {group: @GROUP@, scope: Namespaced,
  names: {kind: @KIND@, listKind: @KIND@List, plural: @PLURAL@, singular: @SINGULAR@},
  versions: [{name: v1beta2, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}
---
`

// makePlane creates a control plane with etcd using the real kubeadm, and starts the stand-in for a kubelet. The first
// machine creates the CAs. etcd has three members from the start, so no member has to join.
const makePlane = `set -e
name=$(hostname) config=/run/kubeadm/kubeadm.yaml
address=$(ip -4 -oneline address show dev eth0 | sed 's|.* inet \([0-9.]*\)/.*|\1|')
sed -i "s/@NAME@/$name/; s/@ADDRESS@/$address/" $config
mkdir -p /usr/local/bin /etc/kubernetes
cp @ETCDCTL@ @ETCDUTL@ /usr/local/bin
if test $name != s1; then
	until test -e @SHARED@/pki.tar; do sleep 0.2; done
	tar --extract --file @SHARED@/pki.tar --directory /etc/kubernetes
fi
kubeadm init phase certs all --config $config
if test $name = s1; then
	(cd /etc/kubernetes && tar --create --file @SHARED@/pki.part pki/ca.crt pki/ca.key pki/sa.key pki/sa.pub pki/front-proxy-ca.crt pki/front-proxy-ca.key pki/etcd/ca.crt pki/etcd/ca.key)
	mv @SHARED@/pki.part @SHARED@/pki.tar
fi
for phase in "kubeconfig admin" "kubeconfig super-admin" "etcd local" "control-plane apiserver"; do kubeadm init phase $phase --config $config; done
sed -i 's|--initial-cluster=.*|--initial-cluster=s1=https://10.77.0.1:2380,s2=https://10.77.0.2:2380,s3=https://10.77.0.3:2380|' /etc/kubernetes/manifests/etcd.yaml
mkdir -p /var/lib/kubelet && touch /var/lib/kubelet/config.yaml
sh @KUBELET@ @SHARED@/logs/$name >/dev/null 2>&1 </dev/null &
export KUBECONFIG=/etc/kubernetes/super-admin.conf
until kubectl --server https://$address:6443 get --raw /readyz >/dev/null 2>&1; do sleep 1; done
if test $name = s1; then kubectl create clusterrolebinding kubeadm:cluster-admins --clusterrole=cluster-admin --group=kubeadm:cluster-admins; fi
echo success >/run/cluster-api/bootstrap-success.complete
`

// kubeadmPlanes is a hub with three Hosts that are control planes of one cluster.
type kubeadmPlanes struct {
	*k3s
	planes  []*controlPlane
	kubeadm *lab.Tool
	etcd    *lab.Tool
	cluster types.NamespacedName
	// scheduled is a snapshot that only exists in a bucket.
	scheduled string
}

// TestLong_TheEtcdOfKubeadmControlPlanesIsRestoredThroughTheHub uses three control planes, each in a separate network
// that cannot be reached from outside. Certificates and manifests come from the real kubeadm, and etcd and API servers
// are real. The hub, the host agents, the cluster's agent and the connections through the hub are real. The test
// creates the objects of Cluster API itself. TestLong_ClusterAPIMakesAClusterOfHosts tests with its controllers.
func TestLong_TheEtcdOfKubeadmControlPlanesIsRestoredThroughTheHub(t *testing.T) {
	t.Parallel()
	k := startKubeadmPlanes(t)
	k.step("three Hosts become control planes", k.make)
	k.step("a snapshot is made", k.save)
	k.step("the schedule makes one, which is copied to a bucket, and its file is lost", k.saveAway)
	k.step("objects are deleted, and the data of all etcds are destroyed", k.destroyAll)
	k.step("the snapshot is restored, though the hub is killed in the middle", k.bringBack)
	k.step("objects of the snapshot are back, later ones are not, and the tunnel is back", k.back)
}

func startKubeadmPlanes(t *testing.T) *kubeadmPlanes {
	t.Helper()
	kubeadm, err := lab.KubeadmTool(t.Context(), os.Stderr)
	if err != nil {
		t.Skipf("kubeadm cannot be built here: %v", err)
	}
	tools, err := lab.EtcdTools(t.Context(), os.Stderr)
	if err != nil {
		t.Skipf("the tools of etcd cannot be built here: %v", err)
	}
	if _, err := lab.S3Tool(t.Context(), os.Stderr); err != nil {
		t.Skipf("the S3 server cannot be built here: %v", err)
	}
	kinds := ""
	for kind, group := range map[string]string{"Cluster": "cluster.x-k8s.io", "Machine": "cluster.x-k8s.io", clusterapi.KubeadmControlPlane: "controlplane.cluster.x-k8s.io"} {
		singular := strings.ToLower(kind)
		kinds += strings.NewReplacer("@KIND@", kind, "@GROUP@", group, "@SINGULAR@", singular, "@PLURAL@", singular+"s").Replace(clusterAPIKinds)
	}
	provisioner := framework.Provisioner{
		Folders: []string{"config/clusterapi"}, Configure: func(c *config.Config) { c.ClusterAPI.Enabled = true },
	}
	k := &kubeadmPlanes{
		k3s: startWithMachines(t, []byte(kinds), provisioner), kubeadm: kubeadm, etcd: tools,
		cluster: types.NamespacedName{Namespace: teamSpace, Name: "web"},
	}
	t.Cleanup(func() {
		for _, p := range k.planes {
			if t.Failed() {
				t.Logf("%s\netcd:\n%s\nAPI server:\n%s", p.name, tail(filepath.Join(p.dir, "etcd.log")), tail(filepath.Join(p.dir, "kube-apiserver.log")))
			}
		}
	})
	return k
}

// ofClusterAPI creates an object of Cluster API.
func (k *kubeadmPlanes) ofClusterAPI(t *testing.T, group, kind, name string, labels map[string]string, content map[string]any) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{Object: content}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1beta2", Kind: kind})
	object.SetNamespace(teamSpace)
	object.SetName(name)
	object.SetLabels(labels)
	create(t, k.hub.Plane, object)
	return object
}

// make creates three Hosts, and the objects that Cluster API and its providers for kubeadm would create.
func (k *kubeadmPlanes) make(t *testing.T) {
	for n := range 3 {
		k.plane(t, fmt.Sprint("s", n+1))
	}
	create(t, k.hub.Plane, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: "web"}})
	create(t, k.hub.Plane, &v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: "demo"}, Spec: v1.ClusterRoleTemplateBindingSpec{
		ClusterTarget: v1.ClusterTarget{ClusterName: "web"}, RoleTemplateName: "cluster-owner", Subject: v1.Subject{Kind: "User", Name: "hub:demo"}}})
	owner := k.ofClusterAPI(t, "cluster.x-k8s.io", "Cluster", "web", nil, map[string]any{
		"spec":   map[string]any{"infrastructureRef": testkit.InfrastructureRef("DroverCluster", "web"), "controlPlaneRef": map[string]any{"kind": clusterapi.KubeadmControlPlane, "name": "web"}},
		"status": map[string]any{"initialization": map[string]any{"infrastructureProvisioned": true}},
	})
	k.ofClusterAPI(t, "controlplane.cluster.x-k8s.io", clusterapi.KubeadmControlPlane, "web", nil, map[string]any{})
	create(t, k.hub.Plane, &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: "web", OwnerReferences: testkit.OwnedBy(owner)},
		Spec: infrav1.DroverClusterSpec{ControlPlaneEndpoint: infrav1.APIEndpoint{Host: addressOf(1), Port: 6443}}})
	create(t, k.hub.Plane, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: "data", Labels: map[string]string{clusterapi.LabelCluster: "web"}},
		Type: "cluster.x-k8s.io/secret", Data: map[string][]byte{"value": k.bootstrap(t), "format": []byte("cloud-config")}})
	labels := map[string]string{clusterapi.LabelCluster: "web", clusterapi.LabelControlPlane: ""}
	for n := range 3 {
		name := fmt.Sprint("web-", n)
		machine := k.ofClusterAPI(t, "cluster.x-k8s.io", "Machine", name, labels, map[string]any{"spec": map[string]any{
			"clusterName": "web", "bootstrap": map[string]any{"dataSecretName": "data"},
			"infrastructureRef": testkit.InfrastructureRef("DroverMachine", name),
		}})
		create(t, k.hub.Plane, &infrav1.DroverMachine{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: name, Labels: labels, OwnerReferences: testkit.OwnedBy(machine)}})
	}
	k.provisioned(t)
	k.agent(t)
	k.system.await(t, k.cluster, 2*time.Minute, framework.Ready)
}

// plane turns a machine into a Host.
func (k *kubeadmPlanes) plane(t *testing.T, name string) {
	t.Helper()
	k.join(t, name)
	m := k.machines[name]
	p := &controlPlane{name: name, address: addressOf(k.made), dir: filepath.Join(k.shared, "logs", name), process: m.process, tools: m.path("tools")}
	problems := os.MkdirAll(p.dir, 0o700)
	for program, path := range map[string]string{"etcd": k.assets[lab.Etcd], "kube-apiserver": k.assets[lab.APIServer], "kubectl": k.programs.Kubectl, "kubeadm": k.kubeadm.Assets[lab.Kubeadm]} {
		_ = os.Remove(filepath.Join(p.tools, program))
		problems = errors.Join(problems, os.Symlink(path, filepath.Join(p.tools, program)))
	}
	unshare := strconv.Itoa(m.process.PID())
	children, err := os.ReadFile("/proc/" + unshare + "/task/" + unshare + "/children")
	if problems = errors.Join(problems, err); problems != nil {
		t.Fatal(problems)
	}
	p.pid = strings.Fields(string(children))[0]
	k.planes = append(k.planes, p)
}

// bootstrap creates what the bootstrap provider would create.
func (k *kubeadmPlanes) bootstrap(t *testing.T) []byte {
	t.Helper()
	kubelet, err := filepath.Abs("testdata/kubelet.sh")
	if err != nil {
		t.Fatal(err)
	}
	script := strings.NewReplacer("@ETCDCTL@", k.etcd.Assets[lab.Etcdctl], "@ETCDUTL@", k.etcd.Assets[lab.Etcdutl], "@SHARED@", k.shared, "@KUBELET@", kubelet).Replace(makePlane)
	kubeadm := strings.NewReplacer("@VERSION@", k.kubeadm.Version, "nodeRegistration: {", "nodeRegistration: {kubeletExtraArgs: [{name: provider-id, value: \"drover://{{ ds.meta_data.instance_id }}\"}], ").Replace(initialConfig)
	raw, err := yaml.Marshal(map[string]any{
		"write_files": []map[string]any{{"path": "/run/kubeadm/kubeadm.yaml", "permissions": "0600", "content": kubeadm}, {"path": "/run/kubeadm/make.sh", "permissions": "0700", "content": script}},
		"runcmd":      []string{"sh /run/kubeadm/make.sh"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte("## template: jinja\n#cloud-config\n"), raw...)
}

// provisioned waits until all machines are provisioned and no task is left.
func (k *kubeadmPlanes) provisioned(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, 5*time.Minute, func(ctx context.Context) error {
		list := &infrav1.DroverMachineList{}
		if err := k.hub.Client.List(ctx, list, client.InNamespace(teamSpace)); err != nil {
			return err
		}
		for _, m := range list.Items {
			if !meta.IsStatusConditionTrue(m.Status.Conditions, infrav1.ConditionReady) || len(m.Spec.Tasks) > 0 || len(m.Status.Tasks) > 0 {
				return fmt.Errorf("%s on %s: %+v, tasks %+v", m.Name, m.Status.HostName, m.Status.Conditions, m.Status.Tasks)
			}
		}
		return nil
	})
}

// agent starts the agent of the cluster with the settings of its Deployment, in the network of the first machine.
func (k *kubeadmPlanes) agent(t *testing.T) {
	t.Helper()
	one := k.planes[0]
	env, err := framework.DeploymentEnv([]byte(one.kubectl(t, "-n", protocol.AgentNamespace, "get", "deployment", protocol.AgentName, "-o", "yaml")))
	if err != nil {
		t.Fatal(err)
	}
	token := one.kubectl(t, "-n", protocol.AgentNamespace, "create", "token", protocol.AgentName, "--duration=24h")
	ca := one.kubectl(t, "config", "view", "--raw", "-o", "jsonpath={.clusters[0].cluster.certificate-authority-data}")
	kubeconfig := filepath.Join(k.dir, "agent.kubeconfig")
	if err := framework.WriteKubeconfig(kubeconfig, "https://"+one.address+":6443", decoded(t, ca), strings.TrimSpace(token)); err != nil {
		t.Fatal(err)
	}
	process, err := lab.Command{Name: "agent-web", Path: "nsenter", Args: []string{"--target", one.pid, "--net", "--", k.programs.Agent, "--kubeconfig=" + kubeconfig}, LogFile: filepath.Join(k.dir, "agent-web.log"),
		Env: append(append(os.Environ(), env...), protocol.EnvNamespace+"="+protocol.AgentNamespace, protocol.EnvListen+"=127.0.0.1:9199", protocol.EnvSocket+"="+filepath.Join(k.dir, "agent.sock"))}.Start()
	if err != nil {
		t.Fatal(err)
	}
	k.t.Cleanup(func() {
		_ = process.Kill()
		if k.t.Failed() {
			k.t.Logf("agent:\n%s", tail(process.LogFile()))
		}
	})
}

// through runs kubectl as a user does: through the hub.
func (k *kubeadmPlanes) through(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	return k.kubectl(t, k.cluster, demoToken, arguments...)
}

func (k *kubeadmPlanes) save(t *testing.T) {
	testkit.Eventually(t, time.Minute, func(context.Context) error { // the binding may not have reached the member
		out, err := k.through(t, "create", "configmap", "before")
		if err != nil {
			return fmt.Errorf("%s: %w", out, err)
		}
		return nil
	})
	snapshot := &provisionv1.EtcdSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: "first"}, Spec: provisionv1.EtcdSnapshotSpec{ClusterRef: ofWeb}}
	create(t, k.hub.Plane, snapshot)
	testkit.Eventually(t, 2*time.Minute, func(ctx context.Context) error {
		if err := k.hub.Client.Get(ctx, client.ObjectKeyFromObject(snapshot), snapshot); err != nil || snapshot.Status.Phase != provisionv1.SnapshotSucceeded {
			return fmt.Errorf("%+v (%w)", snapshot.Status, err)
		}
		return nil
	})
	for _, p := range k.planes {
		out, err := p.try("stat", "-c", "%a", "/var/lib/drover/etcd/snapshots/"+snapshot.Status.Snapshot)
		if is := p.name == snapshot.Status.Host; is != (err == nil && strings.TrimSpace(out) == "600") {
			t.Errorf("%s has the file: %s, %v, want it on %s only, for root", p.name, out, err, snapshot.Status.Host)
		}
	}
	k.provisioned(t)
}

func (k *kubeadmPlanes) destroyAll(t *testing.T) {
	for _, command := range []string{"create configmap after", "delete configmap before"} {
		if out, err := k.through(t, strings.Fields(command)...); err != nil {
			t.Fatal(out, err)
		}
	}
	for _, p := range k.planes {
		p.run(t, "sh", "-c", destroyEtcd)
	}
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if out, err := k.through(t, "get", "configmap", "after"); err == nil {
			return fmt.Errorf("it is still there: %s", out)
		}
		return nil
	})
}

func (k *kubeadmPlanes) bringBack(t *testing.T) {
	restore := &provisionv1.EtcdRestore{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: "back"}, Spec: provisionv1.EtcdRestoreSpec{ClusterRef: ofWeb, SnapshotName: k.scheduled}}
	create(t, k.hub.Plane, restore)
	k.seen(t, true)
	k.phase(t, restore, provisionv1.RestoreStopping)
	kill(t, k.hub.Manager)
	kill(t, k.hub.Provisioner.Process)
	startAgain(t, k.hub)
	k.phase(t, restore, provisionv1.RestoreJoining)
	kill(t, k.hub.Manager)
	kill(t, k.hub.Provisioner.Process)
	startAgain(t, k.hub)
	k.phase(t, restore, provisionv1.RestoreSucceeded)
	k.seen(t, false)
	k.provisioned(t)
}

// seen acts as the controller of the control plane, which reports when it sees that the Cluster is paused, or no longer
// paused.
func (k *kubeadmPlanes) seen(t *testing.T, want bool) {
	t.Helper()
	cluster, plane := &unstructured.Unstructured{}, &unstructured.Unstructured{}
	cluster.SetGroupVersionKind(clusterapi.GroupVersion.WithKind("Cluster"))
	plane.SetGroupVersionKind(schema.GroupVersionKind{Group: "controlplane.cluster.x-k8s.io", Version: "v1beta2", Kind: clusterapi.KubeadmControlPlane})
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		if err := errors.Join(k.hub.Client.Get(ctx, k.cluster, cluster), k.hub.Client.Get(ctx, k.cluster, plane)); err != nil {
			return err
		}
		if paused, _, _ := unstructured.NestedBool(cluster.Object, "spec", "paused"); paused != want {
			return fmt.Errorf("the Cluster is paused: %t, want %t", paused, want)
		}
		plane.Object["status"] = map[string]any{"conditions": []any{map[string]any{
			"type": "Paused", "status": map[bool]string{true: "True", false: "False"}[want], "reason": "StandIn", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}}}
		return k.hub.Client.Update(ctx, plane)
	})
}

// phase waits until a restore is in the given phase, or in a later one.
func (k *kubeadmPlanes) phase(t *testing.T, restore *provisionv1.EtcdRestore, want provisionv1.EtcdRestorePhase) {
	t.Helper()
	order := []provisionv1.EtcdRestorePhase{provisionv1.RestorePending, provisionv1.RestoreStopping, provisionv1.RestoreRestoring, provisionv1.RestoreJoining, provisionv1.RestoreSucceeded}
	rank := func(phase provisionv1.EtcdRestorePhase) int {
		for i, p := range order {
			if p == phase {
				return i
			}
		}
		return -1
	}
	testkit.Eventually(t, 8*time.Minute, func(ctx context.Context) error {
		if err := k.hub.Client.Get(ctx, client.ObjectKeyFromObject(restore), restore); err != nil || rank(restore.Status.Phase) < rank(want) {
			return fmt.Errorf("%+v, want %s (%w)", restore.Status, want, err)
		}
		return nil
	})
	t.Logf("%s: %s", restore.Status.Phase, restore.Status.Conditions[0].Message)
}

func (k *kubeadmPlanes) back(t *testing.T) {
	k.system.await(t, k.cluster, 2*time.Minute, framework.Ready)
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if out, err := k.through(t, "get", "configmap", "before"); err != nil {
			return fmt.Errorf("%s (%w)", out, err)
		}
		return nil
	})
	if out, err := k.through(t, "get", "configmap", "after"); err == nil || !strings.Contains(out+err.Error(), "NotFound") {
		t.Errorf("what was made after the snapshot: %s, %v", out, err)
	}
	for _, p := range k.planes {
		p.serves(t)
		p.kubectl(t, "get", "configmap", "before")
		if members := p.run(t, "sh", "-c", memberList); strings.Count(members, "started") != 3 || strings.Count(members, "false") != 3 {
			t.Errorf("%s sees the members\n%s\nwant 3 full ones", p.name, members)
		}
		ran, err := exec.Command("sh", "-c", "ls "+k.machines[p.name].path("agent", "state", "journal")).CombinedOutput()
		if err != nil || strings.Count(string(ran), "stop") != 1 || strings.Count(string(ran), "join")+strings.Count(string(ran), "replace") != 1 {
			t.Errorf("%s has in its journal\n%s%v\nwant each step once", p.name, ran, err)
		}
	}
}
