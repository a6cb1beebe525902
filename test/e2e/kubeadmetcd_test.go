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
	"strconv"
	"strings"
	"testing"
	"time"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	"github.com/drover-dev/drover/internal/provision/kubeadm"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// initialConfig is the configuration from which kubeadm creates certificates, kubeconfigs and manifests.
const initialConfig = `apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: @ADDRESS@, bindPort: 6443}
nodeRegistration: {name: @NAME@, criSocket: "unix:///run/none.sock"}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: @VERSION@
controlPlaneEndpoint: 10.77.0.1:6443
networking: {serviceSubnet: 10.96.0.0/16}
etcd: {local: {extraArgs: [{name: unsafe-no-fsync, value: "true"}]}}
`

const memberList = "/var/lib/drover/etcd/bin/etcdctl --endpoints https://127.0.0.1:2379 --cacert /etc/kubernetes/pki/etcd/ca.crt --cert /etc/kubernetes/pki/etcd/server.crt --key /etc/kubernetes/pki/etcd/server.key member list"

// destroyEtcd kills etcd and removes its data.
const destroyEtcd = `kill -9 $(cat /proc/[0-9]*/stat | sed -n 's/^\([0-9]*\) (etcd) .*/\1/p'); rm -rf /var/lib/etcd`

// controlPlane is a machine in separate namespaces. Its etcd and API server are static pods of a stand-in for a
// kubelet.
type controlPlane struct {
	name, address, dir string
	process            *lab.Process
	pid                string // of the first process in its namespaces
	tools              string
}

// TestLong_EtcdOfControlPlanesIsRestored carries out the tasks of hosts without a hub. Manifests and certificates come
// from the real kubeadm. There are three real etcd members and API servers in separate networks.
func TestLong_EtcdOfControlPlanesIsRestored(t *testing.T) {
	t.Parallel()
	planes := startControlPlanes(t)
	one, two, three := planes[0], planes[1], planes[2]
	for _, p := range planes {
		p.serves(t)
	}
	one.kubectl(t, "create", "configmap", "before")
	two.act(t, etcdTask(kubeadm.Snapshot, infrav1.EtcdTask{File: "first.db"}))
	one.kubectl(t, "create", "configmap", "after")
	revision := one.kubectl(t, "get", "configmap", "after", "-o", "jsonpath={.metadata.resourceVersion}")
	file := kubeadm.Folder + "first.db"
	if out := two.run(t, "stat", "-c", "%a", file); strings.TrimSpace(out) != "600" {
		t.Errorf("the file of the snapshot has the mode %s, want it for root only", out)
	}

	t.Log("a restore that is cancelled")
	two.act(t, etcdTask(kubeadm.Prepare, infrav1.EtcdTask{Of: "r0", File: "first.db"}))
	for _, p := range planes {
		p.act(t, etcdTask(kubeadm.Stop, infrav1.EtcdTask{Of: "r0"}))
		if _, err := p.try("sh", "-c", "kubectl --kubeconfig /etc/kubernetes/admin.conf --server https://"+p.address+":6443 get --raw /readyz"); err == nil {
			t.Errorf("%s serves after it was stopped", p.name)
		}
	}
	for _, p := range planes {
		p.act(t, etcdTask(kubeadm.Resume, infrav1.EtcdTask{Of: "r0"}))
	}
	one.serves(t)
	one.kubectl(t, "get", "configmap", "after")

	t.Log("the data are destroyed")
	one.kubectl(t, "delete", "configmap", "before")
	for _, p := range []*controlPlane{one, three} {
		p.run(t, "sh", "-c", destroyEtcd)
	}
	if err := two.fails(etcdTask(kubeadm.Prepare, infrav1.EtcdTask{Of: "r1", File: "none.db"})); err == nil || !strings.Contains(err.Error(), "there is no file "+kubeadm.Folder+"none.db") {
		t.Errorf("a file that is not there: %v", err)
	}
	two.run(t, "sh", "-c", "head -c 100000 "+file+" >"+kubeadm.Folder+"broken.db")
	if err := two.fails(etcdTask(kubeadm.Prepare, infrav1.EtcdTask{Of: "r1", File: "broken.db"})); err == nil || !strings.Contains(err.Error(), "cannot be restored") {
		t.Errorf("half a snapshot: %v", err)
	}
	two.act(t, etcdTask(kubeadm.Prepare, infrav1.EtcdTask{Of: "r1", File: "first.db"}))
	if err := two.fails(etcdTask(kubeadm.Replace, infrav1.EtcdTask{Of: "r1"})); err == nil || !strings.Contains(err.Error(), "is not stopped") {
		t.Errorf("etcd was begun anew beside the old one: %v", err)
	}
	for _, p := range planes {
		p.act(t, etcdTask(kubeadm.Stop, infrav1.EtcdTask{Of: "r1"}))
	}
	two.act(t, etcdTask(kubeadm.Replace, infrav1.EtcdTask{Of: "r1"}))
	two.act(t, etcdTask(kubeadm.Replace, infrav1.EtcdTask{Of: "r1"})) // interrupted, and repeated
	two.kubectl(t, "get", "configmap", "before")
	two.kubectl(t, "create", "configmap", "restored")
	three.interrupted(t, two, "r1")
	for _, p := range []*controlPlane{three, one, one} {
		p.act(t, etcdTask(kubeadm.Join, infrav1.EtcdTask{Of: "r1", Endpoints: []string{"https://10.77.0.99:2379", "https://" + two.address + ":2379"}}))
	}
	for _, p := range planes {
		p.serves(t)
		p.kubectl(t, "get", "configmap", "before", "restored")
		if out, err := p.try("kubectl", "--kubeconfig", "/etc/kubernetes/admin.conf", "--server", "https://"+p.address+":6443", "get", "configmap", "after"); err == nil || !strings.Contains(out, "NotFound") {
			t.Errorf("%s has what was made after the snapshot: %s, %v", p.name, out, err)
		}
		members := p.run(t, "sh", "-c", memberList)
		if strings.Count(members, "started") != 3 || strings.Count(members, "false") != 3 {
			t.Errorf("%s sees the members\n%s\nwant 3 full ones", p.name, members)
		}
	}
	watched := one.address + ":6443/api/v1/namespaces/default/configmaps?watch=true&timeoutSeconds=5&resourceVersion=" + revision
	if out, _ := one.try("kubectl", "--kubeconfig", "/etc/kubernetes/admin.conf", "--server", "https://"+one.address+":6443", "get", "--raw", "/"+strings.SplitN(watched, "/", 2)[1]); !strings.Contains(out, "too old resource version") {
		t.Errorf("a watch from a revision before the restore goes on: %s", out)
	}
	t.Log("a snapshot is copied to a bucket, its file is lost, and another host restores it")
	fromBucket(t, planes)
	if kept := two.run(t, "ls", "/var/lib/etcd"); !strings.Contains(kept, "member.before-r2") {
		t.Errorf("the former data are not kept: %s", kept)
	}
	if tokens := three.run(t, "cat", "/etc/kubernetes/manifests/etcd.yaml"); strings.Count(tokens, "--initial-cluster-state=existing") != 1 || strings.Count(tokens, "--initial-cluster=") != 1 {
		t.Errorf("the manifest of one that has joined is\n%s", tokens)
	}
}

