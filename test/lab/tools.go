// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// Names of the programs that Flux and ArgoCDTool build.
const (
	KustomizeController = "kustomize-controller"
	SourceController    = "source-controller"
	ArgoCD              = "argocd"
)

// Names of the programs that ClusterAPI builds.
const (
	CoreProvider         = "cluster-api-core"
	BootstrapProvider    = "cluster-api-bootstrap-kubeadm"
	ControlPlaneProvider = "cluster-api-control-plane-kubeadm"
	// Kubeadm is the name of the program that KubeadmTool builds.
	Kubeadm = "kubeadm"
)

// Names of the programs that EtcdTools builds.
const (
	Etcdctl = "etcdctl"
	Etcdutl = "etcdutl"
)

// Names of the programs that ConformanceTool builds.
const (
	E2ETest         = "e2e" + testSuffix
	Ginkgo          = "ginkgo"
	Agnhost         = "agnhost"
	SampleAPIServer = "sample-apiserver"
)

// Names of the programs that Flannel builds.
const (
	Flanneld    = "flanneld"
	InstallConf = "install-conf"
)

// S3Server is the name of the program that S3Tool builds.
const S3Server = "versitygw"

// Tool contains the programs of a tool, such as Flux, Argo CD or Cluster API. They are built from the tool's modules,
// with the versions in a separate go.mod.
type Tool struct {
	// Version is the version of the tool's main module.
	Version string
	Assets  Assets

	store  *store
	module module
}

// Flux builds the controllers of Flux, unless they are in the user's cache. The build takes about three minutes on
// two cores.
func Flux(ctx context.Context, progress io.Writer) (*Tool, error) {
	const source = "github.com/fluxcd/"
	return buildTool(ctx, progress, "flux", source+KustomizeController, map[string]string{
		KustomizeController: source + KustomizeController, SourceController: source + SourceController,
	})
}

// ArgoCDTool builds the binary that contains all components of Argo CD, unless it is in the user's cache. The build
// takes about three minutes on two cores.
func ArgoCDTool(ctx context.Context, progress io.Writer) (*Tool, error) {
	const source = "github.com/argoproj/argo-cd/v3"
	return buildTool(ctx, progress, "argocd", source, map[string]string{ArgoCD: source + "/cmd"})
}

// ClusterAPIModule is the module of Cluster API. Its sources contain the CRDs.
const ClusterAPIModule = "sigs.k8s.io/cluster-api"

// ClusterAPI builds the managers of the Cluster API core and of the kubeadm providers, unless they are in the user's
// cache. The build takes about three minutes on two cores.
func ClusterAPI(ctx context.Context, progress io.Writer) (*Tool, error) {
	return buildTool(ctx, progress, "clusterapi", ClusterAPIModule, map[string]string{
		CoreProvider: ClusterAPIModule + "/core", BootstrapProvider: ClusterAPIModule + "/bootstrap/kubeadm", ControlPlaneProvider: ClusterAPIModule + "/controlplane/kubeadm",
	})
}

const kubernetesModule = "k8s.io/kubernetes"

// KubeadmTool builds kubeadm, unless it is in the user's cache. The build takes half a minute if the programs of
// control planes have already been built. kubeadm has its own module, because adding a program to the module of
// Kubernetes would cause all its programs to be rebuilt.
func KubeadmTool(ctx context.Context, progress io.Writer) (*Tool, error) {
	return buildTool(ctx, progress, "kubeadm", kubernetesModule, map[string]string{Kubeadm: kubernetesModule + "/cmd/kubeadm"})
}

// EtcdTools builds etcdctl and etcdutl, which restores snapshots, unless they are in the user's cache. The build
// takes half a minute on two cores. The two programs have their own module, like kubeadm.
func EtcdTools(ctx context.Context, progress io.Writer) (*Tool, error) {
	const source = "go.etcd.io/etcd/"
	return buildTool(ctx, progress, "etcdtools", source+"etcdutl/v3", map[string]string{Etcdctl: source + "etcdctl/v3", Etcdutl: source + "etcdutl/v3"})
}

// S3Tool builds an S3 server that stores buckets as folders, unless it is in the user's cache. The build takes two
// minutes on two cores.
func S3Tool(ctx context.Context, progress io.Writer) (*Tool, error) {
	const source = "github.com/versity/versitygw"
	return buildTool(ctx, progress, "s3", source, map[string]string{S3Server: source + "/cmd/" + S3Server})
}

