// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/lab"
	lablib "github.com/drover-dev/drover/test/lab/nodes"
)

// podsOfFlannel is the pod network in Flannel's manifest. Only Flannel creates routes to it.
const podsOfFlannel = "10.244.0.0/16"

// TestABaselineInstallsTheNetwork uses the manifest of Flannel, on hosts without a network plugin. The programs in the
// images are built from Flannel's module, except its CNI plugin (testdata/flannel).
func TestABaselineInstallsTheNetwork(t *testing.T) {
	n := &network{realHosts: startRealHosts(t, realHosts{addons: addonImages})}
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"hosts join", n.joinThree},
		{"the agent connects although no node has a pod network", n.connectsWithoutNetwork},
		{"a Baseline installs Flannel, with the rights of a role template, and the nodes become ready", n.installsFlannel},
		{"a pod has an address of the network, at which the other node reaches it", n.connectsPods},
		{"the deleted Baseline leaves nothing, and the member stays connected", n.removesFlannel},
	} {
		start := time.Now()
		n.step(t, step.name, step.run)
		t.Logf("%s: %s", step.name, time.Since(start).Round(time.Second))
	}
}

// network is a cluster of hosts in which a Baseline installs Flannel.
type network struct {
	*realHosts
	baseline *v1.Baseline
}

// webImage is an image with a server that responds with its pod's name.
const webImage = "lab.example.com/web:1"

// version is the version of the cluster.
func (n *network) version() string { return n.versions[0].version }

// flannel returns Flannel's programs and its manifest.
func flannel(t *testing.T) (tool *lab.Tool, manifest string) {
	t.Helper()
	tool, err := lab.Flannel(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := tool.Sources(t.Context(), lab.FlannelModule)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "Documentation", "kube-flannel.yml"))
	if err != nil {
		t.Fatal(err)
	}
	return tool, string(raw)
}

// imageIn returns the image in a manifest whose name ends with the given name.
func imageIn(t *testing.T, manifest, name string) string {
	t.Helper()
	found := regexp.MustCompile(`image: (\S+/` + name + `:\S+)`).FindStringSubmatch(manifest)
	if found == nil {
		t.Fatalf("no image %s in\n%s", name, manifest)
	}
	return found[1]
}

// compile builds a static program from a folder of the sources.
func (h *realHosts) compile(t *testing.T, name, folder string) string {
	t.Helper()
	program := filepath.Join(h.dir, name)
	compile := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", program, folder)
	compile.Dir, compile.Env = h.programs.Root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", folder, err, out)
	}
	return program
}

// addonImages returns the images in Flannel's manifest, and the image of a web server.
func addonImages(t *testing.T, h *realHosts) map[string]lablib.Image {
	t.Helper()
	tool, manifest := flannel(t)
	plugin := h.compile(t, "flannel", "./test/e2e/testdata/flannel")
	nft, files := h.linked(t, "nft")
	iptables, more := h.linked(t, "iptables")
	for path := range more {
		files[path] = path
	}
	for _, name := range []string{"iptables", "ip6tables"} {
		files["/"+name], files["/"+name+"-save"], files["/"+name+"-restore"] = iptables, iptables, iptables
	}
	extensions, err := filepath.Glob("/usr/lib/*/xtables/*.so")
	if err != nil || len(extensions) == 0 {
		t.Fatalf("iptables has no extensions: %v", err)
	}
	for _, path := range extensions {
		files[path] = path
	}
	files["/opt/bin/flanneld"], files["/opt/bin/install-conf"] = tool.Assets[lab.Flanneld], tool.Assets[lab.InstallConf]
	return map[string]lablib.Image{
		"flannel": {Name: imageIn(t, manifest, "flannel"), Programs: []string{nft}, Files: files},
		"flannel-cni-plugin": {Name: imageIn(t, manifest, "flannel-cni-plugin"), Programs: []string{plugin},
			Files: map[string]string{"/cp": plugin}},
		"web": {Name: webImage, Programs: []string{h.compile(t, "web", "./test/lab/nodes/testdata/web")}},
	}
}

func (n *network) connectsWithoutNetwork(t *testing.T) {
	n.applyCluster(t, n.version(), "1", 1, 1)
	const states = `jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status} ` +
		`{.status.conditions[?(@.type=="Ready")].message}{"\n"}{end}`
	n.eventually(t, "both nodes have joined, and the agent is connected", func(ctx context.Context) error {
		if err := n.connected(ctx); err != nil {
			return err
		}
		out, err := n.web(ctx, "get", "nodes", "-o", states)
		if nodes := strings.Count(out, "\n"); err != nil || nodes != 2 {
			return fmt.Errorf("%d nodes, want 2: %s %w", nodes, out, err)
		}
		return nil
	})
	out, err := n.web(t.Context(), "get", "nodes", "-o", states)
	if err != nil || strings.Count(out, "False ") != 2 || strings.Count(out, "cni plugin not initialized") != 2 {
		t.Errorf("the nodes are\n%s(%v), want that they wait for a network plugin", out, err)
	}
}