// startControlPlanes starts three machines with an etcd cluster. It skips the test if namespaces are not available or
// the programs cannot be built.
func startControlPlanes(t *testing.T) []*controlPlane {
	t.Helper()
	prerequisites(t)
	kubeadm, err := lab.KubeadmTool(t.Context(), os.Stderr)
	if err != nil {
		t.Skipf("kubeadm cannot be built here: %v", err)
	}
	etcd, err := lab.EtcdTools(t.Context(), os.Stderr)
	if err != nil {
		t.Skipf("the tools of etcd cannot be built here: %v", err)
	}
	assets, err := lab.Binaries(t.Context(), os.Stderr, lab.Etcd, lab.APIServer, lab.Kubectl)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	tools := filepath.Join(dir, "tools")
	problems := os.Mkdir(tools, 0o700)
	for name, path := range map[string]string{"etcd": assets[lab.Etcd], "kube-apiserver": assets[lab.APIServer], "kubectl": assets[lab.Kubectl], "kubeadm": kubeadm.Assets[lab.Kubeadm]} {
		problems = errors.Join(problems, os.Symlink(path, filepath.Join(tools, name)))
	}
	if problems != nil {
		t.Fatal(problems)
	}
	network := startSwitch(t, dir)
	var planes []*controlPlane
	initial := make([]string, 3)
	for n := range 3 {
		p := &controlPlane{name: fmt.Sprint("m", n+1), address: addressOf(n + 1), dir: filepath.Join(dir, fmt.Sprint("m", n+1)), tools: tools}
		p.start(t, network)
		planes = append(planes, p)
		initial[n] = p.name + "=https://" + p.address + ":2380"
	}
	for n, p := range planes {
		p.make(t, kubeadm.Version, etcd, planes[0], n == 0)
	}
	for _, p := range planes { // a cluster of three from its beginning, in place of joins
		p.run(t, "sed", "-i", "s|--initial-cluster=.*|--initial-cluster="+strings.Join(initial, ",")+"|", "/etc/kubernetes/manifests/etcd.yaml")
		p.run(t, "sh", "-c", "mkdir /var/lib/kubelet && touch /var/lib/kubelet/config.yaml")
	}
	return planes
}

