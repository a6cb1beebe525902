// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

const (
	testURL   = "https://drover.example.com"
	testImage = "registry.test/drover:v9"
)

// inRepository runs a command in the root of the sources and returns its output.
func inRepository(t *testing.T, env []string, name string, args ...string) []byte {
	t.Helper()
	root, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), name, args...)
	command.Dir, command.Env = root, append(os.Environ(), env...)
	var problems strings.Builder
	command.Stderr = &problems
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, problems.String(), out)
	}
	return out
}

// rendered is what "helm template --include-crds" prints for the chart, by Helm's own packages: to compile its whole
// command takes minutes.
func rendered(t *testing.T, dir, namespace string, values map[string]any) []byte {
	t.Helper()
	loaded, err := loader.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	options := common.ReleaseOptions{Name: "drover", Namespace: namespace, IsInstall: true, Revision: 1}
	all, err := util.ToRenderValues(loaded, values, options, common.DefaultCapabilities)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.Render(loaded, all)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, crd := range loaded.CRDObjects() {
		fmt.Fprintf(&out, "\n---\n%s", crd.File.Data)
	}
	for _, name := range sorted(files) {
		if strings.HasSuffix(name, ".yaml") {
			fmt.Fprintf(&out, "\n---\n%s", files[name])
		}
	}
	return out.Bytes()
}

// testChart writes the chart into a folder of the test.
func testChart(t *testing.T) string {
	t.Helper()
	root, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	r := testRelease(t)
	r.root, r.image = root, testImage
	if err := r.chart(t.Context()); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(r.dist, "chart")
}

var hashOfConfig = regexp.MustCompile(`drover-config-[a-z0-9]{10}`)

// byName maps objects to what names them. The configuration counts as what it says: its text, and so the hash in its
// name, depend on who wrote the YAML.
func byName(t *testing.T, stream []byte) map[string]object {
	t.Helper()
	all, err := objects(hashOfConfig.ReplaceAll(stream, []byte("drover-config")))
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]object{}
	for _, o := range all {
		key := strings.Join([]string{o.text("apiVersion"), o.text("kind"), o.text("metadata", "namespace"), o.text("metadata", "name")}, "/")
		if _, twice := named[key]; twice {
			t.Errorf("%s is there twice", key)
		}
		if text := o.text("data", "config.yaml"); text != "" {
			var config any
			if err := yaml.Unmarshal([]byte(text), &config); err != nil {
				t.Fatal(err)
			}
			at(o, "data").(map[string]any)["config.yaml"] = config
		}
		named[key] = o
	}
	return named
}

// differences between two sets of objects.
func differences(got, want map[string]object) (found []string) {
	for _, key := range sorted(want) {
		if _, there := got[key]; !there {
			found = append(found, "lacks "+key)
		} else if !reflect.DeepEqual(got[key], want[key]) {
			a, _ := yaml.Marshal(got[key])
			b, _ := yaml.Marshal(want[key])
			found = append(found, fmt.Sprintf("has another %s:\n%s\nwant:\n%s", key, a, b))
		}
	}
	for _, key := range sorted(got) {
		if _, there := want[key]; !there {
			found = append(found, "has "+key+" in addition")
		}
	}
	return found
}

func same(t *testing.T, name string, got, want map[string]object) {
	t.Helper()
	for _, difference := range differences(got, want) {
		t.Errorf("%s %s", name, difference)
	}
}

// testDifferences expects that a change of any object is found, and a missing and an additional one.
func testDifferences(t *testing.T, all map[string]object) {
	expect := func(other map[string]object, want string) {
		t.Helper()
		if found := differences(other, all); len(found) != 1 || !strings.HasPrefix(found[0], want) {
			t.Errorf("found %q, want one difference that begins with %q", found, want)
		}
	}
	for key, o := range all {
		less := maps.Clone(all)
		delete(less, key)
		expect(less, "lacks "+key)
		for field := range o {
			changed := maps.Clone(all)
			changed[key] = maps.Clone(o)
			changed[key][field] = "other"
			expect(changed, "has another "+key)
		}
	}
	more := maps.Clone(all)
	more["v1/Secret//new"] = object{}
	expect(more, "has v1/Secret//new in addition")
}

