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
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
	"github.com/drover-dev/drover/internal/provision/config"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// isolated runs a command as if on a separate machine, with its own hostname, /run, /etc, /var/lib and /usr/local. When
// the command ends, all processes that it started end.
const isolated = `set -e
hostname "$1"
mount -t tmpfs tmpfs /run
mkdir "$0/layers"
mount -t tmpfs tmpfs "$0/layers"
for of in etc var/lib usr/local; do
	mkdir -p "$0/layers/$of/upper" "$0/layers/$of/work"
	mount -t overlay overlay -o "lowerdir=/$of,upperdir=$0/layers/$of/upper,workdir=$0/layers/$of/work" "/$of"
done
shift
exec "$@"`

// inNamespaces are the arguments of unshare for this.
func inNamespaces(dir, hostname string, command ...string) []string {
	return append([]string{"--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", isolated, dir, hostname}, command...)
}

// capi is a hub with Cluster API's managers, and machines that are Hosts.
type capi struct {
	*gitOps
	kubeadm  *lab.Tool
	machines map[string]*machine
	// The port of the new cluster's API server, and the machines' first version of Kubernetes.
	port, version string
	// gates are the feature gates of Cluster API.
	gates string
	// hooks is the address at which the provisioner serves the hooks of in-place updates. hooksCA is its CA.
	hooks   string
	hooksCA []byte
}

// TestLong_ClusterAPIMakesAClusterOfHosts runs Cluster API's core and its providers for kubeadm, with the rights of
// their own manifests and their webhooks. The machines are processes in namespaces with host agents. A stand-in for
// kubeadm (testdata/kubeadm.sh) replaces container runtimes and kubelets. So Cluster API, kubeadm's certificates, the
// API server and the connection from Cluster API to it through the hub are real.
func TestLong_ClusterAPIMakesAClusterOfHosts(t *testing.T) {
	t.Parallel()
	c := startClusterAPI(t, "", false)
	c.step(t, "machines join", func(t *testing.T) {
		for _, name := range []string{"m1", "m2", "m3"} {
			c.join(t, name, map[string]string{"rack": name})
		}
	})
	c.step(t, "the first control plane brings the agent, and Cluster API reaches it through the hub", c.controlPlane)
	c.step(t, "workers join with tokens that Cluster API makes through the hub", c.workers)
	c.step(t, "kubectl get clusters means ours", c.names)
	c.step(t, "a machine that is no longer wanted is cleaned and given back", c.scaleDown)
	c.step(t, "a machine that is lost is replaced by a MachineHealthCheck, and stays taken", c.replaced)
	c.step(t, "the cluster is deleted, and all Hosts that can be reached are free", c.remove)
}

// startClusterAPI starts the hub and Cluster API with feature gates. It skips the test if namespaces are not available
// or the programs cannot be built.
func startClusterAPI(t *testing.T, gates string, inPlace bool) *capi {
	t.Helper()
	if out, err := exec.Command("unshare", inNamespaces(t.TempDir(), "probe", "true")...).CombinedOutput(); err != nil {
		t.Skipf("no namespaces of its own for a machine: %v %s", err, out)
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed, which the join command takes")
	}
	if err := hostAgent(); err != nil {
		t.Fatal(err)
	}
	kubeadm, err := lab.KubeadmTool(t.Context(), os.Stderr)
	if err != nil {
		t.Skipf("kubeadm cannot be built here: %v", err)
	}
	tool, err := lab.ClusterAPI(t.Context(), os.Stderr)
	if err != nil {
		t.Skipf("Cluster API cannot be built here: %v", err)
	}
	c := &capi{gitOps: &gitOps{system: buildForLargeSchemas(t), tool: tool, transcript: discard{}}, kubeadm: kubeadm, machines: map[string]*machine{}, version: kubeadm.Version, gates: gates}
	c.startHub(t, framework.Layout{Replicas: 1}, inPlace)
	return c
}

