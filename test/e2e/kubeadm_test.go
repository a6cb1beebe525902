// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

// TestClusterAPIMakesAClusterByKubeadm runs Cluster API's core and its providers for kubeadm with the real kubeadm,
// kubelet, containerd and static pods, on hosts that only open connections to the hub. There are stand-ins for systemd
// (package nodes), for the package manager of a host (testdata/install-packages.sh), and for a network plugin's
// manifest (a file). In the middle of each change the hub is killed. It starts again when the machines have continued
// without it.
func TestClusterAPIMakesAClusterByKubeadm(t *testing.T) {
	h := startRealHosts(t, realHosts{})
	for i, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"hosts join by one command each", h.joinThree},
		{"one apply makes a control plane, whose agent connects as a pod, and two workers", h.makesACluster},
		{"nothing dials a host", h.refusesOthers},
		{"the hosts of the workers become control planes", h.growsTheControlPlane},
		{"a control plane that dies is replaced on another host, whose agent is killed at each step of its journal", h.replacesADeadOne},
		{"a host that comes back is cleaned and free", h.takesBackTheDeadOne},
		{"the control planes are replaced one by one, by those of the next version", h.upgrades},
		{"the cluster is deleted, and all hosts are free", h.removesTheCluster},
	} {
		start := time.Now()
		h.step(t, step.name, step.run)
		t.Logf("%s: %s", step.name, time.Since(start).Round(time.Second))
		if i == 1 && os.Getenv(envRealHosts) == measure {
			return
		}
	}
}

func (h *realHosts) joinThree(t *testing.T) {
	for _, name := range []string{"m1", "m2", "m3"} {
		h.join(t, name)
	}
}