// startSwitch starts a separate network with a bridge.
func startSwitch(t *testing.T, dir string) *lab.Process {
	t.Helper()
	log := filepath.Join(dir, "network.log")
	network, err := lab.Command{Name: "network", Path: "unshare", Args: []string{"--net", "--fork", "--kill-child", "sh", "-c", switchOf}, LogFile: log}.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = network.Kill() })
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if raw, err := os.ReadFile(log); err != nil || !strings.Contains(string(raw), "ready") {
			return fmt.Errorf("the network is not there: %s (%w)", raw, err)
		}
		return nil
	})
	return network
}

// start starts the machine with only the stand-in for a kubelet.
func (p *controlPlane) start(t *testing.T, network *lab.Process) {
	t.Helper()
	kubelet, err := filepath.Abs("testdata/kubelet.sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(p.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"--net"}, inNamespaces(p.dir, p.name, "sh", kubelet, p.dir)...)
	if p.process, err = (lab.Command{Name: p.name, Path: "unshare", Args: args, Env: p.env(), LogFile: filepath.Join(p.dir, "kubelet.log")}).Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.process.Kill()
		if t.Failed() {
			t.Logf("%s\netcd:\n%s\nAPI server:\n%s\nkubelet:\n%s", p.name, tail(filepath.Join(p.dir, "etcd.log")), tail(filepath.Join(p.dir, "kube-apiserver.log")), tail(filepath.Join(p.dir, "kubelet.log")))
		}
	})
	unshare := strconv.Itoa(p.process.PID())
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		raw, err := os.ReadFile("/proc/" + unshare + "/task/" + unshare + "/children")
		if p.pid = strings.TrimSpace(string(raw)); err != nil || p.pid == "" {
			return fmt.Errorf("%s has not begun (%w)", p.name, err)
		}
		if raw, err := os.ReadFile("/proc/" + p.pid + "/cmdline"); err != nil || !strings.Contains(string(raw), "kubelet.sh") || strings.Contains(string(raw), "mount") {
			return fmt.Errorf("%s is not set up: %q (%w)", p.name, raw, err)
		}
		return nil
	})
	for _, command := range [][]string{
		{"--target", strconv.Itoa(network.PID()), "--net", "ip", "link", "add", "v" + p.name, "master", "br0", "up", "type", "veth", "peer", "name", "eth0", "netns", p.pid},
		{"--target", p.pid, "--net", "ip", "addr", "add", p.address + "/24", "dev", "eth0"},
		{"--target", p.pid, "--net", "ip", "link", "set", "eth0", "up"},
		{"--target", p.pid, "--net", "ip", "link", "set", "lo", "up"},
	} {
		if out, err := exec.Command("nsenter", command...).CombinedOutput(); err != nil {
			t.Fatalf("connect %s: %v: %s", p.name, err, out)
		}
	}
}

// make runs kubeadm to create certificates, kubeconfigs and manifests. The CAs come from the first machine.
func (p *controlPlane) make(t *testing.T, version string, etcd *lab.Tool, first *controlPlane, isFirst bool) {
	t.Helper()
	config := filepath.Join(p.dir, "kubeadm.yaml")
	text := strings.NewReplacer("@ADDRESS@", p.address, "@NAME@", p.name, "@VERSION@", version).Replace(initialConfig)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if !isFirst {
		pki := filepath.Join(first.dir, "pki.tar")
		first.run(t, "tar", "--create", "--file", pki, "--directory", "/etc/kubernetes", "pki/ca.crt", "pki/ca.key", "pki/sa.key", "pki/sa.pub", "pki/front-proxy-ca.crt", "pki/front-proxy-ca.key", "pki/etcd/ca.crt", "pki/etcd/ca.key")
		p.run(t, "sh", "-c", "mkdir -p /etc/kubernetes && tar --extract --file "+pki+" --directory /etc/kubernetes")
	}
	p.run(t, "sh", "-c", strings.Join([]string{
		"set -e",
		"mkdir -p /usr/local/bin && cp " + etcd.Assets[lab.Etcdctl] + " " + etcd.Assets[lab.Etcdutl] + " /usr/local/bin", // as in the image of etcd
		"kubeadm init phase certs all --config " + config,
		"kubeadm init phase kubeconfig admin --config " + config,
		"kubeadm init phase kubeconfig super-admin --config " + config,
		"kubeadm init phase etcd local --config " + config,
		"kubeadm init phase control-plane apiserver --config " + config,
	}, "\n"))
}