// networkRole contains the rights to create Flannel's objects, and the rights that Flannel's own role grants, because
// users can grant only rights that they have.
func networkRole() *v1.RoleTemplate {
	return &v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: "network"}, Spec: v1.RoleTemplateSpec{
		Context: v1.ContextCluster, Rules: []rbacv1.PolicyRule{
			everything("", "namespaces"), everything("", "serviceaccounts"), everything("", "configmaps"),
			everything("apps", "daemonsets"), everything(rbacv1.GroupName, "clusterroles"),
			everything(rbacv1.GroupName, "clusterrolebindings"),
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}},
			{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch"}},
			{APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}},
		}}}
}

func (n *network) installsFlannel(t *testing.T) {
	_, manifest := flannel(t)
	create(t, n.hub.Plane, networkRole())
	create(t, n.hub.Plane, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: "flannel",
			Labels: map[string]string{"baselines.cluster.drover.dev/use": "true"}},
		Data: map[string]string{"kube-flannel.yml": manifest},
	})
	n.baseline = &v1.Baseline{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: "flannel"}, Spec: v1.BaselineSpec{
		ClusterTarget: v1.ClusterTarget{ClusterSelector: &metav1.LabelSelector{}}, RoleTemplateName: "network",
		From: []v1.BaselineSource{{Kind: "ConfigMap", Name: "flannel"}}}}
	create(t, n.hub.Plane, n.baseline)
	n.eventually(t, "Flannel is healthy", func(ctx context.Context) error {
		if err := n.hub.Client.Get(ctx, client.ObjectKeyFromObject(n.baseline), n.baseline); err != nil {
			return err
		}
		s := n.baseline.Status
		ready := meta.FindStatusCondition(s.Conditions, v1.ConditionReady)
		if ready == nil || ready.Reason != v1.ReasonApplied {
			pods, _ := n.web(ctx, "get", "pods", "-A", "-o", "wide")
			return fmt.Errorf("the Baseline is %+v, %v:\n%s", ready, s.Failures, pods)
		}
		return nil
	})
	n.eventually(t, "the nodes are ready", func(ctx context.Context) error { return n.nodesAre(ctx, n.version(), 2) })
	for host := range n.bootstraps(t) {
		n.exec(t, host, "ls", "/opt/cni/bin/flannel", "/etc/cni/net.d/10-flannel.conflist")
	}
}

// connectsPods has the API server, on the first node, send a request to a pod on the second one.
func (n *network) connectsPods(t *testing.T) {
	if out, err := n.web(t.Context(), "run", "web", "--image="+webImage, "--port=8080"); err != nil {
		t.Fatal(out, err)
	}
	n.eventually(t, "the pod responds through the hub", func(ctx context.Context) error {
		out, err := n.web(ctx, "get", "--raw", "/api/v1/namespaces/default/pods/web:8080/proxy/")
		if err != nil || out != "web\n" {
			return fmt.Errorf("it responds with %q: %w", out, err)
		}
		return nil
	})
	out, err := n.web(t.Context(), "get", "pod", "web", "-o", "jsonpath={.status.podIP}")
	address, parsed := netip.ParseAddr(out)
	if err = errors.Join(err, parsed); err != nil || !netip.MustParsePrefix(podsOfFlannel).Contains(address) {
		t.Errorf("the address of the pod is %q (%v), want one of %s", out, err, podsOfFlannel)
	}
}

func (n *network) removesFlannel(t *testing.T) {
	if err := n.hub.Client.Delete(t.Context(), n.baseline); err != nil {
		t.Fatal(err)
	}
	n.eventually(t, "the objects of the Baseline are gone", func(ctx context.Context) error {
		out, err := n.web(ctx, "get", "-A", "-o", "name", "-l", v1.LabelBaseline,
			"namespaces,serviceaccounts,configmaps,daemonsets,clusterroles,clusterrolebindings")
		if err == nil && out != "" {
			err = fmt.Errorf("they are there:\n%s", out)
		}
		return err
	})
	if err := n.connected(t.Context()); err != nil {
		t.Errorf("the member without Flannel: %v, want it connected", err)
	}
}