// applyCluster applies the user's manifest of the cluster.
func (h *realHosts) applyCluster(t *testing.T, version, revision string, controlPlanes, workers int) {
	t.Helper()
	manifest, err := os.ReadFile("testdata/kubeadm-cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	surge, unavailable, update := "1", "0", ""
	if h.inPlace {
		surge, unavailable, update = "0", "1", "inPlaceUpdate: {installer: {path: /usr/bin/install-kubernetes}}"
	}
	network, pods := "cp /etc/lab/10-lab.conflist /etc/cni/net.d/", h.options.File.Networking.PodSubnet
	agent := "{tolerations: [{key: node.kubernetes.io/not-ready, operator: Exists}]}"
	if h.addons != nil {
		network, pods, agent = "'true'", podsOfFlannel, "{hostNetwork: true}"
	}
	h.apply(t, strings.NewReplacer("@NETWORK@", network, "@PODS@", pods, "@AGENT@", agent,
		"@ENDPOINT@", h.address(t, balancerHost), "@VERSION@", version, "@REVISION@", revision, "@SURGE@", surge, "@UNAVAILABLE@", unavailable,
		"@UPDATE@", update, "@CONTROLPLANES@", strconv.Itoa(controlPlanes), "@WORKERS@", strconv.Itoa(workers)).Replace(string(manifest)))
}

// cutOff kills the hub when a new host begins its bootstrap, waits until the bootstrap is complete without the hub, and
// starts the hub again. It returns the host.
func (h *realHosts) cutOff(t *testing.T, before map[string]int) string {
	t.Helper()
	var host string
	h.eventually(t, "a further host begins its bootstrap", func(ctx context.Context) error {
		for name, n := range h.bootstraps(t) {
			if n > before[name] {
				host = name
			}
		}
		if host == "" {
			return errors.New(h.overview(ctx))
		}
		return nil
	})
	kill(t, h.hub.Manager)
	kill(t, h.hub.Provisioner.Process)
	h.eventually(t, "the bootstrap of "+host+" goes on without the hub", func(ctx context.Context) error {
		script := `test -e /run/cluster-api/bootstrap-success.complete || { cat "$(ls -t /var/lib/drover/host-agent/state/journal/bootstrap-*/result.json | head -1)"; exit 1; }`
		_, err := h.try(ctx, host, "sh", "-c", script) // with the last lines of a failed one
		return err
	})
	startAgain(t, h.hub)
	return host
}

// eventually waits for minutes, because all hosts share two processors.
func (h *realHosts) eventually(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("it is not so that %s: %v\nmanager:\n%s", what, err, tail(h.hub.Manager.LogFile()))
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// bootstraps counts the bootstraps of each host.
func (h *realHosts) bootstraps(t *testing.T) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for _, host := range h.options.File.Hosts {
		raw, err := os.ReadFile(h.lab.HostLog(host.Name, "bootstraps"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if n := len(strings.Fields(string(raw))); n > 0 {
			counts[host.Name] = n
		}
	}
	return counts
}

// isBootstrapped checks how often each host has run a bootstrap.
func (h *realHosts) isBootstrapped(t *testing.T, want map[string]int) {
	t.Helper()
	if got := h.bootstraps(t); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("hosts ran bootstraps %v, want %v", got, want)
	}
}

// isWhole waits until Cluster API, Drover and the cluster itself all report the state that was applied.
func (h *realHosts) isWhole(t *testing.T, version string, controlPlanes, workers int) {
	t.Helper()
	h.eventually(t, fmt.Sprintf("%d control planes and %d workers of %s are ready", controlPlanes, workers, version), func(ctx context.Context) error {
		return errors.Join(h.controlPlaneIs(ctx, version, controlPlanes), h.machinesAre(ctx, version, controlPlanes+workers), h.nodesAre(ctx, version, controlPlanes+workers), h.connected(ctx))
	})
	for _, name := range h.controlPlaneHosts(t) { // what pods find their API servers by: kube-proxy works there, also where a former cluster had one
		h.eventually(t, "the Service of the API servers answers on "+name, func(ctx context.Context) error {
			_, err := h.try(ctx, name, "curl", "-ksSf", "--max-time", "3", "https://10.96.0.1/readyz")
			return err
		})
	}
}

func (h *realHosts) controlPlaneIs(ctx context.Context, version string, replicas int) error {
	plane := &unstructured.Unstructured{}
	plane.SetAPIVersion("controlplane.cluster.x-k8s.io/v1beta2")
	plane.SetKind("KubeadmControlPlane")
	if err := h.hub.Client.Get(ctx, types.NamespacedName{Namespace: teamSpace, Name: "web"}, plane); err != nil {
		return err
	}
	var errs []error
	for _, field := range []string{"replicas", "readyReplicas", "availableReplicas", "upToDateReplicas"} {
		errs = append(errs, isNumber(int64(replicas), "status", field)(plane))
	}
	for _, condition := range []string{"Available", "EtcdClusterHealthy", "ControlPlaneComponentsHealthy", "MachinesReady"} {
		errs = append(errs, hasCondition(condition)(plane))
	}
	if got, _, _ := unstructured.NestedString(plane.Object, "status", "version"); got != version {
		errs = append(errs, fmt.Errorf("its version is %q, want %s", got, version))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("KubeadmControlPlane: %w: %v", err, plane.Object["status"])
	}
	return nil
}

func (h *realHosts) machinesAre(ctx context.Context, version string, want int) error {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(clusterapi.GroupVersion.WithKind("MachineList"))
	if err := h.hub.Client.List(ctx, list, client.InNamespace(teamSpace)); err != nil {
		return err
	}
	var errs []error
	if len(list.Items) != want {
		errs = append(errs, fmt.Errorf("%d Machines, want %d", len(list.Items), want))
	}
	for _, m := range list.Items {
		node, _, _ := unstructured.NestedString(m.Object, "status", "nodeRef", "name")
		id, _, _ := unstructured.NestedString(m.Object, "spec", "providerID")
		if is, _, _ := unstructured.NestedString(m.Object, "spec", "version"); is != version || id != infrav1.ProviderIDPrefix+teamSpace+"/"+node {
			errs = append(errs, fmt.Errorf("the Machine %s of %s has the Node %q and the provider ID %q", m.GetName(), is, node, id))
		}
		for _, condition := range []string{"Ready", "NodeHealthy", "InfrastructureReady", "BootstrapConfigReady"} {
			errs = append(errs, hasCondition(condition)(&m))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w\n%s", err, h.overview(ctx))
	}
	return nil
}

// web runs kubectl in the new cluster through the hub, as a user with a binding.
func (h *realHosts) web(ctx context.Context, args ...string) (string, error) {
	kubeconfig, err := h.hub.ProxyKubeconfig(ctx, types.NamespacedName{Namespace: teamSpace, Name: "web"}, demoToken, h.dir+"/web.kubeconfig")
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return framework.Kubectl(ctx, h.programs, kubeconfig, nil, args...)
}

// nodesAre compares the nodes that the cluster itself returns through the hub.
func (h *realHosts) nodesAre(ctx context.Context, version string, want int) error {
	out, err := h.web(ctx, "get", "nodes", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.nodeInfo.kubeletVersion} {.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}`)
	if err != nil {
		return err
	}
	if got := strings.Count(out, " "+version+" True\n"); got != want || len(strings.Fields(out)) != 3*want {
		return fmt.Errorf("the nodes are\n%s, want %d Ready ones of %s", out, want, version)
	}
	return nil
}

// connected returns nil if the Cluster is Ready through an agent that runs as pods.
func (h *realHosts) connected(ctx context.Context) error {
	cluster := &v1.Cluster{}
	if err := h.hub.Client.Get(ctx, types.NamespacedName{Namespace: teamSpace, Name: "web"}, cluster); err != nil {
		return err
	}
	if !framework.Ready(cluster) {
		return fmt.Errorf("the Cluster is not Ready: %v", cluster.Status.Conditions)
	}
	out, err := h.web(ctx, "-n", protocol.AgentNamespace, "get", "pods", "-l", "app.kubernetes.io/name="+protocol.AgentName, "--field-selector=status.phase=Running", "-o", "name")
	if err != nil {
		return err
	}
	if strings.TrimSpace(out) == "" {
		all, err := h.web(ctx, "-n", protocol.AgentNamespace, "get", "pods", "-o", "wide", "--show-labels")
		return fmt.Errorf("no pod of the agent runs: %s %w", all, err)
	}
	return nil
}

func (h *realHosts) makesACluster(t *testing.T) {
	first := h.versions[0].version
	began := time.Now()
	h.applyCluster(t, first, "1", 1, 2)
	if os.Getenv(envRealHosts) == measure {
		h.measures(t, began)
		return
	}
	initial := h.cutOff(t, nil)
	h.cutOff(t, map[string]int{initial: 1})
	h.isWhole(t, first, 1, 2)
	h.isBootstrapped(t, map[string]int{"m1": 1, "m2": 1, "m3": 1})
	secret := &corev1.Secret{}
	if err := h.hub.Client.Get(t.Context(), types.NamespacedName{Namespace: teamSpace, Name: "web-kubeconfig"}, secret); err != nil {
		t.Fatal(err)
	}
	if text := string(secret.Data["value"]); !strings.Contains(text, h.hub.URL()+"/k8s/clusters/team/web") || strings.Contains(text, "client-key") || strings.Contains(text, "token:") {
		t.Errorf("Cluster API's kubeconfig is %s, want the hub's proxy and no credential", text)
	}
	// Requests through the hub to a kubelet: logs of a pod that is not an agent.
	if out, err := h.web(t.Context(), "-n", "kube-system", "logs", "daemonset/kube-proxy", "--tail=1"); err != nil || out == "" {
		t.Errorf("logs through the hub: %q, %v", out, err)
	}
}

// measures logs how long the first control plane takes with a hub that stays available: the host's own work, and the
// additional time.
func (h *realHosts) measures(t *testing.T, began time.Time) {
	t.Helper()
	h.eventually(t, "the Cluster is connected", func(ctx context.Context) error {
		cluster := &v1.Cluster{}
		if err := h.hub.Client.Get(ctx, types.NamespacedName{Namespace: teamSpace, Name: "web"}, cluster); err != nil {
			return err
		}
		if !framework.Ready(cluster) {
			return errors.New(h.overview(ctx))
		}
		return nil
	})
	ready := time.Now()
	for name := range h.bootstraps(t) {
		if h.has(t.Context(), name, "/etc/kubernetes/admin.conf") != nil {
			continue // a worker
		}
		installs, begins, ended := h.mark(t, name, "installs"), h.mark(t, name, "kubeadm-begins"), h.mark(t, name, "kubeadm-ended")
		rounded := func(from, to time.Time) time.Duration { return to.Sub(from).Round(100 * time.Millisecond) }
		t.Logf("MEASURED: kubectl apply to Connected %s: until the bootstrap begins %s, images and programs %s, kubeadm %s, until Connected %s",
			rounded(began, ready), rounded(began, installs), rounded(installs, begins), rounded(begins, ended), rounded(ended, ready))
	}
}

// mark returns the time that a host has recorded.
func (h *realHosts) mark(t *testing.T, host, name string) time.Time {
	t.Helper()
	raw, err := os.ReadFile(h.lab.HostLog(host, name))
	if err != nil {
		t.Fatal(err)
	}
	seconds, err := strconv.ParseFloat(strings.TrimSpace(string(raw)), 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.UnixMilli(int64(seconds * 1000))
}

// refusesOthers tries to connect from the network of the hub, and from the bridge.
func (h *realHosts) refusesOthers(t *testing.T) {
	address := net.JoinHostPort(h.address(t, "m1"), "10250") // every node has a kubelet
	if out, err := h.try(t.Context(), "m2", "curl", "-ksS", "--max-time", "5", "-o", "/dev/null", "https://"+address); err != nil {
		t.Errorf("a host does not reach another one: %s %v", out, err)
	}
	dialer := net.Dialer{Timeout: 3 * time.Second}
	if connection, err := dialer.DialContext(t.Context(), "tcp", address); err == nil {
		t.Errorf("the hub reaches %s", connection.RemoteAddr())
	}
	beside, err := h.lab.Beside("curl", "-ksS", "--max-time", "5", "-o", "/dev/null", "https://"+address)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), beside[0], beside[1:]...).CombinedOutput(); err == nil || !strings.Contains(string(out), "timed out") {
		t.Errorf("a connection from the bridge: %s, %v, want it to be dropped", out, err)
	}
}

func (h *realHosts) growsTheControlPlane(t *testing.T) {
	first := h.versions[0].version
	before := h.bootstraps(t)
	h.applyCluster(t, first, "1", 3, 0)
	h.cutOff(t, before)
	h.isWhole(t, first, 3, 0)
	total := 0
	for _, n := range h.bootstraps(t) {
		total += n
	}
	if total != 5 {
		t.Errorf("hosts ran bootstraps %v, want 3 and one more on each of those that were workers", h.bootstraps(t))
	}
}

// controlPlaneHosts returns the Hosts with a machine of the control plane.
func (h *realHosts) controlPlaneHosts(t *testing.T) []string {
	t.Helper()
	list := &infrav1.DroverMachineList{}
	if err := h.hub.Client.List(t.Context(), list, client.InNamespace(teamSpace)); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range list.Items {
		if _, is := m.Labels[clusterapi.LabelControlPlane]; is {
			names = append(names, m.Status.HostName)
		}
	}
	slices.Sort(names)
	return names
}

func (h *realHosts) replacesADeadOne(t *testing.T) {
	first, before := h.versions[0].version, h.bootstraps(t)
	h.apply(t, `
apiVersion: cluster.x-k8s.io/v1beta2
kind: MachineHealthCheck
metadata: {name: lost, namespace: team}
spec:
  clusterName: web
  selector: {matchLabels: {cluster.x-k8s.io/control-plane: ""}}
  checks:
    nodeStartupTimeoutSeconds: 1800
    unhealthyNodeConditions: [{type: Ready, status: Unknown, timeoutSeconds: 10}]
`)
	h.join(t, "m4")
	if err := h.lab.Kill("m1"); err != nil {
		t.Fatal(err)
	}
	h.killAgentAtEachStep(t, "m4", "plan.json", "journal/bootstrap-*", "journal/bootstrap-*/begun", "/var/log/lab/kubeadm-begins.log", "/etc/kubernetes/kubelet.conf", "journal/bootstrap-*/result.json")
	if host := h.cutOff(t, before); host != "m4" {
		t.Errorf("%s runs a bootstrap, want m4", host)
	}
	h.eventually(t, "m4 is in the place of m1", func(ctx context.Context) error {
		if got := h.controlPlaneHosts(t); !slices.Equal(got, []string{"m2", "m3", "m4"}) {
			return fmt.Errorf("the control plane is on %v\n%s", got, h.overview(ctx))
		}
		return nil
	})
	h.isWhole(t, first, 3, 0)
	before["m4"] = 1
	h.isBootstrapped(t, before)
	host := &v1.Host{}
	if err := h.hub.Client.Get(t.Context(), types.NamespacedName{Namespace: teamSpace, Name: "m1"}, host); err != nil || host.Spec.ConsumerRef == nil {
		t.Errorf("%v, %+v: want the lost Host to be taken until it was cleaned", err, host.Spec.ConsumerRef)
	}
}

// killAgentAtEachStep kills the agent of a host whenever another of these files exists. The files are patterns of sh,
// relative to the folder of its state.
func (h *realHosts) killAgentAtEachStep(t *testing.T, host string, files ...string) {
	t.Helper()
	script := `cd /var/lib/drover/host-agent/state
for file; do
	until ls $file; do sleep 0.02; done >/dev/null 2>&1
	until pid=$(pgrep -f '^/usr/local/bin/drover-host-agent run$'); do sleep 0.05; done
	kill -9 $pid && echo "$file" >>/var/log/lab/agent-killed.log
done`
	args, err := h.lab.Enter(host, append([]string{pathOfHosts, "sh", "-c", script, "killer"}, files...)...)
	if err != nil {
		t.Fatal(err)
	}
	killer := exec.CommandContext(h.t.Context(), args[0], args[1:]...)
	if err := killer.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = killer.Process.Kill()
		_ = killer.Wait()
		raw, err := os.ReadFile(h.lab.HostLog(host, "agent-killed"))
		if got := strings.Count(string(raw), "\n"); err != nil || got != len(files) {
			t.Errorf("the agent was killed at %q (%v), want each of %q", raw, err, files)
		}
	})
}

func (h *realHosts) takesBackTheDeadOne(t *testing.T) {
	// A health check with such a short timeout would replace machines that are only slow.
	if _, err := h.hub.Kubectl(t.Context(), nil, "-n", teamSpace, "delete", "machinehealthchecks.cluster.x-k8s.io", "lost"); err != nil {
		t.Fatal(err)
	}
	h.up(t)
	h.free(t, 1)
	h.isClean(t, "m1")
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error { return h.connected(ctx) })
}

// isClean checks that nothing of a cluster is left on a host.
func (h *realHosts) isClean(t *testing.T, host string) {
	t.Helper()
	script := `ls /etc/kubernetes/manifests/* /etc/kubernetes/*.conf /etc/cni/net.d/* /var/lib/etcd/* 2>/dev/null; nft list tables | grep kube-proxy; iptables-save | grep KUBE-; ctr --namespace k8s.io tasks list --quiet; systemctl is-active kubelet`
	if out, _ := h.try(t.Context(), host, "sh", "-c", script+"; true"); out != "inactive\n" {
		t.Errorf("%s is not clean: %s", host, out)
	}
}

func (h *realHosts) upgrades(t *testing.T) {
	next, before := h.versions[len(h.versions)-1].version, h.bootstraps(t)
	h.applyCluster(t, next, "2", 3, 0)
	h.cutOff(t, before)
	h.isWhole(t, next, 3, 0)
	total := 0
	for name, n := range h.bootstraps(t) {
		total += n - before[name]
	}
	if total != 3 {
		t.Errorf("hosts ran bootstraps %v after %v, want one more for each machine", h.bootstraps(t), before)
	}
	h.free(t, 1)
}

func (h *realHosts) removesTheCluster(t *testing.T) {
	if _, err := h.hub.Kubectl(t.Context(), nil, "-n", teamSpace, "delete", "clusters.cluster.x-k8s.io", "web", "--wait=false"); err != nil {
		t.Fatal(err)
	}
	h.free(t, 4)
	for _, name := range []string{"m1", "m2", "m3", "m4"} {
		h.isClean(t, name)
	}
}
