// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"maps"
	"strings"
	"testing"
)

func TestCatalogPinsWhatItBuilds(t *testing.T) {
	c, err := newCatalog()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(DefaultPrograms(), Scheduler, Kubelet, KubeProxy) {
		p, ok := c[name]
		if !ok {
			t.Errorf("%s is not in the catalog", name)
			continue
		}
		if !strings.HasPrefix(p.module.version, "v") || len(p.module.sum) == 0 {
			t.Errorf("%s is not pinned: version %q, %d bytes of go.sum", name, p.module.version, len(p.module.sum))
		}
	}
	flags := kubernetesLDFlags("v1.36.3")
	for _, want := range []string{"gitVersion=v1.36.3", "gitMajor=1", "gitMinor=36"} {
		if !strings.Contains(flags, want) {
			t.Errorf("ldflags %q lack %s", flags, want)
		}
	}
}

func TestTheOldestVersionIsBuiltBesideTheNewest(t *testing.T) {
	newest, err := newCatalog()
	if err != nil {
		t.Fatal(err)
	}
	oldest, err := oldestCatalog()
	if err != nil {
		t.Fatal(err)
	}
	if newest.stamp("linux", "amd64") == oldest.stamp("linux", "amd64") {
		t.Error("both versions have the same folder")
	}
	for _, name := range []string{APIServer, ControllerManager} {
		if m := oldest[name].module; m.version != "v1.30.0" || !strings.Contains(m.ldflags, "gitVersion=v1.30.0") || len(m.sum) == 0 {
			t.Errorf("%s is of %s with flags %q, want the pinned v1.30.0", name, m.version, m.ldflags)
		}
	}
	if oldest[Kubectl].module.version != newest[Kubectl].module.version {
		t.Error("kubectl is not the newest: users of old clusters have it too")
	}
	if len(oldest) != len(DefaultPrograms()) {
		t.Errorf("the catalog has %d programs, want the %d of a control plane without nodes", len(oldest), len(DefaultPrograms()))
	}
}

func TestStamp(t *testing.T) {
	base := func() catalog {
		return catalog{"tiny": {"tiny", "example.com/tiny", module{
			name: "tiny", version: "v1.0.0", mod: []byte("mod"), sum: []byte("sum"), ldflags: "-s",
		}}}
	}
	original := base().stamp("linux", "amd64")
	if again := base().stamp("linux", "amd64"); again != original {
		t.Fatalf("the same inputs gave %s and %s", original, again)
	}
	if !strings.HasPrefix(original, "tiny-v1.0.0-linux-amd64-") {
		t.Errorf("people cannot read the stamp %s", original)
	}
	changes := map[string]func(*module){
		"go.mod":                       func(m *module) { m.mod = []byte("mod2") },
		"go.sum":                       func(m *module) { m.sum = []byte("sum2") },
		"flags":                        func(m *module) { m.ldflags = "-w" },
		"tags":                         func(m *module) { m.tags = "small" },
		"version":                      func(m *module) { m.version = "v1.0.1" },
		"text moved from mod to sum":   func(m *module) { m.mod, m.sum = []byte("mo"), []byte("dsum") },
		"text moved from flags to mod": func(m *module) { m.ldflags, m.mod = "-", []byte("smod") },
	}
	stamps := map[string]string{original: "no change"}
	check := func(what, stamp string) {
		t.Run("a change of "+what+" gives another stamp", func(t *testing.T) {
			if other, taken := stamps[stamp]; taken {
				t.Errorf("it is the stamp of %q too", other)
			}
			stamps[stamp] = what
		})
	}
	for what, change := range changes {
		c := maps.Clone(base())
		p := c["tiny"]
		change(&p.module)
		c["tiny"] = p
		check(what, c.stamp("linux", "amd64"))
	}
	check("the operating system", base().stamp("darwin", "amd64"))
	check("the architecture", base().stamp("linux", "arm64"))
}

func TestRequiredVersion(t *testing.T) {
	const mod = "module m\n\ntool example.com/a\n\nrequire example.com/b v1.2.3\n\nrequire (\n\texample.com/a v4.5.6 // indirect\n)\n"
	for path, want := range map[string]string{"example.com/a": "v4.5.6", "example.com/b": "v1.2.3", "example.com/c": ""} {
		if got := requiredVersion(mod, path); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}

func TestMinorOf(t *testing.T) {
	for version, want := range map[string]string{"v1.36.3": "1.36.x", "v1.40.0-rc.1": "1.40.x"} {
		if got := minorOf(version); got != want {
			t.Errorf("%s: got %q, want %q", version, got, want)
		}
	}
}

func TestToolsArePinned(t *testing.T) {
	for name, modules := range map[string][]string{
		"flux":       {"github.com/fluxcd/kustomize-controller", "github.com/fluxcd/source-controller", "github.com/fluxcd/kustomize-controller/api"},
		"argocd":     {"github.com/argoproj/argo-cd/v3"},
		"kubeadm":    {kubernetesModule},
		"etcdtools":  {"go.etcd.io/etcd/etcdctl/v3", "go.etcd.io/etcd/etcdutl/v3"},
		"clusterapi": {ClusterAPIModule, ClusterAPIModule + "/api"},
	} {
		for _, path := range modules {
			if m, err := readModule(name, path); err != nil || !strings.HasPrefix(m.version, "v") || len(m.sum) == 0 {
				t.Errorf("%s is of %q with %d bytes of go.sum (%v), want it pinned", path, m.version, len(m.sum), err)
			}
		}
	}
}
