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
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
	lablib "github.com/drover-dev/drover/test/lab/nodes"
	"github.com/drover-dev/drover/test/testkit"
)

const (
	// envRealHosts enables the tests with hosts of the lab, which need root, several minutes, and a separate network
	// namespace: make e2e-clusterapi.
	envRealHosts = "DROVER_E2E_CLUSTERAPI"

	// measure is its value for creating only the first control plane, with a hub that stays available.
	measure = "measure"

	// twoVersions is its value for a rollout from the previous minor version, which needs another build of Kubernetes.
	// Without it, the rollout is the one in the file.
	twoVersions = "versions"

	// bridgeAddress is the address at which the hosts of a lab reach servers outside the lab, and hubPort is the hub's
	// port at this address.
	bridgeAddress = "10.90.0.1"
	hubPort       = 8443

	// balancerHost is a host with a load balancer for the cluster's API servers, such as a user would run on a separate
	// machine.
	balancerHost = "balancer"

	droverImage = "lab.example.com/drover:1"

	// pathOfHosts is the PATH of a login on a host.
	pathOfHosts = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// release is a version of Kubernetes that hosts can install.
type release struct {
	version string
	// programs are kubeadm and the programs in lab.Assets.
	programs lab.Assets
}

// realHosts is a hub with Cluster API's managers, and hosts of the lab. The hosts are network namespaces that cannot be
// reached from outside, each with a separate containerd.
type realHosts struct {
	*capi
	lab *lablib.Lab
	// options are the options with which the lab was started.
	options lablib.Options
	// versions are the versions of the cluster, in order.
	versions []release
	// inPlace reports whether machines are updated in place.
	inPlace bool
	// addons returns the images of the addons that the hub installs. If it is nil, a file on the hosts replaces the
	// network plugin.
	addons func(*testing.T, *realHosts) map[string]lablib.Image
}

// startRealHosts starts the hub, Cluster API and the hosts, or skips the test.
func startRealHosts(t *testing.T, h realHosts) *realHosts {
	t.Helper()
	if os.Getenv(envRealHosts) == "" {
		t.Skip("it takes root and minutes: make e2e-clusterapi")
	}
	if err := lablib.Check(); err != nil {
		t.Skip(err)
	}
	if _, err := exec.LookPath("haproxy"); err != nil {
		t.Skip("haproxy is not installed, which is the load balancer of the control plane: apt-get install haproxy")
	}
	if links, err := net.Interfaces(); err != nil || len(links) != 1 {
		t.Fatalf("the test takes a network of its own, with loopback alone, and has %v, %v: make e2e-clusterapi", links, err)
	}
	// The hub has the same address for the hosts, which reach it through the bridge, and for Cluster API, which runs
	// beside it.
	for _, args := range [][]string{{"link", "set", "lo", "up"}, {"address", "add", bridgeAddress + "/32", "dev", "lo"}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil && !strings.Contains(string(out), "already assigned") {
			t.Fatalf("ip %v: %v %s", args, err, out)
		}
	}
	if err := hostAgent(); err != nil {
		t.Fatal(err)
	}
	h.findVersions(t)
	tool, err := lab.ClusterAPI(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	h.capi = &capi{gitOps: &gitOps{system: buildForLargeSchemas(t), tool: tool, transcript: discard{}}}
	if h.inPlace {
		h.gates = "RuntimeSDK=true,InPlaceUpdates=true"
	}
	h.bringUp(t)
	h.startHub(t, framework.Layout{Replicas: 1, Address: fmt.Sprintf("%s:%d", bridgeAddress, hubPort), Configure: func(c *config.Config) {
		c.Server.Listen = fmt.Sprintf("0.0.0.0:%d", hubPort)
		c.Agent.Image = droverImage
	}}, h.inPlace)
	return &h
}

// findVersions finds the programs of all versions of Kubernetes that the hosts run.
func (h *realHosts) findVersions(t *testing.T) {
	t.Helper()
	kubeadm, err := lab.KubeadmTool(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	programs, err := lab.Binaries(t.Context(), os.Stderr, lab.Etcd, lab.APIServer, lab.ControllerManager, lab.Scheduler, lab.Kubelet, lab.KubeProxy, lab.Kubectl)
	if err != nil {
		t.Fatal(err)
	}
	programs[lab.Kubeadm] = kubeadm.Assets[lab.Kubeadm]
	newest := release{kubeadm.Version, programs}
	if h.versions = []release{newest}; os.Getenv(envRealHosts) != twoVersions {
		return
	}
	previous, err := lab.PreviousKubernetes(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	before := release{previous.Version, previous.Assets}
	before.programs[lab.Etcd], before.programs[lab.Kubectl] = programs[lab.Etcd], programs[lab.Kubectl]
	h.versions = []release{before, newest}
}

// bringUp creates the images and starts the hosts.
func (h *realHosts) bringUp(t *testing.T) {
	t.Helper()
	labctl := filepath.Join(h.dir, "labctl")
	compile := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", labctl, "./hack/labctl")
	compile.Dir = h.programs.Root
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("build labctl: %v\n%s", err, out)
	}
	programs := map[string]string{}
	for _, k := range h.versions {
		for _, program := range []string{lab.Kubeadm, lab.Kubelet, lab.Kubectl} {
			programs[k.version+"/"+program] = k.programs[program]
		}
		for name, path := range h.images(t, k) {
			programs[k.version+"/images/"+name] = path
		}
	}
	file := lablib.File{APIVersion: "lab.drover.dev/v1", Kind: "Lab", Name: "hosts", Programs: programs,
		Networking: lablib.Networking{Subnet: "10.90.0.0/16", PodSubnet: "10.128.0.0/16", MachinePorts: []int{hubPort}}}
	for _, name := range []string{"m1", "m2", "m3", "m4", balancerHost} {
		file.Hosts = append(file.Hosts, lablib.Host{Name: name})
	}
	h.options = lablib.Options{File: file, Dir: filepath.Join(h.dir, "lab"), Progress: os.Stderr, Labctl: labctl}
	t.Cleanup(func() {
		if err := lablib.Down(context.Background(), h.options.Dir, "", os.Stderr); err != nil {
			t.Error(err)
		}
	})
	h.up(t)
	script, err := os.ReadFile("testdata/install-packages.sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range file.Hosts {
		h.write(t, host.Name, "/usr/bin/install-kubernetes", string(script))
	}
	h.balance(t)
}

// up starts the hosts that are not running.
func (h *realHosts) up(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	var err error
	if h.lab, err = lablib.Up(ctx, h.options); err != nil {
		t.Fatal(err)
	}
}

// images writes tarballs with the images that kubeadm needs for a version, under the names that it uses, and Drover's
// image.
func (h *realHosts) images(t *testing.T, k release) map[string]string {
	t.Helper()
	list := exec.CommandContext(t.Context(), k.programs[lab.Kubeadm], "config", "images", "list", "--kubernetes-version", k.version)
	out, err := list.Output()
	if err != nil {
		t.Fatalf("kubeadm config images list: %v", err)
	}
	tarballs := map[string]string{}
	write := func(name string, image lablib.Image) {
		path := filepath.Join(h.dir, k.version+"-"+name+".tar")
		if err := lablib.WriteImage(path, image); err != nil {
			t.Fatal(err)
		}
		tarballs[name+".tar"] = path
	}
	for _, reference := range strings.Fields(string(out)) {
		name, _, _ := strings.Cut(filepath.Base(reference), ":")
		switch name {
		case lab.KubeProxy: // it runs nft, of which it finds the libraries where this machine has them
			nft, files := h.linked(t, "nft")
			files["/usr/local/bin/kube-proxy"] = k.programs[lab.KubeProxy]
			write(name, lablib.Image{Name: reference, Programs: []string{nft}, Files: files})
		case "coredns": // not built: the cluster is made without the addon
		case "pause":
			pause := filepath.Join(h.dir, "pause")
			compile := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", pause, "./test/lab/nodes/pause")
			compile.Dir = h.programs.Root
			if out, err := compile.CombinedOutput(); err != nil {
				t.Fatalf("build pause: %v\n%s", err, out)
			}
			write(name, lablib.Image{Name: reference, Programs: []string{pause}})
		case lab.Etcd: // with its tools, as the image of registry.k8s.io has them
			tools, err := lab.EtcdTools(t.Context(), os.Stderr)
			if err != nil {
				t.Fatal(err)
			}
			write(name, lablib.Image{Name: reference, Programs: []string{k.programs[name]},
				Files: map[string]string{"/usr/local/bin/etcdctl": tools.Assets[lab.Etcdctl], "/usr/local/bin/etcdutl": tools.Assets[lab.Etcdutl]}})
		default:
			if k.programs[name] == "" {
				t.Fatalf("kubeadm wants an image %s, of which no program is built", reference)
			}
			write(name, lablib.Image{Name: reference, Programs: []string{k.programs[name]}})
		}
	}
	write("drover", lablib.Image{Name: droverImage, Programs: []string{h.programs.Agent}, User: "65532"})
	if h.addons != nil {
		for name, image := range h.addons(t, h) {
			write(name, image)
		}
	}
	return tarballs
}

// linked returns a program of this machine and the files that it needs: the libraries that it is linked with, and the
// names of protocols. Without these names, nft lists protocols by number. Then a restarted kube-proxy does not recognize
// its own rules, and deletes them.
func (h *realHosts) linked(t *testing.T, name string) (program string, files map[string]string) {
	t.Helper()
	program, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "ldd", program).CombinedOutput()
	if err != nil {
		t.Fatalf("ldd %s: %v %s", program, err, out)
	}
	files = map[string]string{"/etc/protocols": "/etc/protocols"}
	for _, path := range regexp.MustCompile(`/\S+`).FindAllString(string(out), -1) {
		if path != program+":" {
			files[path] = path
		}
	}
	return program, files
}

// balance starts the load balancer of the API servers.
func (h *realHosts) balance(t *testing.T) {
	t.Helper()
	settings := `global
  maxconn 2000
defaults
  mode tcp
  timeout connect 2s
  timeout client 1h
  timeout server 1h
frontend api
  bind :6443
  default_backend api
backend api
  option httpchk GET /readyz
  default-server check check-ssl verify none inter 1s fall 2 rise 1 on-marked-down shutdown-sessions
`
	for _, host := range h.options.File.Hosts {
		if host.Name != balancerHost {
			settings += fmt.Sprintf("  server %s %s:6443\n", host.Name, h.address(t, host.Name))
		}
	}
	h.write(t, balancerHost, "/etc/haproxy.cfg", settings)
	h.write(t, balancerHost, "/etc/systemd/system/haproxy.service", "[Service]\nExecStart=/usr/sbin/haproxy -db -f /etc/haproxy.cfg\nRestart=always\n")
	h.exec(t, balancerHost, "systemctl", "enable", "--now", "haproxy")
}

func (h *realHosts) address(t *testing.T, host string) string {
	t.Helper()
	address, err := h.lab.Address(host)
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// exec runs a command on a host, and returns its output.
func (h *realHosts) exec(t *testing.T, host string, command ...string) string {
	t.Helper()
	out, err := h.try(t.Context(), host, command...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (h *realHosts) try(ctx context.Context, host string, command ...string) (string, error) {
	args, err := h.lab.Enter(host, append([]string{pathOfHosts}, command...)...)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("on %s, %v: %w: %s", host, command, err, out)
	}
	return string(out), nil
}

// write writes an executable file on a host.
func (h *realHosts) write(t *testing.T, host, path, content string) {
	t.Helper()
	args, err := h.lab.Enter(host, pathOfHosts, "sh", "-c", `mkdir -p "$(dirname "$0")" && cat >"$0" && chmod 755 "$0"`, path)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(content)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("write %s on %s: %v %s", path, host, err, out)
	}
}

// join creates a Host for a host of the lab, with the command that a user runs there.
func (h *realHosts) join(t *testing.T, name string) {
	t.Helper()
	host := types.NamespacedName{Namespace: teamSpace, Name: name}
	create(t, h.hub.Plane, &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: host.Namespace, Name: host.Name, Labels: map[string]string{"rack": name}}})
	secret := &corev1.Secret{}
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		return h.hub.Client.Get(ctx, types.NamespacedName{Namespace: host.Namespace, Name: host.Name + v1.HostJoinSecretSuffix}, secret)
	})
	h.exec(t, name, "sh", "-c", string(secret.Data["command"]))
	h.awaitHost(t, name, "available", because(v1.ReasonHostAvailable))
}

func (h *realHosts) awaitHost(t *testing.T, name, what string, wanted func(*v1.Host) bool) *v1.Host {
	t.Helper()
	host := &v1.Host{}
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		if err := h.hub.Client.Get(ctx, types.NamespacedName{Namespace: teamSpace, Name: name}, host); err != nil {
			return err
		}
		if !wanted(host) {
			return fmt.Errorf("host %s is not %s: %+v", name, what, host.Status)
		}
		return nil
	})
	return host
}

// has returns nil if a file exists on a host.
func (h *realHosts) has(ctx context.Context, host, path string) error {
	if h.lab == nil {
		return errors.New("the lab is not up")
	}
	_, err := h.try(ctx, host, "test", "-e", path)
	return err
}
