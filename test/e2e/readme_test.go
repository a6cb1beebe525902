// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// reader follows README.md in a copy of the sources. The kubeconfig has the hub as the current context, and the context
// prod-eu-admin of a cluster that is not a member yet.
type reader struct {
	*system
	hubPlane *framework.Plane
	address  string   // of the hub, in place of drover.example.com
	sources  string   // the working directory
	exports  string   // the "export" commands so far
	env      []string // of the commands
}

// TestLong_ReadmeLeadsToAMemberInTenCommands runs the commands of README.md's section Install without changes, except
// that a free address replaces the example address. Neither cluster has nodes. docker only records its calls, and the
// test runs the manager and the agent when their pods are created.
func TestLong_ReadmeLeadsToAMemberInTenCommands(t *testing.T) {
	t.Parallel()
	commands := readmeCommands(t)
	r := newReader(t)
	for _, command := range commands {
		finish := r.start(t, command)
		switch {
		case strings.HasPrefix(command, "make deploy"):
			r.runManager(t)
		case strings.Contains(command, "drover import"):
			name := types.NamespacedName{Namespace: "team-a", Name: "prod-eu"}
			r.startAgent(t, r.preparedAgent(t, r.appliedManifest(t, name), name.Name))
		}
		if out := finish(); strings.Contains(command, "user create") {
			r.openBrowsers(t, strings.TrimSpace(out))
		}
	}
	r.isAlice(t)
	called, err := os.ReadFile(filepath.Join(r.sources, "docker.log"))
	const image = `registry\.example\.com/drover:v0\.1\.0`
	want := regexp.MustCompile(`^build .*--tag ` + image + ` \.\npush ` + image + `\n$`)
	if err != nil || !want.Match(called) {
		t.Errorf("docker was called with %q (%v), want %s", called, err, want)
	}

	t.Run("Alice needs only the plugin, the CA and the last two commands", func(t *testing.T) {
		elsewhere := *r
		elsewhere.env = append(elsewhere.env, "HOME="+t.TempDir(), "KUBECONFIG=")
		for _, command := range commands[len(commands)-2:] {
			elsewhere.start(t, command)()
		}
		elsewhere.isAlice(t)
	})
}