func TestOverlayInstallerAndChartGiveTheSameObjects(t *testing.T) {
	root, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	installer := byName(t, inRepository(t, []string{"IMG=" + testImage, "URL=" + testURL}, "hack/deploy.sh", "render"))
	if len(installer) < 80 {
		t.Fatalf("only %d objects: the test does not see all", len(installer))
	}
	overlay := filepath.Join(t.TempDir(), "overlay")
	base, err := filepath.Rel(overlay, filepath.Join(root, "config", "default"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(filepath.Join(root, "config", "manager", "config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	kustomization := "resources: [" + base + "]\nimages: [{name: drover, newName: registry.test/drover, newTag: v9}]\n" +
		"configMapGenerator: [{name: drover-config, namespace: drover-system, behavior: replace, files: [config.yaml]}]\n"
	if err := os.Mkdir(overlay, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"kustomization.yaml": kustomization, "config.yaml": string(config)} {
		if err := os.WriteFile(filepath.Join(overlay, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	same(t, "an overlay over config/default", byName(t, inRepository(t, nil, "go", "tool", "-modfile=hack/tools/kustomize.mod", "kustomize", "build", overlay)), installer)
	same(t, "the chart", byName(t, rendered(t, testChart(t), manifestNamespace, map[string]any{"createNamespace": true, "config": address()})), installer)
	t.Run("a difference in any object is found", func(t *testing.T) { testDifferences(t, installer) })
}

func address() map[string]any {
	return map[string]any{"server": map[string]any{"urls": []any{testURL}}}
}

func TestHelmFindsNoFaultInTheChart(t *testing.T) {
	for _, message := range lint.RunAll(testChart(t), map[string]any{"config": address()}, manifestNamespace).Messages {
		if message.Severity >= support.WarningSev {
			t.Error(message)
		}
	}
}

func TestAChartWithoutAddressSaysWhatToSet(t *testing.T) {
	loaded, err := loader.Load(testChart(t))
	if err != nil {
		t.Fatal(err)
	}
	all, err := util.ToRenderValues(loaded, nil, common.ReleaseOptions{Name: "drover", Namespace: "n"}, common.DefaultCapabilities)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := engine.Render(loaded, all); err == nil || !strings.Contains(err.Error(), "set config.server.urls") {
		t.Errorf("the error is %v, want one that says to set config.server.urls", err)
	}
}

func TestTheChartRefusesInvalidValues(t *testing.T) {
	loaded, err := loader.Load(testChart(t))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"foo: bar":                                    "'foo'",
		"replicas: 0":                                 "/replicas",
		"config: {server: {urls: [http://x]}}":        "/config/server/urls/0",
		"service: {type: Ingress}":                    "/service/type",
		"service: {nodePort: 30443}":                  "/service/type",
		"config: {server: {urls: ['https://']}}":      "/config/server/urls/0",
		"image: {digest: 'sha256:0123'}":              "/image/digest",
		"service: {type: NodePort, nodePort: 100000}": "/service/nodePort",
		"image: {repository: a, tagg: b}":             "'tagg'",
		"ingress: {enabled: maybe}":                   "/ingress/enabled",
		"gateway: {enabled: true, parentRefs: a}":     "/gateway/parentRefs",
	} {
		var values map[string]any
		if err := yaml.Unmarshal([]byte(text), &values); err != nil {
			t.Fatal(err)
		}
		_, err := util.ToRenderValues(loaded, values, common.ReleaseOptions{Name: "drover", Namespace: "n"}, common.DefaultCapabilities)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v, want one about %s", text, err, want)
		}
	}
}

func TestTheChartExposesTheHubAsTheOverlaysDo(t *testing.T) {
	values := map[string]any{"config": address(), "ingress": map[string]any{"enabled": true}, "gateway": map[string]any{
		"enabled":    true,
		"parentRefs": []any{map[string]any{"name": "gateway", "namespace": "gateway", "sectionName": "tls"}},
	}}
	chart := byName(t, rendered(t, testChart(t), manifestNamespace, values))
	for folder, name := range map[string]string{
		"ingress": "networking.k8s.io/v1/Ingress/drover-system/drover",
		"gateway": "gateway.networking.k8s.io/v1/TLSRoute/drover-system/drover",
	} {
		overlay := byName(t, inRepository(t, nil, "go", "tool", "-modfile=hack/tools/kustomize.mod", "kustomize", "build", "config/expose/"+folder))
		if overlay[name] == nil || !reflect.DeepEqual(chart[name], overlay[name]) {
			t.Errorf("the chart has\n%v\nwant as in config/expose/%s\n%v", chart[name], folder, overlay[name])
		}
	}
}

func TestTheValuesOfTheChartReachTheObjects(t *testing.T) {
	var values map[string]any
	if err := yaml.Unmarshal([]byte(`
image: {repository: mirror.test/drover, digest: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", pullPolicy: Always}
imagePullSecrets: [{name: mirror}]
replicas: 3
resources: {limits: {memory: 2Gi}}
priorityClassName: system-cluster-critical
tolerations: [{key: infra, operator: Exists}]
nodeSelector: {disk: ssd}
service: {type: LoadBalancer, nodePort: 30443, annotations: {a: b}, loadBalancerClass: c}
config: {server: {urls: ["https://hub.test"]}, audit: {level: Metadata}}
`), &values); err != nil {
		t.Fatal(err)
	}
	got := byName(t, rendered(t, testChart(t), "elsewhere", values))
	pod := at(got["apps/v1/Deployment/elsewhere/drover-manager"], "spec", "template", "spec")
	container, err := managerOf(got["apps/v1/Deployment/elsewhere/drover-manager"])
	if err != nil {
		t.Fatal(err)
	}
	service, config := got["v1/Service/elsewhere/drover"], at(got["v1/ConfigMap/elsewhere/drover-config"], "data", "config.yaml")
	for name, tt := range map[string]struct{ got, want any }{
		"image":              {container["image"], "mirror.test/drover@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"},
		"pull policy":        {container["imagePullPolicy"], "Always"},
		"pull secrets":       {at(pod, "imagePullSecrets"), []any{map[string]any{"name": "mirror"}}},
		"replicas":           {at(got["apps/v1/Deployment/elsewhere/drover-manager"], "spec", "replicas"), 3.0},
		"memory":             {at(container, "resources", "limits", "memory"), "2Gi"},
		"priority class":     {at(pod, "priorityClassName"), "system-cluster-critical"},
		"tolerations":        {at(pod, "tolerations"), []any{map[string]any{"key": "infra", "operator": "Exists"}}},
		"nodes":              {at(pod, "nodeSelector", "disk"), "ssd"},
		"type of Service":    {at(service, "spec", "type"), "LoadBalancer"},
		"port on nodes":      {at(at(service, "spec", "ports").([]any)[0], "nodePort"), 30443.0},
		"class of balancer":  {at(service, "spec", "loadBalancerClass"), "c"},
		"annotation":         {at(service, "metadata", "annotations", "a"), "b"},
		"address":            {at(config, "server", "urls"), []any{"https://hub.test"}},
		"a key of ours":      {at(config, "audit", "level"), "Metadata"},
		"a default is kept":  {at(config, "peers", "service"), "drover-peers"},
		"namespace":          {at(config, "namespace"), "elsewhere"},
		"the account's name": {at(got["rbac.authorization.k8s.io/v1/ClusterRoleBinding//drover-manager"], "subjects").([]any)[0].(map[string]any)["namespace"], "elsewhere"},
	} {
		if !reflect.DeepEqual(tt.got, tt.want) {
			t.Errorf("%s is %v, want %v", name, tt.got, tt.want)
		}
	}
	for key := range maps.Keys(got) {
		if strings.Contains(key, "/PriorityClass/") || strings.Contains(key, "/Namespace/") {
			t.Errorf("%s is created, though another one was named, or none asked for", key)
		}
	}
}