// startHub starts a hub in a layout with a provisioner for Cluster API, and the providers of Cluster API on it.
func (c *capi) startHub(t *testing.T, layout framework.Layout, inPlace bool) {
	t.Helper()
	plane, err := c.plane("hub", lab.User{Name: "demo", Token: demoToken})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Kill() })
	dir := filepath.Join(c.dir, "hooks")
	c.hooksCA, c.hooks = servingCertificate(t, dir), "127.0.0.1:"+freePort(t)
	layout.Provisioner = &framework.Provisioner{
		Folders: []string{"config/clusterapi"}, Configure: func(configuration *config.Config) {
			configuration.ClusterAPI = config.ClusterAPI{
				Enabled: true, InPlaceUpdates: inPlace, Hooks: config.Hooks{Listen: c.hooks, CertDir: dir},
			}
		},
	}
	if c.hub, err = framework.InstallReplicas(within(t, 2*time.Minute), plane, layout); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.hub.StopManagers()
		if t.Failed() {
			t.Logf("manager:\n%s\nprovisioner:\n%s", tail(c.hub.Manager.LogFile()), tail(c.hub.Provisioner.Process.LogFile()))
		}
	})
	create(t, c.hub.Plane, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: teamSpace}})
	if err := c.hub.Provisioner.Bind(t.Context(), teamSpace); err != nil {
		t.Fatal(err)
	}
	for _, p := range providers() {
		c.startProvider(t, p)
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// join creates a Host for a machine in separate namespaces.
func (c *capi) join(t *testing.T, name string, labels map[string]string) {
	t.Helper()
	m := c.machine(c.t) // its folders outlive the subtest
	c.machines[name] = m
	host := types.NamespacedName{Namespace: teamSpace, Name: name}
	create(t, c.hub.Plane, &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: host.Namespace, Name: host.Name, Labels: labels}})
	secret := &corev1.Secret{}
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		return c.hub.Client.Get(ctx, types.NamespacedName{Namespace: host.Namespace, Name: host.Name + v1.HostJoinSecretSuffix}, secret)
	})
	m.join(string(secret.Data["command"]))
	tools := m.path("tools")
	if err := errors.Join(os.Mkdir(tools, 0o700), os.Symlink(c.programs.Kubectl, filepath.Join(tools, "kubectl"))); err != nil {
		t.Fatal(err)
	}
	c.standIn(t, m, "kubeadm.sh", filepath.Join(tools, "kubeadm"))
	c.standIn(t, m, "systemctl.sh", filepath.Join(tools, "systemctl"))
	process, err := lab.Command{
		Name: "machine-" + name, Path: "unshare", Args: inNamespaces(m.dir, name, m.path("bin", "drover-host-agent"), "run"),
		Env: append(m.env(), "PATH="+tools+":"+os.Getenv("PATH")), LogFile: m.path("agent.log"),
	}.Start()
	if err != nil {
		t.Fatal(err)
	}
	m.process = process
	c.t.Cleanup(func() {
		_ = process.Kill()
		if c.t.Failed() {
			c.t.Logf("%s:\n%s", name, tail(m.path("agent.log")))
		}
	})
	m.await(host, "available", because(v1.ReasonHostAvailable))
}

