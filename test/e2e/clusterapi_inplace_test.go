// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
	"github.com/drover-dev/drover/test/testkit"
)

// Versions of the machines. Only the names of the versions are real: the installed programs are the stand-ins in
// testdata.
const firstVersion, secondVersion, thirdVersion = "v1.36.1", "v1.36.2", "v1.36.3"

// TestLong_ClusterAPIUpdatesHostsInPlace creates a cluster of three control planes and two workers from the sample
// ClusterClass, with Cluster API's managers set up as in TestLong_ClusterAPIMakesAClusterOfHosts. It changes the
// cluster's version twice. Each machine is updated in place once, and none is replaced.
func TestLong_ClusterAPIUpdatesHostsInPlace(t *testing.T) {
	t.Parallel()
	c := startClusterAPI(t, "ClusterTopology=true,RuntimeSDK=true,InPlaceUpdates=true", true)
	c.version = firstVersion
	c.step(t, "machines join", func(t *testing.T) {
		for _, name := range []string{"c1", "c2", "c3"} {
			c.join(t, name, map[string]string{"role": "control-plane"})
		}
		for _, name := range []string{"w1", "w2"} {
			c.join(t, name, map[string]string{"role": "worker"})
		}
	})
	c.step(t, "a Cluster of a class becomes machines on Hosts", c.ofClass)
	before := c.identities(t)
	c.step(t, "Cluster API finds the hooks", c.extension)
	c.step(t, "the hub is killed while the first machine is updated, and each is updated once", func(t *testing.T) { c.update(t, before) })
	c.step(t, "an update that fails is said, stops the others, and is tried again by a person", func(t *testing.T) { c.failedUpdate(t, before) })
}

// sample returns a manifest of config/clusterapi with modified objects.
func sample(t *testing.T, file string, change func(*unstructured.Unstructured)) string {
	t.Helper()
	raw, err := os.ReadFile(testkit.Path(t, filepath.Join("config/clusterapi", file)))
	if err != nil {
		t.Fatal(err)
	}
	var out [][]byte
	for document := range strings.SplitSeq(string(raw), "\n---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			t.Fatal(err)
		}
		change(object)
		text, err := yaml.Marshal(object.Object)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, text)
	}
	return string(bytes.Join(out, []byte("\n---\n")))
}

// set sets a field.
func set(t *testing.T, object *unstructured.Unstructured, value any, path ...string) {
	t.Helper()
	if err := unstructured.SetNestedField(object.Object, value, path...); err != nil {
		t.Fatal(err)
	}
}