func (p *controlPlane) env() []string {
	return append(os.Environ(), "PATH="+p.tools+":/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
}

// try runs a command on the machine.
func (p *controlPlane) try(command ...string) (string, error) {
	cmd := exec.Command("nsenter", append([]string{"--target", p.pid, "--mount", "--uts", "--net", "--pid", "--"}, command...)...)
	cmd.Env = p.env()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (p *controlPlane) run(t *testing.T, command ...string) string {
	t.Helper()
	out, err := p.try(command...)
	if err != nil {
		t.Fatalf("%s: %.200q: %v\n%s", p.name, command, err, out)
	}
	return out
}

// etcdTask returns a task of etcd.
func etcdTask(action kubeadm.Action, etcd infrav1.EtcdTask) infrav1.MachineTask {
	return infrav1.MachineTask{Action: action, Etcd: &etcd}
}

// as returns the command of a task on the machine.
func (p *controlPlane) as(task infrav1.MachineTask, problem ...error) *exec.Cmd {
	instruction, err := kubeadm.Instruction(task, kubeadm.Bucket{Problem: errors.Join(problem...)})
	if err != nil {
		panic(err)
	}
	cmd := exec.Command("nsenter", append([]string{"--target", p.pid, "--mount", "--uts", "--net", "--pid", "--no-fork", "--"}, instruction.Command...)...)
	cmd.Env = p.env()
	return cmd
}

// act carries out a task as the host's agent does.
func (p *controlPlane) act(t *testing.T, task infrav1.MachineTask) {
	t.Helper()
	begun := time.Now()
	if out, err := p.as(task).CombinedOutput(); err != nil {
		t.Fatalf("%s: %s: %v\n%s", p.name, task.Action, err, out)
	}
	t.Logf("%s: %s in %s", p.name, task.Action, time.Since(begun).Round(100*time.Millisecond))
}

// fails carries out a task that fails, with settings that prevent the host from reaching its bucket.
func (p *controlPlane) fails(task infrav1.MachineTask, problem ...error) error {
	if out, err := p.as(task, problem...).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// interrupted simulates that the machine loses power after it was added as an etcd member, but before its etcd has
// started.
func (p *controlPlane) interrupted(t *testing.T, by *controlPlane, restore string) {
	t.Helper()
	cmd := p.as(etcdTask(kubeadm.Join, infrav1.EtcdTask{Of: restore, Endpoints: []string{"https://" + by.address + ":2379"}}))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if out, err := by.try("sh", "-c", memberList); err != nil || !strings.Contains(out, p.address) {
			return fmt.Errorf("%s is no member: %s (%w)", p.name, out, err)
		}
		return nil
	})
	if err := cmd.Process.Kill(); err != nil { // it is the shell
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Log("the join had ended before it was interrupted")
	}
}

func (p *controlPlane) kubectl(t *testing.T, arguments ...string) string {
	t.Helper()
	return p.run(t, append([]string{"kubectl", "--kubeconfig", "/etc/kubernetes/super-admin.conf", "--server", "https://" + p.address + ":6443"}, arguments...)...)
}

// serves waits until the API server is ready, and grants the administrator of kubeadm access, as kubeadm's phases do.
func (p *controlPlane) serves(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, 2*time.Minute, func(context.Context) error {
		out, err := p.try("kubectl", "--kubeconfig", "/etc/kubernetes/super-admin.conf", "--server", "https://"+p.address+":6443", "get", "--raw", "/readyz")
		if err != nil {
			return fmt.Errorf("%s: %w: %s", p.name, err, out)
		}
		return nil
	})
	if p.name == "m1" {
		_, _ = p.try("kubectl", "--kubeconfig", "/etc/kubernetes/super-admin.conf", "--server", "https://"+p.address+":6443", "create", "clusterrolebinding", "kubeadm:cluster-admins", "--clusterrole=cluster-admin", "--group=kubeadm:cluster-admins")
	}
}