// standIn writes a program from testdata for a machine.
func (c *capi) standIn(t *testing.T, m *machine, from, to string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", from))
	if err != nil {
		t.Fatal(err)
	}
	assets, err := lab.Binaries(t.Context(), os.Stderr, lab.Etcd, lab.APIServer)
	if err != nil {
		t.Fatal(err)
	}
	if c.port == "" {
		c.port = freePort(t)
	}
	program := strings.NewReplacer("@KUBEADM@", c.kubeadm.Assets[lab.Kubeadm], "@OUT@", m.dir, "@SHARED@", c.dir, "@ETCD@", assets[lab.Etcd], "@APISERVER@", assets[lab.APIServer], "@VERSION@", c.version,
		"@PORT@", c.port, "@ETCDPORT@", freePort(t), "@PEERPORT@", freePort(t)).Replace(string(text))
	if err := os.WriteFile(to, []byte(program), 0o700); err != nil {
		t.Fatal(err)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	address, err := lab.FreeAddress("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	return address[strings.LastIndex(address, ":")+1:]
}

func (c *capi) apply(t *testing.T, manifest string) {
	t.Helper()
	if _, err := c.hub.Kubectl(t.Context(), []byte(manifest), "apply", "--server-side", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// awaitObject waits until an object of Cluster API meets the given conditions.
func (c *capi) awaitObject(t *testing.T, group, kind, name string, wanted func(*unstructured.Unstructured) error) {
	t.Helper()
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(group + "/v1beta2")
	object.SetKind(kind)
	testkit.Eventually(t, 3*time.Minute, func(ctx context.Context) error {
		if err := c.hub.Client.Get(ctx, types.NamespacedName{Namespace: teamSpace, Name: name}, object); err != nil {
			return err
		}
		if err := wanted(object); err != nil {
			return fmt.Errorf("%s %s: %w: %v\nDroverMachines:\n%s", kind, name, err, object.Object["status"], c.overview(ctx))
		}
		return nil
	})
}

// overview prints what a user would look at.
func (c *capi) overview(ctx context.Context) string {
	out, err := c.hub.Kubectl(ctx, nil, "-n", teamSpace, "get", "drovermachines,droverclusters,machines,hosts,clusters", "-o", "wide")
	return fmt.Sprint(out, err)
}

// isTrue returns a check that a field is true.
func isTrue(path ...string) func(*unstructured.Unstructured) error {
	return func(o *unstructured.Unstructured) error {
		if is, _, _ := unstructured.NestedBool(o.Object, path...); !is {
			return fmt.Errorf("%s is not true", strings.Join(path, "."))
		}
		return nil
	}
}

// hasCondition returns a check that a condition is True.
func hasCondition(name string) func(*unstructured.Unstructured) error {
	return func(o *unstructured.Unstructured) error {
		all, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		for _, item := range all {
			if condition, ok := item.(map[string]any); ok && condition["type"] == name && condition["status"] == "True" {
				return nil
			}
		}
		return fmt.Errorf("the condition %s is not True", name)
	}
}

// isNumber returns a check that a field has a number.
func isNumber(want int64, path ...string) func(*unstructured.Unstructured) error {
	return func(o *unstructured.Unstructured) error {
		if got, _, _ := unstructured.NestedInt64(o.Object, path...); got != want {
			return fmt.Errorf("%s is %d, want %d", strings.Join(path, "."), got, want)
		}
		return nil
	}
}

func (c *capi) controlPlane(t *testing.T) {
	c.apply(t, strings.NewReplacer("@PORT@", c.port, "@VERSION@", c.version).Replace(clusterManifest))
	c.initialized(t)
	// The cluster does not get further than initialized, because there are no static pods to inspect.
	c.awaitObject(t, "controlplane.cluster.x-k8s.io", "KubeadmControlPlane", "web", isTrue("status", "initialization", "controlPlaneInitialized"))
	machines := c.machinesOf(t)
	i := slices.IndexFunc(machines, func(m unstructured.Unstructured) bool {
		_, is := m.GetLabels()[clusterapi.LabelControlPlane]
		return is
	})
	if i < 0 {
		t.Fatal("there is no Machine of the control plane")
	}
	c.awaitObject(t, "cluster.x-k8s.io", "Machine", machines[i].GetName(), hasCondition("NodeHealthy"))
	secret := &corev1.Secret{}
	if err := c.hub.Client.Get(t.Context(), types.NamespacedName{Namespace: teamSpace, Name: "web-kubeconfig"}, secret); err != nil {
		t.Fatal(err)
	}
	if text := string(secret.Data["value"]); !strings.Contains(text, c.hub.URL()+"/k8s/clusters/team/web") || strings.Contains(text, c.port) || strings.Contains(text, "client-key") || strings.Contains(text, "token:") {
		t.Errorf("Cluster API's kubeconfig is %s, want the hub's proxy and no credential", text)
	}
}

// initialized waits until the first machine is a control plane, starts the agent that the machine has applied, and
// waits until Cluster API reaches the cluster.
func (c *capi) initialized(t *testing.T) {
	t.Helper()
	admin := ""
	testkit.Eventually(t, 3*time.Minute, func(ctx context.Context) error {
		for _, m := range c.machines {
			if _, err := os.Stat(m.path("admin.conf")); err == nil {
				admin = m.path("admin.conf")
				_, err := framework.Kubectl(ctx, c.programs, admin, nil, "-n", protocol.AgentNamespace, "get", "deployment", protocol.AgentName)
				return err
			}
		}
		return fmt.Errorf("no machine has initialized the control plane:\n%s", c.overview(ctx))
	})
	// There is no kubelet that starts the Deployment which the machine has applied.
	c.startInstalledAgent(t, admin)
	c.await(t, types.NamespacedName{Namespace: teamSpace, Name: "web"}, time.Minute, framework.Ready)
	c.awaitObject(t, "cluster.x-k8s.io", "Cluster", "web", isTrue("status", "initialization", "controlPlaneInitialized"))
	c.awaitObject(t, "cluster.x-k8s.io", "Cluster", "web", hasCondition("RemoteConnectionProbe"))
}

// startInstalledAgent starts the agent with the settings of its Deployment in the new cluster.
func (c *capi) startInstalledAgent(t *testing.T, admin string) {
	t.Helper()
	cluster := &v1.Cluster{}
	if err := c.hub.Client.Get(t.Context(), types.NamespacedName{Namespace: teamSpace, Name: "web"}, cluster); err != nil {
		t.Fatal(err)
	}
	deployment, err := framework.Kubectl(t.Context(), c.programs, admin, nil, "-n", protocol.AgentNamespace, "get", "deployment", protocol.AgentName, "-o", "yaml")
	if err != nil {
		t.Fatal(err)
	}
	env, err := framework.DeploymentEnv([]byte(deployment))
	if err != nil {
		t.Fatal(err)
	}
	token, err := framework.Kubectl(t.Context(), c.programs, admin, nil, "-n", protocol.AgentNamespace, "create", "token", protocol.AgentName, "--duration=24h")
	if err != nil {
		t.Fatal(err)
	}
	ca, err := framework.Kubectl(t.Context(), c.programs, admin, nil, "config", "view", "--raw", "-o", "jsonpath={.clusters[0].cluster.certificate-authority-data}")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(c.dir, "agent.kubeconfig")
	if err := framework.WriteKubeconfig(kubeconfig, "https://127.0.0.1:"+c.port, decoded(t, ca), strings.TrimSpace(token)); err != nil {
		t.Fatal(err)
	}
	c.run(t, lab.Command{Name: "agent-web", Path: c.programs.Agent, Args: []string{"--kubeconfig=" + kubeconfig},
		Env: append(append(os.Environ(), env...), protocol.EnvNamespace+"="+protocol.AgentNamespace, protocol.EnvListen+"=127.0.0.1:"+freePort(t), protocol.EnvSocket+"="+filepath.Join(c.dir, "agent.sock"))})
}

func (c *capi) workers(t *testing.T) {
	c.awaitObject(t, "cluster.x-k8s.io", "MachineDeployment", "web-workers", isNumber(2, "status", "readyReplicas"))
	machines := c.machinesOf(t)
	if len(machines) != 3 {
		t.Fatalf("%d machines, want 3", len(machines))
	}
	var nodes []string
	for _, m := range machines {
		node, _, _ := unstructured.NestedString(m.Object, "status", "nodeRef", "name")
		id, _, _ := unstructured.NestedString(m.Object, "spec", "providerID")
		if id != "drover://team/"+node {
			t.Errorf("the Machine %s has the Node %q and the provider ID %q", m.GetName(), node, id)
		}
		nodes = append(nodes, node)
	}
	if slices.Sort(nodes); !slices.Equal(nodes, []string{"m1", "m2", "m3"}) {
		t.Errorf("nodes %v, want each Host once", nodes)
	}
	for name, m := range c.machines {
		if got := ran(t, m.path("kubeadm-ran")); got != "init" && got != "join" {
			t.Errorf("%s ran kubeadm %q, want it once", name, got)
		}
	}
}

func (c *capi) machinesOf(t *testing.T) []unstructured.Unstructured {
	t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(clusterapi.GroupVersion.WithKind("MachineList"))
	if err := c.hub.Client.List(t.Context(), list, client.InNamespace(teamSpace)); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func (c *capi) names(t *testing.T) {
	for argument, want := range map[string]string{
		"clusters": "cluster.cluster.drover.dev/web\n", "cluster": "cluster.cluster.drover.dev/web\n", "clusters.cluster.x-k8s.io": "cluster.cluster.x-k8s.io/web\n",
		"drovercl": "drovercluster.infrastructure.cluster.drover.dev/web\n",
	} {
		if out, err := c.hub.Kubectl(t.Context(), nil, "-n", teamSpace, "get", argument, "-o", "name"); err != nil || out != want {
			t.Errorf("kubectl get %s: %q, %v, want %q", argument, out, err, want)
		}
	}
}

// free waits until the given number of Hosts are free and clean.
func (c *capi) free(t *testing.T, want int) {
	t.Helper()
	testkit.Eventually(t, 4*time.Minute, func(ctx context.Context) error {
		list := &v1.HostList{}
		if err := c.hub.Client.List(ctx, list, client.InNamespace(teamSpace)); err != nil {
			return err
		}
		free := 0
		for _, h := range list.Items {
			if h.Spec.ConsumerRef == nil && h.Status.State == v1.HostAvailable && meta.IsStatusConditionTrue(h.Status.Conditions, v1.ConditionReady) {
				free++
			}
		}
		if free != want {
			return fmt.Errorf("%d Hosts are free, want %d:\n%s", free, want, c.overview(ctx))
		}
		return nil
	})
}

func (c *capi) scaleDown(t *testing.T) {
	if _, err := c.hub.Kubectl(t.Context(), nil, "-n", teamSpace, "scale", "machinedeployments.cluster.x-k8s.io", "web-workers", "--replicas=1"); err != nil {
		t.Fatal(err)
	}
	c.free(t, 1)
	resets := 0
	for _, m := range c.machines {
		if ran(t, m.path("kubeadm-ran")) == "join reset" {
			resets++
		}
	}
	if resets != 1 {
		t.Errorf("%d machines were reset once after they had joined, want 1", resets)
	}
}

// replaced kills the machine of the remaining worker. Its Host stays claimed until its agent is back, because it may
// not be clean.
func (c *capi) replaced(t *testing.T) {
	c.apply(t, `
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineHealthCheck
metadata: {name: lost, namespace: team}
spec:
  clusterName: web
  selector: {matchLabels: {cluster.x-k8s.io/deployment-name: web-workers}}
  checks: {unhealthyMachineConditions: [{type: InfrastructureReady, status: "False", timeoutSeconds: 30}]}
`)
	var lost string
	for name, m := range c.machines {
		if ran(t, m.path("kubeadm-ran")) == "join" {
			lost = name
		}
	}
	if lost == "" {
		t.Fatal("there is no worker")
	}
	kill(t, c.machines[lost].process)
	var spare string
	testkit.Eventually(t, 4*time.Minute, func(ctx context.Context) error {
		machines := &infrav1.DroverMachineList{}
		if err := c.hub.Client.List(ctx, machines, client.InNamespace(teamSpace)); err != nil {
			return err
		}
		for _, m := range machines.Items {
			if m.Status.HostName == lost {
				return fmt.Errorf("the machine on %s is still there:\n%s", lost, c.overview(ctx))
			}
			if _, controlPlane := m.Labels[clusterapi.LabelControlPlane]; !controlPlane && meta.IsStatusConditionTrue(m.Status.Conditions, infrav1.ConditionReady) {
				spare = m.Status.HostName
			}
		}
		if spare == "" {
			return fmt.Errorf("no other machine takes its place:\n%s", c.overview(ctx))
		}
		return nil
	})
	host := &v1.Host{}
	if err := c.hub.Client.Get(t.Context(), types.NamespacedName{Namespace: teamSpace, Name: lost}, host); err != nil || host.Spec.ConsumerRef == nil {
		t.Errorf("%v, %+v: want the lost Host to be taken until it was cleaned", err, host.Spec.ConsumerRef)
	}
	// On a machine that stalls, the health check may also consider a new machine lost.
	if got := ran(t, c.machines[spare].path("kubeadm-ran")); !regexp.MustCompile(`^(join reset )+join$`).MatchString(got) {
		t.Errorf("%s ran kubeadm %q, want it to join again after its reset", spare, got)
	}
	c.awaitObject(t, "cluster.x-k8s.io", "MachineDeployment", "web-workers", isNumber(1, "status", "readyReplicas"))
	delete(c.machines, lost)
}

func (c *capi) remove(t *testing.T) {
	if _, err := c.hub.Kubectl(t.Context(), nil, "-n", teamSpace, "delete", "clusters.cluster.x-k8s.io", "web", "--wait=false"); err != nil {
		t.Fatal(err)
	}
	c.free(t, len(c.machines))
	testkit.Eventually(t, 2*time.Minute, func(ctx context.Context) error {
		err := c.hub.Client.Get(ctx, types.NamespacedName{Namespace: teamSpace, Name: "web-kubeconfig"}, &corev1.Secret{})
		if err == nil {
			return errors.New("the kubeconfig is there after its cluster")
		}
		return client.IgnoreNotFound(err)
	})
	for name, m := range c.machines {
		if got := ran(t, m.path("kubeadm-ran")); !regexp.MustCompile(`^(init reset|(join reset ?){2,})$`).MatchString(got) {
			t.Errorf("%s ran kubeadm %q, want one reset after each time that it was taken", name, got)
		}
	}
}
