// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

// operator is a user with a kubeconfig that has the contexts hub, member and through. The context through leads to the
// member through the hub.
type operator struct{ home, kubeconfig string }

func newOperator(t *testing.T, s *system) operator {
	t.Helper()
	o := operator{home: t.TempDir()}
	o.kubeconfig = filepath.Join(o.home, "config")
	all := clientcmdapi.NewConfig()
	for name, plane := range map[string]*framework.Plane{"hub": s.hub.Plane, "member": s.member} {
		file := filepath.Join(o.home, name)
		if err := plane.WriteKubeconfig(file); err != nil {
			t.Fatal(err)
		}
		one, err := clientcmd.LoadFromFile(file)
		if err != nil {
			t.Fatal(err)
		}
		context := one.Contexts[one.CurrentContext]
		all.Clusters[name], all.AuthInfos[name] = one.Clusters[context.Cluster], one.AuthInfos[context.AuthInfo]
		all.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: metav1.NamespaceDefault}
	}
	all.Clusters["through"] = &clientcmdapi.Cluster{Server: s.hub.URL() + "/k8s/clusters/default/imported"}
	all.Contexts["through"] = &clientcmdapi.Context{Cluster: "through", AuthInfo: "hub"}
	all.CurrentContext = "hub"
	if err := clientcmd.WriteToFile(*all, o.kubeconfig); err != nil {
		t.Fatal(err)
	}
	return o
}

// command returns the command "kubectl drover" with arguments.
func (o operator) command(t *testing.T, args ...string) (command *exec.Cmd, out, says *bytes.Buffer) {
	t.Helper()
	out, says = &bytes.Buffer{}, &bytes.Buffer{}
	command = exec.CommandContext(within(t, 2*time.Minute), filepath.Join(pluginDir(t), "kubectl-drover"), args...)
	command.Env = append(os.Environ(), "HOME="+o.home, "KUBECONFIG="+o.kubeconfig)
	command.Stdout, command.Stderr = out, says
	return command, out, says
}

// TestAClusterIsImportedByThePlugin creates a Cluster and applies its agent with a single command, which waits while
// the agent starts.
func TestAClusterIsImportedByThePlugin(t *testing.T) {
	t.Parallel()
	s := start(t)
	o := newOperator(t, s)
	name := types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "imported"}
	refuses := func(what string, args ...string) {
		t.Helper()
		command, out, says := o.command(t, args...)
		if err := command.Run(); err == nil || !strings.Contains(says.String(), what) || out.Len() != 0 {
			t.Errorf("kubectl drover %v: %v, %q, %q; want it to fail with %q", args, err, out, says, what)
		}
	}
	absent := func() bool {
		return apierrors.IsNotFound(s.hub.Client.Get(t.Context(), name, &v1.Cluster{}))
	}
	refuses("a Cluster cannot have the name", "import", "Imported")
	refuses("leads through a hub", "import", "imported", "--to-context", "through")
	refuses(`context "nowhere" does not exist`, "import", "imported", "--to-context", "nowhere")
	refuses("Drover is not installed there", "import", "imported", "--context", "member")
	if command, _, says := o.command(t, "import", "imported", "--labels", "env=prod", "--dry-run"); command.Run() != nil || !strings.Contains(says.String(), "dry run") {
		t.Errorf("a dry run says %q", says)
	}
	if !absent() {
		t.Fatal("a Cluster was made by what was refused, or by a dry run")
	}

	command, out, _ := o.command(t, "import", "imported", "--labels", "env=prod", "--to-context", "member")
	says := sayingTo(t, command)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	agent := s.preparedAgent(t, s.appliedManifest(t, name), "imported")
	s.startAgent(t, agent, protocol.EnvServer+"=https://127.0.0.1:1")
	s.describesError(t, "127.0.0.1:1: connect: connection refused")
	testkit.Eventually(t, 20*time.Second, func(context.Context) error {
		if text := says(); !strings.Contains(text, "connection refused: check server.urls") {
			return fmt.Errorf("import says %q, want the error of the agent with advice", text)
		}
		return nil
	})
	kill(t, agent.Process)
	s.startAgent(t, agent)
	if err := command.Wait(); err != nil || out.Len() != 0 || !strings.Contains(says(), "Connected: ") {
		t.Fatalf("import: %v, %q, %q; want it to end when the Cluster is ready, and to print no secret", err, out, says())
	}
	s.describesError(t, "")
	cluster := &v1.Cluster{}
	if err := s.hub.Client.Get(t.Context(), name, cluster); err != nil || cluster.Labels["env"] != "prod" {
		t.Errorf("labels %v (%v)", cluster.Labels, err)
	}

	t.Run("commands for the hub reach it from the member's context", func(t *testing.T) { fromTheMember(t, s, o) })
	refuses("exists with other labels", "import", "imported", "--labels", "env=test")
	refuses("exists with the profile Full", "import", "imported", "--profile", "ReadOnly")
	t.Run("a second time it changes nothing", func(t *testing.T) {
		command, out, says := o.command(t, "import", "imported", "--labels", "env=prod", "--to-context", "member")
		if err := command.Run(); err != nil || out.Len() != 0 || !strings.Contains(says.String(), "has an agent and is ready") {
			t.Errorf("%v, %q, %q", err, out, says)
		}
	})
	t.Run("without a context it prints what to run, and waits no longer than it is told to", func(t *testing.T) {
		command, out, says := o.command(t, "import", "later", "--wait", "--timeout", "5s")
		if err := command.Run(); err == nil || !strings.Contains(out.String(), "kubectl apply --server-side") || !strings.Contains(says.String(), "is not ready after 5s: ") {
			t.Errorf("%v, %q, %q", err, out, says)
		}
		if strings.Contains(says.String(), protocol.PathImport) {
			t.Errorf("the token is among what it says beside: %q", says)
		}
	})
	t.Run("an interrupt says how to go on", func(t *testing.T) {
		command, out, says := o.command(t, "import", "later", "--wait")
		command.Cancel = func() error { return command.Process.Kill() }
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer read.Close()
		command.Stdout = write
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		_ = write.Close()
		if _, err := read.Read(make([]byte, 64)); err != nil { // it has printed the command, and waits
			t.Fatal(err, command.Wait(), says)
		}
		if err := command.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if err := command.Wait(); err == nil || command.ProcessState.ExitCode() != 130 || !strings.Contains(says.String(), "run the same command again") {
			t.Errorf("%v, %q, %q", err, out, says)
		}
	})
	t.Run("another cluster cannot take its place", func(t *testing.T) {
		if err := s.hub.StopManagers(); err != nil { // so that the Cluster is not ready for long
			t.Fatal(err)
		}
		testkit.Eventually(t, 30*time.Second, func(context.Context) error { // the Lease of a killed manager lasts for 15 s
			command, out, says := o.command(t, "status")
			err := command.Run()
			if code := command.ProcessState.ExitCode(); code != 1 || !strings.Contains(out.String(), "no manager leads") {
				return fmt.Errorf("status: %w, %q, %q; want the problem that no manager leads", err, out, says)
			}
			return nil
		})
		before := cluster.DeepCopy()
		for i := range cluster.Status.Conditions {
			cluster.Status.Conditions[i].Status = metav1.ConditionFalse
		}
		if err := s.hub.Client.Status().Patch(t.Context(), cluster, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
		refuses("already has another cluster than the one of context hub", "import", "imported", "--to-context", "hub")
	})
}