// FlannelModule is the module of Flannel. Its sources contain the manifest.
const FlannelModule = "github.com/flannel-io/flannel"

// Flannel builds the programs in Flannel's image, unless they are in the user's cache. The build takes two minutes on
// two cores, and needs a C compiler.
func Flannel(ctx context.Context, progress io.Writer) (*Tool, error) {
	return buildTool(ctx, progress, "flannel", FlannelModule, map[string]string{
		Flanneld: FlannelModule, InstallConf: FlannelModule + "/cmd/install_conf",
	})
}

// ConformanceTool builds Kubernetes' own end-to-end tests, in the version that Binaries provides, unless they are in
// the user's cache. It also builds the test runner and the programs of two test images. The build takes about 15
// minutes on two cores.
func ConformanceTool(ctx context.Context, progress io.Writer) (*Tool, error) {
	return buildTool(ctx, progress, "conformance", kubernetesModule, map[string]string{
		E2ETest: kubernetesModule + "/test/e2e", Ginkgo: "github.com/onsi/ginkgo/v2/ginkgo",
		Agnhost: kubernetesModule + "/test/images/agnhost", SampleAPIServer: "k8s.io/sample-apiserver",
	})
}

// PreviousKubernetes builds kubeadm and the programs of nodes that are one minor version older than Binaries, unless
// they are in the user's cache. The build takes about 15 minutes on two cores.
func PreviousKubernetes(ctx context.Context, progress io.Writer) (*Tool, error) {
	programs := map[string]string{}
	for _, name := range []string{APIServer, ControllerManager, Scheduler, Kubelet, KubeProxy, Kubeadm} {
		programs[name] = kubernetesModule + "/cmd/" + name
	}
	return buildTool(ctx, progress, "kubernetes-previous", kubernetesModule, programs)
}

// buildTool builds programs in a separate folder. programs maps the name of each program to its import path. The tool
// has the version of mainModule.
func buildTool(ctx context.Context, progress io.Writer, name, mainModule string, programs map[string]string) (*Tool, error) {
	names := slices.Sorted(maps.Keys(programs))
	m, err := readModule(name, mainModule)
	if err != nil {
		return nil, err
	}
	m.ldflags = "-s -w"
	switch mainModule {
	case kubernetesModule:
		m.ldflags = kubernetesLDFlags(m.version)
	case FlannelModule:
		if m, err = flannelModule(m); err != nil {
			return nil, err
		}
	}
	c := catalog{}
	for name, pkg := range programs {
		c[name] = program{name: name, pkg: pkg, module: m}
	}
	s, err := newStore(c)
	if err != nil {
		return nil, err
	}
	s.download = nil // downloads are for another patch version
	assets, err := s.ensure(ctx, newReporter(progress), names)
	if err != nil {
		return nil, err
	}
	return &Tool{Version: m.version, Assets: assets, store: s, module: m}, nil
}

// flannelModule returns Flannel's module. One of its backends is written in C. Another one uses the client of a cloud
// provider, whose module not every Go proxy serves.
func flannelModule(m module) (module, error) {
	const replaced = "github.com/tencentcloud/tencentcloud-sdk-go/tencentcloud/vpc"
	client, err := moduleFiles.ReadFile("modules/flannel-vpc.txt")
	if err != nil {
		return module{}, fmt.Errorf("read module flannel: %w", err)
	}
	m.ldflags, m.cgo = m.ldflags+" -extldflags=-static", true
	m.files = map[string][]byte{
		"vpc/go.mod": []byte("module " + replaced + "\n\ngo 1.26.0\n"), "vpc/v20170312/vpc.go": client,
	}
	return m, nil
}

// Sources returns the source folder of a module that the tool is built from. It contains the module's CRDs.
func (g *Tool) Sources(ctx context.Context, path string) (string, error) {
	dir, err := g.store.writeModule(g.module)
	if err != nil {
		return "", err
	}
	var output []byte
	// The module cache may have been emptied while the programs are still cached.
	for _, args := range [][]string{{"mod", "download", path}, {"list", "-mod=readonly", "-m", "-f", "{{.Dir}}", path}} {
		cmd := groupCommand(ctx, g.store.goTool, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "GO111MODULE=on", "PWD="+dir)
		if output, err = runGroup(cmd); err != nil {
			return "", fmt.Errorf("find the sources of %s: %w: %s", path, err, output)
		}
	}
	return strings.TrimSpace(string(output)), nil
}