// readmeCommands returns the commands of README.md's section Install.
func readmeCommands(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(testkit.Path(t, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)\n## Install\n.*?```sh\n(.*?)```").FindSubmatch(text)
	if block == nil {
		t.Fatal("README.md has no commands in its section Install")
	}
	commands := strings.Split(strings.TrimSpace(string(block[1])), "\n")
	if len(commands) != 10 {
		t.Errorf("README.md has %d commands, want ten as it says", len(commands))
	}
	return commands
}

// newReader starts two control planes and prepares the reader's computer.
func newReader(t *testing.T) *reader {
	t.Helper()
	r := &reader{system: build(t), sources: t.TempDir()}
	planes := map[string]*framework.Plane{}
	for name, context := range map[string]string{"hub": "hub", "member": "prod-eu-admin"} {
		plane, err := r.plane(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = plane.Kill() })
		planes[context] = plane
	}
	r.hubPlane, r.member = planes["hub"], planes["prod-eu-admin"]
	var err error
	if r.address, err = lab.FreeAddress("127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	const others = "--exclude=./.git --exclude=./bin --exclude=./dist --exclude=./.demo --exclude=node_modules"
	copied := exec.CommandContext(t.Context(), "bash", "-c", `tar -c `+others+` . | tar -x -C "$0"`, r.sources)
	copied.Dir = r.programs.Root
	if out, err := copied.CombinedOutput(); err != nil {
		t.Fatalf("copy the sources: %v: %s", err, out)
	}
	r.prepare(t, planes)
	return r
}

// prepare writes the reader's kubeconfig, and a folder with the programs that the reader has.
func (r *reader) prepare(t *testing.T, planes map[string]*framework.Plane) {
	t.Helper()
	home, tools := t.TempDir(), t.TempDir()
	all := clientcmdapi.NewConfig()
	for name, plane := range planes {
		file := filepath.Join(t.TempDir(), "kubeconfig")
		if err := plane.WriteKubeconfig(file); err != nil {
			t.Fatal(err)
		}
		one, err := clientcmd.LoadFromFile(file)
		if err != nil {
			t.Fatal(err)
		}
		context := one.Contexts[one.CurrentContext]
		all.Clusters[name], all.AuthInfos[name] = one.Clusters[context.Cluster], one.AuthInfos[context.AuthInfo]
		all.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	}
	all.CurrentContext = "hub"
	kubeconfig := filepath.Join(home, "kubeconfig")
	docker := "#!/bin/sh\necho \"$*\" >>'" + filepath.Join(r.sources, "docker.log") + "'\n"
	if err := errors.Join(clientcmd.WriteToFile(*all, kubeconfig),
		os.Symlink(r.programs.Kubectl, filepath.Join(tools, "kubectl")),
		os.WriteFile(filepath.Join(tools, "docker"), []byte(docker), 0o700)); err != nil {
		t.Fatal(err)
	}
	path := "PATH=" + tools + ":" + os.Getenv("PATH")
	r.env = append(os.Environ(), path, "KUBECONFIG="+kubeconfig, "KUBERC=off", "CONTAINER_TOOL=", "DOCKER=")
	for _, name := range []string{"GOPATH", "GOCACHE", "GOMODCACHE"} { // they would be in another home
		out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		r.env = append(r.env, name+"="+strings.TrimSpace(string(out)))
	}
	r.env = append(r.env, "HOME="+home)
}

// command returns a command in the reader's shell, which has all variables that were exported earlier.
func (r *reader) command(t *testing.T, script string) *exec.Cmd {
	t.Helper()
	script = r.exports + strings.ReplaceAll(script, "drover.example.com", r.address)
	command := exec.CommandContext(within(t, 2*time.Minute), "bash", "-euc", script)
	command.Dir, command.Env, command.WaitDelay = r.sources, r.env, 5*time.Second
	return command
}

// start starts a command. The returned function waits until the command has ended, and returns its standard output.
func (r *reader) start(t *testing.T, command string) (finish func() string) {
	t.Helper()
	if strings.HasPrefix(command, "export ") {
		r.exports += command + "\n"
	}
	began := time.Now()
	process := r.command(t, command)
	var out, problems bytes.Buffer
	process.Stdout, process.Stderr = &out, &problems
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	wait := sync.OnceValue(process.Wait)
	t.Cleanup(func() {
		if err := wait(); t.Failed() {
			t.Logf("%s: %v\n%s%s", command, err, &out, &problems)
		}
	})
	return func() string {
		t.Helper()
		if err := wait(); err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		t.Logf("%s: %s", command, time.Since(began).Round(100*time.Millisecond))
		return out.String()
	}
}

// runManager waits for the pods of the manager, runs one manager with their configuration, and reports the pods as
// ready.
func (r *reader) runManager(t *testing.T) {
	t.Helper()
	var pods corev1.PodList
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		var deployment appsv1.Deployment
		name := types.NamespacedName{Namespace: "drover-system", Name: "drover-manager"}
		if err := r.hubPlane.Client.Get(ctx, name, &deployment); err != nil {
			return err
		}
		err := r.hubPlane.Client.List(ctx, &pods, client.InNamespace(name.Namespace),
			client.MatchingLabels(deployment.Spec.Selector.MatchLabels))
		if want := int(*deployment.Spec.Replicas); err == nil && len(pods.Items) != want {
			err = fmt.Errorf("the manager has %d pods, want %d", len(pods.Items), want)
		}
		return err
	})
	deployed := r.deployedConfig(t, &pods.Items[0])
	layout := framework.Layout{Replicas: 1, Address: r.address, Configure: func(c *config.Config) {
		configured := deployed // pods have ports of their own, and find each other by a name
		configured.Server.Listen, configured.Health, configured.Metrics = c.Server.Listen, c.Health, c.Metrics
		configured.Peers, configured.Drain = c.Peers, c.Drain
		*c = configured
	}}
	var err error
	if r.hub, err = framework.StartReplicas(within(t, 2*time.Minute), r.hubPlane, layout); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.hub.Manager.Kill() })
	for i := range pods.Items {
		pod := &pods.Items[i]
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = append(pod.Status.Conditions,
			corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
		if err := r.hubPlane.Client.Status().Update(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
}

// deployedConfig returns the configuration that a pod of the manager mounts.
func (r *reader) deployedConfig(t *testing.T, pod *corev1.Pod) (deployed config.Config) {
	t.Helper()
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		if volume.ConfigMap == nil {
			continue
		}
		var object corev1.ConfigMap
		name := types.NamespacedName{Namespace: pod.Namespace, Name: volume.ConfigMap.Name}
		err := r.hubPlane.Client.Get(t.Context(), name, &object)
		if err == nil {
			err = yaml.UnmarshalStrict([]byte(object.Data["config.yaml"]), &deployed)
		}
		if err != nil {
			t.Fatal(err)
		}
		return deployed
	}
	t.Fatal("the manager's pods mount no ConfigMap")
	return deployed
}

// openBrowsers provides the reader's computer with a browser, in which Alice signs in with a password.
func (r *reader) openBrowsers(t *testing.T, password string) {
	t.Helper()
	at := newComputer(t, r.system, "alice", password)
	r.exports += "PATH='" + at.home + "':$PATH\n"
	for _, variable := range at.env {
		if strings.HasPrefix(variable, "TEST_BROWSER_") {
			r.env = append(r.env, variable)
		}
	}
}

// isAlice checks that kubectl reaches the member as Alice, who may read pods there after the binding is delivered to
// the member.
func (r *reader) isAlice(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		whoami := "kubectl auth whoami -o 'jsonpath={.status.userInfo.username}'"
		out, err := r.command(t, "kubectl get pods && "+whoami).CombinedOutput()
		if err != nil || !strings.HasSuffix(string(out), "\nlocal:alice") {
			return fmt.Errorf("kubectl prints %q (%w)", out, err)
		}
		return nil
	})
}