func (c *capi) ofClass(t *testing.T) {
	installer := filepath.Join(c.dir, "install-kubernetes.sh")
	c.standIn(t, c.machines["c1"], "install-kubernetes.sh", installer)
	c.externalEtcd(t)
	// Cluster API inspects the etcd of its own control planes through a kubelet. There is no kubelet here, so etcd is
	// configured as external.
	class := sample(t, "samples/class.yaml", func(o *unstructured.Unstructured) {
		o.SetNamespace(teamSpace)
		switch o.GetKind() {
		case "ClusterClass":
			set(t, o, map[string]any{"controlplane.cluster.x-k8s.io/skip-kube-proxy": "", "controlplane.cluster.x-k8s.io/skip-coredns": ""}, "spec", "controlPlane", "metadata", "annotations")
		case "KubeadmControlPlaneTemplate":
			pki := "/etc/kubernetes/pki/"
			set(t, o, map[string]any{"endpoints": []any{"https://127.0.0.1:1"}, "caFile": pki + "etcd/ca.crt", "certFile": pki + "apiserver-etcd-client.crt", "keyFile": pki + "apiserver-etcd-client.key"},
				"spec", "template", "spec", "kubeadmConfigSpec", "clusterConfiguration", "etcd", "external")
		}
	})
	ours, _, _ := strings.Cut(clusterManifest, "---\napiVersion: cluster.x-k8s.io/v1beta2\nkind: Cluster\n")
	c.apply(t, ours)
	c.apply(t, class)
	c.awaitObject(t, "cluster.x-k8s.io", "ClusterClass", "hosts", hasCondition("VariablesReady"))
	c.apply(t, sample(t, "samples/cluster.yaml", func(o *unstructured.Unstructured) {
		o.SetNamespace(teamSpace)
		set(t, o, c.version, "spec", "topology", "version")
		set(t, o, []any{
			map[string]any{"name": "controlPlaneEndpoint", "value": map[string]any{"host": "127.0.0.1", "port": number(t, c.port)}},
			map[string]any{"name": "installer", "value": installer},
		}, "spec", "topology", "variables")
	}))
	c.initialized(t)
	c.awaitObject(t, "cluster.x-k8s.io", "Cluster", "web", hasCondition("Available"))
	c.awaitObject(t, "cluster.x-k8s.io", "Cluster", "web", isNumber(3, "status", "controlPlane", "upToDateReplicas"))
	c.awaitObject(t, "cluster.x-k8s.io", "Cluster", "web", isNumber(2, "status", "workers", "upToDateReplicas"))
	c.settled(t, firstVersion)
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	var n int64
	if _, err := fmt.Sscan(text, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// externalEtcd creates the Secrets that Cluster API needs for an external etcd. Nothing here reads their content.
func (c *capi) externalEtcd(t *testing.T) {
	t.Helper()
	dir := filepath.Join(c.dir, "etcd-certificates")
	certificate := servingCertificate(t, dir)
	key, err := os.ReadFile(filepath.Join(dir, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]map[string][]byte{"web-etcd": {"tls.crt": certificate}, "web-apiserver-etcd-client": {"tls.crt": certificate, "tls.key": key}} {
		create(t, c.hub.Plane, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: name, Labels: map[string]string{clusterapi.LabelCluster: "web"}}, Type: "cluster.x-k8s.io/secret", Data: data,
		})
	}
}

// settled waits until all five machines have a version and are ready.
func (c *capi) settled(t *testing.T, version string) {
	t.Helper()
	testkit.Eventually(t, 8*time.Minute, func(ctx context.Context) error {
		machines := c.machinesOf(t)
		for _, m := range machines {
			wanted, _, _ := unstructured.NestedString(m.Object, "spec", "version")
			kubelet, _, _ := unstructured.NestedString(m.Object, "status", "nodeInfo", "kubeletVersion")
			_, updating := m.GetAnnotations()["in-place-updates.internal.cluster.x-k8s.io/update-in-progress"]
			if ready := hasCondition("Ready")(&m); wanted != version || kubelet != version || updating || ready != nil {
				return fmt.Errorf("Machine %s has version %s and kubelet %s, updating: %v, %w; want %s:\n%s", m.GetName(), wanted, kubelet, updating, ready, version, c.overview(ctx))
			}
		}
		if len(machines) != 5 {
			return fmt.Errorf("%d machines, want 5:\n%s", len(machines), c.overview(ctx))
		}
		return nil
	})
}

// identities returns the Machines with their Hosts.
func (c *capi) identities(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, m := range c.machinesOf(t) {
		id, _, _ := unstructured.NestedString(m.Object, "spec", "providerID")
		out = append(out, m.GetName()+" "+string(m.GetUID())+" "+id)
	}
	slices.Sort(out)
	return out
}

func (c *capi) extension(t *testing.T) {
	c.apply(t, sample(t, "../clusterapi-inplace/extension.yaml", func(o *unstructured.Unstructured) {
		o.SetAnnotations(nil)
		set(t, o, map[string]any{
			"url": "https://" + c.hooks + "/v1/cluster-api", "caBundle": base64.StdEncoding.EncodeToString(c.hooksCA),
		}, "spec", "clientConfig")
	}))
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		_, err := c.hub.Kubectl(ctx, nil, "wait", "--for=condition=Discovered", "extensionconfig", "drover", "--timeout=1s")
		return err
	})
}

// hold makes installers wait, or fail, until the returned function is called.
func (c *capi) hold(t *testing.T, how string) (release func()) {
	t.Helper()
	file := filepath.Join(c.dir, how)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

// upgrade changes the version of the cluster, as a user does. For a moment after the last machine has been updated,
// Cluster API rejects the change, because its own hooks have not yet noticed that the upgrade is complete.
func (c *capi) upgrade(t *testing.T, version string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		_, err := c.hub.Kubectl(ctx, nil, "-n", teamSpace, "patch", "clusters.cluster.x-k8s.io", "web", "--type=merge", "-p", `{"spec": {"topology": {"version": "`+version+`"}}}`)
		return err
	})
}

