// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Names of the programs that Binaries can provide. envtest needs Etcd, APIServer and Kubectl.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Kubectl           = "kubectl"
	Scheduler         = "kube-scheduler"
	Kubelet           = "kubelet"
	KubeProxy         = "kube-proxy"
)

// moduleFiles contains go.mod and go.sum files under other names, because a folder that contains a go.mod file cannot
// be embedded.
//
//go:embed modules
var moduleFiles embed.FS

// module is a go.mod file with its go.sum file. All programs of a module are built with the same flags.
type module struct {
	name    string
	version string
	mod     []byte
	sum     []byte
	ldflags string
	// tags are the build tags, or "" for none.
	tags string
	// cgo is true if a C compiler is needed.
	cgo bool
	// files are further files that the build needs, by their paths beside go.mod.
	files map[string][]byte
}

// program is a main package together with the module that pins its version.
type program struct {
	name   string
	pkg    string
	module module
}

type catalog map[string]program

// newCatalog reads the embedded modules. It returns an error only if they are malformed.
func newCatalog() (catalog, error) {
	etcd, err := readModule("etcd", "go.etcd.io/etcd/server/v3")
	if err != nil {
		return nil, err
	}
	etcd.ldflags = "-s -w"
	kube, err := readModule("kubernetes", "k8s.io/kubernetes")
	if err != nil {
		return nil, err
	}
	kube.ldflags = kubernetesLDFlags(kube.version)

	c := catalog{Etcd: {Etcd, "go.etcd.io/etcd/server/v3", etcd}}
	for _, name := range []string{APIServer, ControllerManager, Kubectl, Scheduler, Kubelet, KubeProxy} {
		c[name] = program{name, "k8s.io/kubernetes/cmd/" + name, kube}
	}
	return c, nil
}

// oldestCatalog is like newCatalog, but with a control plane of the oldest Kubernetes version that Drover supports.
// It contains the newest kubectl.
func oldestCatalog() (catalog, error) {
	c, err := newCatalog()
	if err != nil {
		return nil, err
	}
	oldest, err := readModule("kubernetes-oldest", "k8s.io/kubernetes")
	if err != nil {
		return nil, err
	}
	oldest.ldflags = kubernetesLDFlags(oldest.version)
	oldest.tags = "providerless" // without this tag, the SDKs of cloud providers double the compile time
	return catalog{
		Etcd: c[Etcd], Kubectl: c[Kubectl],
		APIServer:         {APIServer, c[APIServer].pkg, oldest},
		ControllerManager: {ControllerManager, c[ControllerManager].pkg, oldest},
	}, nil
}

func readModule(name, mainModule string) (module, error) {
	mod, err := moduleFiles.ReadFile("modules/" + name + ".mod")
	if err != nil {
		return module{}, fmt.Errorf("read module %s: %w", name, err)
	}
	sum, err := moduleFiles.ReadFile("modules/" + name + ".sum")
	if err != nil {
		return module{}, fmt.Errorf("read module %s: %w", name, err)
	}
	version := requiredVersion(string(mod), mainModule)
	if version == "" {
		return module{}, fmt.Errorf("read module %s: it does not require %s", name, mainModule)
	}
	return module{name: name, version: version, mod: mod, sum: sum}, nil
}

// requiredVersion returns the version of the module path in the text of a go.mod file, or "" if the file does not
// require it.
func requiredVersion(mod, path string) string {
	for line := range strings.Lines(mod) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) >= 2 && fields[0] == path && strings.HasPrefix(fields[1], "v") {
			return fields[1]
		}
	}
	return ""
}

// kubernetesLDFlags returns linker flags that set the version in the binaries. Without them, a server reports the
// version v0.0.0-master.
func kubernetesLDFlags(version string) string {
	const pkg = "k8s.io/component-base/version."
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	flags := "-s -w -X " + pkg + "gitVersion=" + version
	if len(parts) == 3 {
		flags += " -X " + pkg + "gitMajor=" + parts[0] + " -X " + pkg + "gitMinor=" + parts[1]
	}
	return flags + " -X " + pkg + "gitTreeState=clean"
}

// parts returns everything that influences the module's binaries. It omits empty tags.
func (m module) parts() [][]byte {
	parts := [][]byte{[]byte(m.name), []byte(m.ldflags), m.mod, m.sum}
	if m.tags != "" {
		parts = append(parts, []byte(m.tags))
	}
	for _, name := range slices.Sorted(maps.Keys(m.files)) {
		parts = append(parts, []byte(name), m.files[name])
	}
	return parts
}

// stamp returns the name of the folder for programs that are built from c. The name contains the versions in readable
// form, and a hash of everything that influences the binaries.
func (c catalog) stamp(goos, goarch string) string {
	modules := map[string]module{}
	for _, p := range c {
		modules[p.module.name] = p.module
	}
	hash := sha256.New()
	var label []string
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		m := modules[name]
		label = append(label, m.name+"-"+m.version)
		for _, part := range m.parts() {
			fmt.Fprintf(hash, "%d\n", len(part))
			hash.Write(part)
		}
	}
	_, _ = io.WriteString(hash, goos+"/"+goarch)
	label = append(label, goos, goarch, hex.EncodeToString(hash.Sum(nil))[:12])
	return strings.Join(label, "-")
}
