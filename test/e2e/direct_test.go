// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// TestLong_UsersGoOnWithoutTheHub checks that get, exec and port-forward continue to work at the member's own address
// while the hub is killed, even when the API server and the agent of the member are restarted. An earlier revocation
// stays in effect.
func TestLong_UsersGoOnWithoutTheHub(t *testing.T) {
	t.Parallel()
	s := startWith(t, (*system).startSignIn)
	cluster, manifest := s.created(t, "member")
	address, err := lab.FreeAddress("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	agent := s.agent(t, manifest, "member", s.member, protocol.AgentNamespace, protocol.EnvDirectListen+"="+address)
	s.await(t, cluster, time.Minute, framework.Ready)
	pod := startKubelet(t, s.member)
	alice, bob := newComputer(t, s, "alice", makeUser(t, s, "alice")), newComputer(t, s, "bob", makeUser(t, s, "bob"))
	awaitKeys(t, s)
	s.bindAdmins(t, cluster.Name, "alice", "bob")
	testkit.Update(t, s.hub.Client, s.cluster(t, cluster), func(c *v1.Cluster) { c.Spec.AuthorizedEndpoint.Server = "https://" + address })
	s.await(t, cluster, time.Minute, func(c *v1.Cluster) bool { return c.Status.DirectAuthority != "" })
	direct := cluster.String() + "@" + s.hub.Address + "-direct"
	for _, at := range []*computer{alice, bob} {
		if out, err := at.drover(t, "login", s.hub.URL(), "--ca", at.ca, "--timeout", "2m"); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		testkit.Eventually(t, time.Minute, func(context.Context) error { // the hub has to learn of the binding, and the agent of the keys to verify with
			out, err := at.drover(t, "use", "member")
			if err == nil && !strings.Contains(out, direct) {
				err = fmt.Errorf("the chosen context is not the direct one: %s", out)
			}
			return err
		})
	}
	works := func(at *computer) error {
		_, err := at.kubectl(t, "get", "pods")
		return err
	}
	for _, at := range []*computer{alice, bob} {
		testkit.Eventually(t, time.Minute, func(context.Context) error { return works(at) }) // the member gets the binding
	}
	if out, err := alice.kubectl(t, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username} {.status.userInfo.groups}"); err != nil || out != `local:alice ["system:authenticated"]` {
		t.Errorf("the member knows the user as %q (%v)", out, err)
	}
	if _, err := alice.kubectl(t, "--as=root", "get", "pods"); err == nil || !strings.Contains(err.Error(), "leave out --as") {
		t.Errorf("a user is impersonated without the hub: %v", err)
	}
	stolen := bob.home + "/stolen"
	keepToken(t, bob, cluster.String(), stolen)
	if out, err := bob.drover(t, "logout"); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	s.refused(t, bob, stolen)

	kill(t, s.hub.Manager)
	if err := s.hub.Kill(); err != nil {
		t.Fatal(err)
	}
	checkGoesOn(t, s, alice, pod)
	s.refused(t, bob, stolen)
	t.Run("after the member's API server was restarted", func(t *testing.T) {
		if err := s.member.Restart(within(t, 2*time.Minute), lab.APIServer); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, time.Minute, func(context.Context) error { return works(alice) })
		checkGoesOn(t, s, alice, pod)
		s.refused(t, bob, stolen)
	})
	t.Run("after the agent was restarted", func(t *testing.T) {
		kill(t, agent.Process)
		s.startAgent(t, agent, protocol.EnvDirectListen+"="+address)
		testkit.Eventually(t, time.Minute, func(context.Context) error { return works(alice) })
		checkGoesOn(t, s, alice, pod)
		s.refused(t, bob, stolen)
	})
}

// bindAdmins lets users of the hub do everything in a member.
func (s *system) bindAdmins(t *testing.T, cluster string, users ...string) {
	t.Helper()
	create(t, s.hub.Plane, &v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: "direct-admin"}, Spec: v1.RoleTemplateSpec{Context: v1.ContextCluster, External: "cluster-admin"}})
	for _, user := range users {
		create(t, s.hub.Plane, &v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: user}, Spec: v1.ClusterRoleTemplateBindingSpec{
			ClusterTarget: v1.ClusterTarget{ClusterName: cluster}, RoleTemplateName: "direct-admin", Subject: v1.Subject{Kind: "User", Name: "local:" + user}}})
	}
}

// checkGoesOn reads, executes and forwards a port with the current context of a computer.
func checkGoesOn(t *testing.T, s *system, at *computer, pod *kubelet) {
	t.Helper()
	if out, err := at.kubectl(t, "get", "pods", "-o", "name"); err != nil || out != "pod/"+pod.pod+"\n" {
		t.Errorf("get prints %q (%v)", out, err)
	}
	if out, err := at.kubectl(t, "exec", pod.pod, "--", "echo", "here"); err != nil || out != "here\n" {
		t.Errorf("exec prints %q (%v)", out, err)
	}
	testPortForward(t, &streams{kubelet: pod, kubectl: s.programs.Kubectl, kubeconfig: at.home + "/.kube/config", env: at.env})
}

// keepToken writes a kubeconfig that contains the token itself, as a thief would store it.
func keepToken(t *testing.T, at *computer, cluster, file string) {
	t.Helper()
	out, err := at.drover(t, "get-token", "--cluster", cluster, "--direct")
	token := textBetween(out, `"token":"`, `"`)
	raw, failed := os.ReadFile(at.home + "/.kube/config")
	text := string(raw)
	i := strings.Index(text, "users:\n")
	if err = errors.Join(err, failed); err != nil || token == "" || i < 0 {
		t.Fatalf("no token: %v", err)
	}
	name := textBetween(text, "current-context: ", "\n")
	if err := os.WriteFile(file, []byte(text[:i]+"users:\n- name: "+name+"\n  user: {token: "+token+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := at.kubectl(t, "--kubeconfig", file, "get", "pods"); err != nil {
		t.Fatalf("the token is not valid before: %v", err)
	}
}

func textBetween(text, from, to string) string {
	_, rest, _ := strings.Cut(text, from)
	found, _, _ := strings.Cut(rest, to)
	return found
}

// refused waits until a member rejects the token in a kubeconfig.
func (s *system) refused(t *testing.T, at *computer, file string) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func(context.Context) error {
		out, err := at.kubectl(t, "--kubeconfig", file, "get", "pods")
		if err == nil {
			return fmt.Errorf("a revoked session is served: %s", out)
		}
		if !strings.Contains(err.Error(), "session was ended") {
			return fmt.Errorf("a revoked session is not refused as such: %w", err)
		}
		return nil
	})
}
