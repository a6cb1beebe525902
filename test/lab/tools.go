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

// Programs of Flux and of ArgoCDTool.
const (
	KustomizeController = "kustomize-controller"
	SourceController    = "source-controller"
	ArgoCD              = "argocd"
)

// Programs of ClusterAPI.
const (
	CoreProvider         = "cluster-api-core"
	BootstrapProvider    = "cluster-api-bootstrap-kubeadm"
	ControlPlaneProvider = "cluster-api-control-plane-kubeadm"
	// Kubeadm is the program of KubeadmTool.
	Kubeadm = "kubeadm"
)

// Programs of EtcdTools.
const (
	Etcdctl = "etcdctl"
	Etcdutl = "etcdutl"
)

// Programs of ConformanceTool.
const (
	E2ETest         = "e2e" + testSuffix
	Ginkgo          = "ginkgo"
	Agnhost         = "agnhost"
	SampleAPIServer = "sample-apiserver"
)

// S3Server is the program of S3Tool.
const S3Server = "versitygw"

// A Tool is the programs of Flux, of Argo CD, of Cluster API, of etcd or of an S3 server, built of their modules with
// the versions of their own go.mod.
type Tool struct {
	// Version of the tool's first module.
	Version string
	Assets  Assets

	store  *store
	module module
}

// Flux builds the controllers of Flux if they are not in the user's cache, some three minutes on two cores.
func Flux(ctx context.Context, progress io.Writer) (*Tool, error) {
	const source = "github.com/fluxcd/"
	return buildTool(ctx, progress, "flux", source+KustomizeController, map[string]string{
		KustomizeController: source + KustomizeController, SourceController: source + SourceController,
	})
}

// ArgoCDTool builds the program of all parts of Argo CD if it is not in the user's cache, some three minutes on two
// cores.
func ArgoCDTool(ctx context.Context, progress io.Writer) (*Tool, error) {
	const source = "github.com/argoproj/argo-cd/v3"
	return buildTool(ctx, progress, "argocd", source, map[string]string{ArgoCD: source + "/cmd"})
}

// ClusterAPIModule is the module of ClusterAPI: its sources have the CRDs.
const ClusterAPIModule = "sigs.k8s.io/cluster-api"

// ClusterAPI builds the managers of Cluster API's core and of its providers for kubeadm if they are not in the user's
// cache, some three minutes on two cores.
func ClusterAPI(ctx context.Context, progress io.Writer) (*Tool, error) {
	return buildTool(ctx, progress, "clusterapi", ClusterAPIModule, map[string]string{
		CoreProvider: ClusterAPIModule + "/core", BootstrapProvider: ClusterAPIModule + "/bootstrap/kubeadm", ControlPlaneProvider: ClusterAPIModule + "/controlplane/kubeadm",
	})
}

const kubernetesModule = "k8s.io/kubernetes"

// KubeadmTool builds kubeadm if it is not in the user's cache, half a minute beside the programs of control planes. It
// has a module of its own: another program in the module of Kubernetes would cause all of them to be built again.
func KubeadmTool(ctx context.Context, progress io.Writer) (*Tool, error) {
	return buildTool(ctx, progress, "kubeadm", kubernetesModule, map[string]string{Kubeadm: kubernetesModule + "/cmd/kubeadm"})
}

// EtcdTools builds etcdctl and etcdutl, which restores snapshots, if they are not in the user's cache, half a minute on
// two cores. They have a module of their own, as kubeadm has.
func EtcdTools(ctx context.Context, progress io.Writer) (*Tool, error) {
	const source = "go.etcd.io/etcd/"
	return buildTool(ctx, progress, "etcdtools", source+"etcdutl/v3", map[string]string{Etcdctl: source + "etcdctl/v3", Etcdutl: source + "etcdutl/v3"})
}

// S3Tool builds an S3 server whose buckets are folders, if it is not in the user's cache, two minutes on two cores.
func S3Tool(ctx context.Context, progress io.Writer) (*Tool, error) {
	const source = "github.com/versity/versitygw"
	return buildTool(ctx, progress, "s3", source, map[string]string{S3Server: source + "/cmd/" + S3Server})
}

// ConformanceTool builds Kubernetes' own end-to-end tests of the version of Binaries, the program that runs them, and
// the programs of two of their images, if they are not in the user's cache: some 15 minutes on two cores.
func ConformanceTool(ctx context.Context, progress io.Writer) (*Tool, error) {
	return buildTool(ctx, progress, "conformance", kubernetesModule, map[string]string{
		E2ETest: kubernetesModule + "/test/e2e", Ginkgo: "github.com/onsi/ginkgo/v2/ginkgo",
		Agnhost: kubernetesModule + "/test/images/agnhost", SampleAPIServer: "k8s.io/sample-apiserver",
	})
}

// PreviousKubernetes builds what nodes one minor version older than Binaries run, and its kubeadm, if they are
// not in the user's cache: some 15 minutes on two cores.
func PreviousKubernetes(ctx context.Context, progress io.Writer) (*Tool, error) {
	programs := map[string]string{}
	for _, name := range []string{APIServer, ControllerManager, Scheduler, Kubelet, KubeProxy, Kubeadm} {
		programs[name] = kubernetesModule + "/cmd/" + name
	}
	return buildTool(ctx, progress, "kubernetes-previous", kubernetesModule, programs)
}

// buildTool builds programs, by name with the import path of each, in a folder of their own. The main module gives the
// tool its version.
func buildTool(ctx context.Context, progress io.Writer, name, mainModule string, programs map[string]string) (*Tool, error) {
	names := slices.Sorted(maps.Keys(programs))
	m, err := readModule(name, mainModule)
	if err != nil {
		return nil, err
	}
	m.ldflags = "-s -w"
	if mainModule == kubernetesModule {
		m.ldflags = kubernetesLDFlags(m.version)
	}
	c := catalog{}
	for name, pkg := range programs {
		c[name] = program{name: name, pkg: pkg, module: m}
	}
	s, err := newStore(c)
	if err != nil {
		return nil, err
	}
	s.download = nil // what can be downloaded is not of this patch version
	assets, err := s.ensure(ctx, newReporter(progress), names)
	if err != nil {
		return nil, err
	}
	return &Tool{Version: m.version, Assets: assets, store: s, module: m}, nil
}

// Sources returns the folder of the sources of a module that the tool was built of: they have its CRDs.
func (g *Tool) Sources(ctx context.Context, path string) (string, error) {
	dir, err := g.store.writeModule(g.module)
	if err != nil {
		return "", err
	}
	var output []byte
	// The cache of modules may be emptied while that of programs is kept.
	for _, args := range [][]string{{"mod", "download", path}, {"list", "-mod=readonly", "-m", "-f", "{{.Dir}}", path}} {
		cmd := groupCommand(ctx, g.store.goTool, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "GO111MODULE=on", "PWD="+dir)
		if output, err = runGroup(cmd); err != nil {
			return "", fmt.Errorf("find the sources of %s: %w: %s", path, err, output)
		}
	}
	return strings.TrimSpace(string(output)), nil
}
