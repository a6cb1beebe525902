// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
)

// TestAHubOnIPv6Alone runs the hub, the agent and the user on [::1] only.
func TestAHubOnIPv6Alone(t *testing.T) {
	t.Parallel()
	if listener, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip("this machine has no IPv6: ", err)
	} else if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	s := startLayout(t, framework.Layout{Replicas: 1, Host: "::1"})
	if !strings.HasPrefix(s.hub.URL(), "https://[::1]:") {
		t.Fatalf("the hub is at %s", s.hub.URL())
	}
	cluster, agent := s.imported(t, "six", s.member, protocol.AgentNamespace)
	logAtEnd(t, agent)
	s.await(t, cluster, 30*time.Second, framework.Ready)
	if out, err := s.kubectl(t, cluster, demoToken, "get", "namespaces"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestAnAgentBehindAProxyWithAPassword runs an agent that reaches the hub through Debian's tinyproxy. The proxy's
// password is in a Secret in the member. Programs do not use a proxy for "localhost" and loopback addresses. They do
// use it for LOCALHOST, which resolves to the same address.
func TestAnAgentBehindAProxyWithAPassword(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("tinyproxy")
	if err != nil {
		t.Skip("tinyproxy is not installed: apt-get install tinyproxy")
	}
	const password = "swordfish-0123456789"
	s := startLayout(t, framework.Layout{Replicas: 1, Configure: func(c *config.Config) {
		c.Server.URLs = []string{strings.Replace(c.Server.URLs[0], "127.0.0.1", "LOCALHOST", 1)}
	}})
	address, logged := startProxy(t, program, "BasicAuth agent "+password)

	name := cluster("proxied")
	object := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	object.Spec.Agent.Env = []v1.AgentEnv{{Name: "HTTPS_PROXY", SecretKey: "proxy"}}
	create(t, s.hub.Plane, object)
	manifest, err := s.hub.Manifest(within(t, 20*time.Second), name, object.UID)
	if err != nil {
		t.Fatal(err)
	}
	agent, err := framework.InstallAgent(within(t, time.Minute), s.member, manifest, name.Name, protocol.AgentNamespace)
	if err != nil {
		t.Fatal(err)
	}
	logAtEnd(t, agent)
	create(t, s.member, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: protocol.AgentNamespace, Name: "drover-agent-env"},
		StringData: map[string]string{"proxy": "http://agent:" + password + "@" + address}})
	s.startAgent(t, agent, s.secretEnv(t)...)
	s.await(t, name, 30*time.Second, framework.Ready)
	if out, err := s.kubectl(t, name, demoToken, "get", "namespaces"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	_, port, err := net.SplitHostPort(s.hub.Address)
	if err != nil {
		t.Fatal(err)
	}
	asked, hub := 0, "CONNECT LOCALHOST:"+port+" "
	for line := range strings.Lines(read(t, logged)) {
		switch _, request, found := strings.Cut(line, "Request (file descriptor"); {
		case found && strings.Contains(request, hub):
			asked++
		case found:
			t.Errorf("the proxy was asked for something else than the hub: %s", line)
		}
	}
	if asked == 0 {
		t.Errorf("the agent did not ask the proxy for the hub: %s", read(t, logged))
	}
	for _, file := range []string{agent.Log, s.hub.Manager.LogFile()} {
		if strings.Contains(read(t, file), password) {
			t.Errorf("the password is in %s", file)
		}
	}
	if out, err := s.hub.Kubectl(t.Context(), nil, "get", "clusters,events", "-A", "-o", "yaml"); err != nil || strings.Contains(out, password) {
		t.Errorf("the password is in a status or an event, or %v", err)
	}
}

// startLayout starts a hub that is its own member, like startAlone, in a layout.
func startLayout(t *testing.T, layout framework.Layout) *system {
	t.Helper()
	s := build(t)
	plane, err := s.plane("hub", lab.User{Name: "demo", Token: demoToken})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Kill() })
	s.hub, err = framework.InstallReplicas(within(t, 2*time.Minute), plane, layout)
	t.Cleanup(func() { _ = s.hub.StopManagers() })
	if err != nil {
		t.Fatal(err)
	}
	s.member = s.hub.Plane
	s.grant(t)
	return s
}

// startProxy starts tinyproxy on the loopback address with one additional line of configuration. It returns its address
// and the file with its requests.
func startProxy(t *testing.T, program, more string) (address, logged string) {
	t.Helper()
	address, err := lab.FreeAddress("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file, logged := filepath.Join(dir, "tinyproxy.conf"), filepath.Join(dir, "proxy.log")
	text := fmt.Sprintf("Port %s\nListen %s\nLogFile %q\nLogLevel Connect\nTimeout 600\n%s\n", port, host, logged, more)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	process, err := lab.Command{Path: program, Args: []string{"-d", "-c", file}, LogFile: filepath.Join(dir, "out.log")}.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Kill() })
	if err := process.WaitReady(within(t, 30*time.Second), func(context.Context) error {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			err = conn.Close()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return address, logged
}

// secretEnv returns the variables of the agent's Deployment that come from Secrets, as a kubelet reads them.
func (s *system) secretEnv(t *testing.T) (env []string) {
	t.Helper()
	d := &appsv1.Deployment{}
	if err := s.member.Client.Get(t.Context(), types.NamespacedName{Namespace: protocol.AgentNamespace, Name: protocol.AgentName}, d); err != nil {
		t.Fatal(err)
	}
	for _, variable := range d.Spec.Template.Spec.Containers[0].Env {
		if variable.ValueFrom == nil || variable.ValueFrom.SecretKeyRef == nil {
			continue
		}
		ref := variable.ValueFrom.SecretKeyRef
		env = append(env, variable.Name+"="+string(secret(t, s.member, protocol.AgentNamespace, ref.Name).Data[ref.Key]))
	}
	if len(env) != 1 {
		t.Fatalf("the Deployment has %d variables from Secrets, want one", len(env))
	}
	return env
}

func read(t *testing.T, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