// fromTheMember pairs the hub's context with its URL, makes the member the current context, and runs commands for the
// hub.
func fromTheMember(t *testing.T, s *system, o operator) {
	t.Helper()
	ca := filepath.Join(o.home, "hub-ca.crt")
	if bundle, err := s.hub.Bundle(t.Context()); err != nil || os.WriteFile(ca, bundle, 0o600) != nil {
		t.Fatal("the hub's CA could not be written", err)
	}
	says := func(what string, args ...string) {
		t.Helper()
		command, out, says := o.command(t, args...)
		if err := command.Run(); err != nil || !strings.Contains(out.String(), what) {
			t.Errorf("kubectl drover %v: %v, %q, %q; want %q", args, err, out, says, what)
		}
	}
	current := func(name string) {
		t.Helper()
		config, err := clientcmd.LoadFromFile(o.kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		config.CurrentContext = name
		if err := clientcmd.WriteToFile(*config, o.kubeconfig); err != nil {
			t.Fatal(err)
		}
	}
	says(`Switched to context "hub"`, "use", "--hub="+s.hub.URL(), "--ca", ca, "--context", "hub")
	current("member")
	says("imported", "agents")
	says("imported", "clusters")
	says("\nleader ", "status")
	says("system:masters", "whoami")
	current("through")
	says("imported", "agents")
	says(`Switched to context "hub"`, "use", "--hub")
	says(`Switched to context "through"`, "use", "-")
	current("hub")
}

// appliedManifest waits until the agent's manifest of a Cluster is applied in the member.
func (s *system) appliedManifest(t *testing.T, name types.NamespacedName) []byte {
	t.Helper()
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		_, err := s.member.Kubectl(ctx, nil, "-n", protocol.AgentNamespace, "get", "deployment", protocol.AgentName)
		return err
	})
	cluster := &v1.Cluster{}
	if err := s.hub.Client.Get(t.Context(), name, cluster); err != nil {
		t.Fatal(err)
	}
	manifest, err := s.hub.Manifest(within(t, time.Minute), name, cluster.UID)
	if err != nil {
		t.Fatal(err)
	}
	return manifest
}

// sayingTo redirects the standard error of a command to a file, and returns a function that reads the file.
func sayingTo(t *testing.T, command *exec.Cmd) func() string {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	command.Stderr = file
	return func() string {
		text, err := os.ReadFile(file.Name())
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
}

// describesError waits until the description of the agent's Deployment contains a last error with the given text, or no
// error if the text is empty.
func (s *system) describesError(t *testing.T, text string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		out, err := s.member.Kubectl(ctx, nil, "-n", protocol.AgentNamespace, "describe", "deployment", protocol.AgentName)
		has := strings.Contains(out, v1.AnnotationAgentLastError)
		if err != nil || has != (text != "") || !strings.Contains(out, text) {
			return fmt.Errorf("%w: it describes %s", err, out)
		}
		return nil
	})
}

// preparedAgent is the agent that the member's kubelet would start.
func (s *system) preparedAgent(t *testing.T, manifest []byte, name string) *framework.Agent {
	t.Helper()
	agent, err := framework.InstallAgent(within(t, time.Minute), s.member, manifest, name, protocol.AgentNamespace)
	if err != nil {
		t.Fatal(err)
	}
	return agent
}