// awaitTask waits until a machine has a task in the given state, and returns the task.
func (c *capi) awaitTask(t *testing.T, state infrav1.TaskState) *infrav1.DroverMachine {
	t.Helper()
	var found *infrav1.DroverMachine
	testkit.Eventually(t, 4*time.Minute, func(ctx context.Context) error {
		machines := &infrav1.DroverMachineList{}
		if err := c.hub.Client.List(ctx, machines, client.InNamespace(teamSpace)); err != nil {
			return err
		}
		for i, m := range machines.Items {
			if slices.ContainsFunc(m.Status.Tasks, func(s infrav1.MachineTaskStatus) bool { return s.State == state }) {
				found = &machines.Items[i]
				return nil
			}
		}
		return fmt.Errorf("no machine has a task that is %s:\n%s", state, c.overview(ctx))
	})
	return found
}

func (c *capi) update(t *testing.T, before []string) {
	release := c.hold(t, "hold")
	defer release()
	c.upgrade(t, secondVersion)
	c.awaitTask(t, infrav1.TaskRunning)
	kill(t, c.hub.Manager)
	kill(t, c.hub.Provisioner.Process)
	release()
	startAgain(t, c.hub)
	c.settled(t, secondVersion)
	c.same(t, before)
	for name, m := range c.machines {
		begun := strings.Fields(ran(t, m.path("kubeadm-ran")))[0]
		if got := ran(t, m.path("kubeadm-ran")); got != begun+" upgrade kubelet" {
			t.Errorf("%s ran %q, want kubeadm's %s, then one upgrade and the kubelet started once again", name, got, begun)
		}
		if got := ran(t, filepath.Join(c.dir, name+"-installed")); got != "install-"+secondVersion {
			t.Errorf("%s has installed %q, want %s once", name, got, secondVersion)
		}
	}
}

// same checks that each machine is unchanged and still on its Host.
func (c *capi) same(t *testing.T, before []string) {
	t.Helper()
	if after := c.identities(t); !slices.Equal(after, before) {
		t.Errorf("the machines are\n%s\nwant them to be those that there were:\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
}

func (c *capi) failedUpdate(t *testing.T, before []string) {
	release := c.hold(t, "broken")
	defer release()
	c.upgrade(t, thirdVersion)
	failed := c.awaitTask(t, infrav1.TaskFailed)
	condition := meta.FindStatusCondition(failed.Status.Conditions, infrav1.ConditionTasksSucceeded)
	if condition == nil || condition.Reason != infrav1.ReasonTaskFailed || !strings.Contains(condition.Message, "no space left for "+thirdVersion) {
		t.Errorf("the condition is %+v, want it to have the last lines of what failed", condition)
	}
	if !meta.IsStatusConditionTrue(failed.Status.Conditions, infrav1.ConditionReady) {
		t.Error("the machine is not ready: that a machine was not updated is no reason to replace it")
	}
	machine := failed.OwnerReferences[0].Name
	c.awaitObject(t, "cluster.x-k8s.io", "Machine", machine, func(o *unstructured.Unstructured) error {
		all, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		for _, item := range all {
			if condition, ok := item.(map[string]any); ok && condition["type"] == "Updating" && condition["reason"] == "InPlaceUpdateFailed" {
				return nil
			}
		}
		return errors.New("the Machine does not say that its update failed")
	})
	attempts := 0
	for name := range c.machines {
		attempts += strings.Count(ran(t, filepath.Join(c.dir, name+"-installed")), thirdVersion)
	}
	if attempts != 5 {
		t.Errorf("%d attempts to install, want five on one machine", attempts)
	}
	release()
	if _, err := c.hub.Kubectl(t.Context(), nil, "-n", teamSpace, "annotate", "drovermachine", failed.Name, infrav1.AnnotationUpdateAttempt+"=2"); err != nil {
		t.Fatal(err)
	}
	c.settled(t, thirdVersion)
	c.same(t, before)
}
