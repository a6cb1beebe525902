// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover/test/lab"
)

const (
	// envRun enables the tests with real nodes, which need root and several minutes: make test-nodes.
	envRun = "DROVER_TEST_NODES"

	stepLimit = 5 * time.Minute

	labFile = `apiVersion: lab.drover.dev/v1
kind: Lab
name: test
images: [web.tar]
networking: {networkPolicies: true}
clusters:
- name: hub
  nodes: [{name: near}, {name: far, labels: {zone: b}}]
`
	webManifest = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      tolerations: [{operator: Exists}]
      containers: [{name: web, image: "example.com/web:1", imagePullPolicy: Never}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
`
	visitorManifest = `apiVersion: v1
kind: Pod
metadata: {name: visitor}
spec:
  nodeName: near
  terminationGracePeriodSeconds: 1
  containers: [{name: web, image: "example.com/web:1", imagePullPolicy: Never}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: friends}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress]
  ingress: [{from: [{podSelector: {matchLabels: {role: friend}}}]}]
`
)

// scene is a lab in a separate folder, with the programs that the test uses.
type scene struct {
	dir, file, labctl, kubectl string
	lab                        *Lab
}

func newScene(t *testing.T) *scene {
	t.Helper()
	if os.Getenv(envRun) == "" {
		t.Skipf("it takes root and minutes: make test-nodes, or %s=1", envRun)
	}
	if err := Check(); err != nil {
		t.Skip(err)
	}
	root := t.TempDir()
	s := &scene{dir: filepath.Join(root, "lab"), file: filepath.Join(root, "lab.yaml"), labctl: filepath.Join(root, "labctl")}
	assets, err := lab.Binaries(t.Context(), os.Stderr, lab.Kubectl)
	if err != nil {
		t.Fatal(err)
	}
	s.kubectl = assets[lab.Kubectl]
	web := filepath.Join(root, "web")
	t.Setenv("CGO_ENABLED", "0") // nothing else is in the image
	t.Setenv("TMPDIR", root)     // a folder that no node has
	run(t, "go", "build", "-o", s.labctl, "github.com/drover-dev/drover/hack/labctl")
	run(t, "go", "build", "-o", web, "./testdata/web")
	if err := WriteImage(filepath.Join(root, "web.tar"), Image{Name: "example.com/web:1", Programs: []string{web}, User: "65532"}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.file, []byte(labFile), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Down(context.Background(), s.dir, "", os.Stderr); err != nil {
			t.Error(err)
		}
	})
	return s
}

// run runs a program until it ends and returns its output.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	output, err := try(t.Context(), name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return output
}

func try(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s%s", filepath.Base(name), strings.Join(args, " "), err, output, stderr.String())
	}
	return string(output), nil
}

func (s *scene) up(t *testing.T) {
	t.Helper()
	run(t, s.labctl, "up", "-f", s.file, "--dir", s.dir)
	l, err := Open(s.dir, "")
	if err != nil {
		t.Fatal(err)
	}
	s.lab = l
}

func (s *scene) kubectlArgs(args ...string) []string {
	return append([]string{"--kubeconfig", s.lab.Kubeconfig("hub")}, args...)
}

func (s *scene) k(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, s.kubectl, s.kubectlArgs(args...)...)
}

// pod returns the name and the address of the pod on a node.
func (s *scene) pod(t *testing.T, node string) (name, address string) {
	t.Helper()
	output := s.k(t, "get", "pods", "--field-selector=spec.nodeName="+node, "-o", "jsonpath={.items[0].metadata.name} {.items[0].status.podIP}")
	name, address, _ = strings.Cut(output, " ")
	return name, address
}

// eventually waits for a condition that other processes make true.
func eventually(t *testing.T, condition func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepLimit)
	defer cancel()
	if err := poll(ctx, func() error { return condition(ctx) }); err != nil {
		t.Fatal(err)
	}
}

// machineState is the state that the lab must not change: network devices, addresses, routes, rules, cgroups, mounts
// and kernel settings.
func machineState(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, command := range []string{
		"ip -brief link", "ip -brief address", "ip route show table all", "nft list ruleset", "ip netns list", "cat /proc/sys/net/ipv4/ip_forward",
	} {
		fields := strings.Fields(command)
		fmt.Fprintln(&b, command, run(t, fields[0], fields[1:]...))
	}
	for name := range kernelSettings() {
		content, err := os.ReadFile("/proc/sys/" + name)
		fmt.Fprintln(&b, name, string(content), err)
	}
	lines := strings.Split(b.String(), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestALabOfRealNodes(t *testing.T) {
	s := newScene(t)
	before := machineState(t)
	for _, step := range []struct {
		name string
		test func(*testing.T)
	}{
		{"what labctl did before it was killed is gone on with", s.killedUp},
		{"pods of both nodes reach each other, a Service by its name and the API", s.podsReach},
		{"a NetworkPolicy is felt by pods of the same node and of another one", s.policies},
		{"up again changes nothing", s.upAgain},
		{"a node that is cut off is not ready and not reached, until it is mended", s.cut},
		{"a node that was killed comes back with its pods", s.kill},
		{"nothing is left after down, also if labctl was killed before", s.down},
	} {
		if !t.Run(step.name, step.test) {
			break
		}
	}
	if after := machineState(t); after != before {
		t.Errorf("the machine was\n%s\nand is\n%s", before, after)
	}
}

func (s *scene) killedUp(t *testing.T) {
	killed := exec.Command(s.labctl, "up", "-f", s.file, "--dir", s.dir)
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(context.Context) error {
		_, err := os.Stat(initPIDFile(filepath.Join(s.dir, "nodes", "near")))
		return err
	})
	_ = killed.Process.Kill()
	_ = killed.Wait()
	s.up(t)
	if got := s.k(t, "get", "nodes", "-l", "zone=b", "-o", "name"); got != "node/far\n" {
		t.Errorf("the nodes with the label are %q", got)
	}
}

func (s *scene) podsReach(t *testing.T) {
	manifest := filepath.Join(filepath.Dir(s.file), "web.yaml") // t.TempDir would have a comma, at which kubectl splits
	if err := os.WriteFile(manifest, []byte(webManifest), 0o600); err != nil {
		t.Fatal(err)
	}
	s.k(t, "apply", "-f", manifest)
	s.k(t, "rollout", "status", "daemonset/web")
	near, _ := s.pod(t, "near")
	far, address := s.pod(t, "far")
	if got := s.k(t, "logs", far); got != far+" serves\n" {
		t.Errorf("the log of %s is %q", far, got)
	}
	if got := s.k(t, "exec", near, "--", "/web", "http://"+address+":8080"); got != far+"\n" {
		t.Errorf("at the other node's address is %q, want %s", got, far)
	}
	seen := map[string]bool{}
	eventually(t, func(ctx context.Context) error { // the rules choose at random
		got, err := try(ctx, s.kubectl, s.kubectlArgs("exec", near, "--", "/web", "http://web")...)
		seen[strings.TrimSpace(got)] = true
		if err == nil && (!seen[near] || !seen[far]) {
			err = fmt.Errorf("the Service led to %v, not to both", seen)
		}
		return err
	})
	_, err := try(t.Context(), s.kubectl, s.kubectlArgs("exec", near, "--", "/web", "https://kubernetes.default.svc")...)
	if err == nil || !strings.Contains(err.Error(), "unknown authority") { // it has reached the API server, whose CA the program does not know
		t.Errorf("the API server from a pod: %v", err)
	}
	if got := s.k(t, "get", "--raw", "/api/v1/namespaces/default/services/web:80/proxy/"); !strings.HasPrefix(got, "web-") {
		t.Errorf("through the API server's proxy: %q", got)
	}
}

func (s *scene) policies(t *testing.T) {
	manifest := filepath.Join(filepath.Dir(s.file), "visitor.yaml")
	if err := os.WriteFile(manifest, []byte(visitorManifest), 0o600); err != nil {
		t.Fatal(err)
	}
	_, near := s.pod(t, "near")
	_, far := s.pod(t, "far")
	s.k(t, "apply", "-f", manifest)
	s.k(t, "wait", "pod/visitor", "--for=condition=Ready", "--timeout=4m")
	get := func(ctx context.Context, host string) error {
		_, err := try(ctx, s.kubectl, s.kubectlArgs("exec", "visitor", "--", "/web", "http://"+host)...)
		return err
	}
	refused := func(ctx context.Context, host string) error {
		if err := get(ctx, host); err == nil || !strings.Contains(err.Error(), "no route to host") {
			return fmt.Errorf("%s: %w, want a refusal by the policy", host, cmp.Or(err, errors.New("an answer")))
		}
		return nil
	}
	hosts := []string{near + ":8080", far + ":8080", "web"}
	for _, step := range []struct {
		change []string
		check  func(ctx context.Context, host string) error
	}{
		{[]string{"get", "networkpolicy", "friends"}, refused},
		{[]string{"label", "pod", "visitor", "role=friend"}, get},
		{[]string{"label", "pod", "visitor", "role-"}, refused},
		{[]string{"delete", "networkpolicy", "friends"}, get},
	} {
		s.k(t, step.change...)
		for _, host := range hosts {
			eventually(t, func(ctx context.Context) error {
				if err := step.check(ctx, host); err != nil {
					return fmt.Errorf("after kubectl %s: %w", strings.Join(step.change, " "), err)
				}
				return nil
			})
		}
	}
	s.k(t, "delete", "pod", "visitor")
}

func (s *scene) upAgain(t *testing.T) {
	before, err := FindLeftovers(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	s.up(t)
	after, err := FindLeftovers(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(before.PIDs, after.PIDs) || len(before.PIDs) == 0 {
		t.Errorf("the processes were %v and are %v", before.PIDs, after.PIDs)
	}
}

func (s *scene) cut(t *testing.T) {
	near, _ := s.pod(t, "near")
	far, address := s.pod(t, "far")
	if err := s.lab.Cut("far"); err != nil {
		t.Fatal(err)
	}
	if got, err := try(t.Context(), s.kubectl, s.kubectlArgs("exec", near, "--", "/web", "http://"+address+":8080")...); err == nil {
		t.Errorf("the pod on the node that is cut off was reached: %q", got)
	}
	s.k(t, "wait", "node/far", "--for=condition=Ready=Unknown", "--timeout=4m")
	if err := s.lab.Mend("far"); err != nil {
		t.Fatal(err)
	}
	s.k(t, "wait", "node/far", "--for=condition=Ready", "--timeout=4m")
	s.k(t, "wait", "pod/"+far, "--for=condition=Ready", "--timeout=4m")
	if got := s.k(t, "exec", near, "--", "/web", "http://"+address+":8080"); got != far+"\n" {
		t.Errorf("after it was mended: %q", got)
	}
}

func (s *scene) kill(t *testing.T) {
	far, _ := s.pod(t, "far")
	stale := s.staleCgroup(t)
	s.k(t, "cordon", "far") // it is ready all the same
	if err := s.lab.Kill("far"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(context.Context) error {
		running, err := s.lab.nodeRuns("far")
		if running {
			err = fmt.Errorf("node far runs")
		}
		return err
	})
	s.up(t)
	s.k(t, "uncordon", "far")
	if _, err := os.Stat(stale); err == nil {
		t.Errorf("%s is left of the node that was killed", stale)
	}
	eventually(t, func(ctx context.Context) error {
		got, err := try(ctx, s.kubectl, s.kubectlArgs("get", "pod", far, "-o", "jsonpath={.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].ready}")...)
		if err == nil && got != "1 true" {
			err = fmt.Errorf("pod %s: restarts and readiness are %s", far, got)
		}
		return err
	})
}

// staleCgroup creates a cgroup below the cgroup of the node far, as containers do, and returns its path.
func (s *scene) staleCgroup(t *testing.T) string {
	t.Helper()
	all, err := machineHierarchies()
	if err != nil {
		t.Fatal(err)
	}
	stale := filepath.Join(all[0].mount, s.lab.cgroup(), "far", "stale")
	if err := os.Mkdir(stale, 0o755); err != nil {
		t.Fatal(err)
	}
	return stale
}

func (s *scene) down(t *testing.T) {
	killed := exec.Command(s.labctl, "down", "-f", s.file, "--dir", s.dir)
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	before, err := FindLeftovers(s.dir)
	if err != nil || before.Empty() {
		t.Fatalf("before down there is %+v, %v", before, err)
	}
	_ = killed.Process.Kill()
	_ = killed.Wait()
	for range 2 { // down is idempotent
		run(t, s.labctl, "down", "-f", s.file, "--dir", s.dir)
	}
	left, err := FindLeftovers(s.dir)
	if err != nil || !left.Empty() {
		t.Errorf("left over: %+v, %v", left, err)
	}
	for _, path := range []string{s.dir, s.dir + ".lock"} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}
