// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e runs Drover whole: real API servers, real processes killed for real.
package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/hack/lab"
	"github.com/drover-dev/drover/hack/stage"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/testkit"
)

// demoToken is the token of user "demo" on the hub; "stranger" may log in and nothing else.
const (
	demoToken     = "demo-0123456789abcdef"
	strangerToken = "stranger-0123456789abcdef"
)

// system is a hub and a member for one test and its subtests.
type system struct {
	t        *testing.T // the test that owns the processes; subtests come and go
	programs stage.Programs
	dir      string
	hub      *stage.Hub
	member   *stage.Plane
}

// start brings up hub and member, with nothing imported yet.
func start(t *testing.T) *system {
	t.Helper()
	s := &system{t: t, dir: t.TempDir()}
	var err error
	if s.programs, err = stage.Build(t.Context(), testkit.Path(t, ""), s.dir); err != nil {
		t.Fatal(err)
	}
	plane := s.plane(t, "hub", lab.User{Name: "demo", Token: demoToken}, lab.User{Name: "stranger", Token: strangerToken})
	s.member = s.plane(t, "member")
	if s.hub, err = stage.InstallHub(within(t, time.Minute), plane); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.hub.Manager.Kill() })
	s.grant(t)
	return s
}

func (s *system) plane(t *testing.T, name string, users ...lab.User) *stage.Plane {
	t.Helper()
	plane, err := stage.StartPlane(within(t, 2*time.Minute), s.programs, name, s.dir, users...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Stop() })
	return plane
}

// grant lets demo reach every Cluster of namespace default, and do everything in the member.
func (s *system) grant(t *testing.T) {
	t.Helper()
	object := metav1.ObjectMeta{Namespace: "default", Name: "demo"}
	all := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "demo"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "hub:demo"}}}
	if err := s.member.Client.Create(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.Role{ObjectMeta: object, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{v1.Group}, Resources: []string{"clusters", "clusters/proxy"}, Verbs: []string{"get"}}}}
	binding := &rbacv1.RoleBinding{ObjectMeta: object,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "demo"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "demo"}}}
	if err := s.hub.Client.Create(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	if err := s.hub.Client.Create(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
}

// imported creates a Cluster, installs its agent in a plane and starts it. Agents of several Clusters in one plane have namespaces of their own.
func (s *system) imported(t *testing.T, name string, plane *stage.Plane, namespace string) (types.NamespacedName, *stage.Agent) {
	t.Helper()
	cluster := types.NamespacedName{Namespace: "default", Name: name}
	manifest, err := s.hub.CreateCluster(within(t, 20*time.Second), cluster)
	if err != nil {
		t.Fatal(err)
	}
	return cluster, s.agent(t, manifest, name, plane, namespace)
}

func (s *system) agent(t *testing.T, manifest []byte, name string, plane *stage.Plane, namespace string) *stage.Agent {
	t.Helper()
	agent, err := stage.InstallAgent(within(t, time.Minute), plane, manifest, name, namespace)
	if err != nil {
		t.Fatal(err)
	}
	s.startAgent(t, agent)
	return agent
}

func (s *system) startAgent(t *testing.T, agent *stage.Agent, env ...string) {
	t.Helper()
	if err := agent.Start(env...); err != nil {
		t.Fatal(err)
	}
	process := agent.Process
	s.t.Cleanup(func() { _ = process.Kill() })
}

// await waits for a Cluster to be as wanted and returns how long that took.
func (s *system) await(t *testing.T, cluster types.NamespacedName, limit time.Duration, wanted func(*v1.Cluster) bool) time.Duration {
	t.Helper()
	began := time.Now()
	if _, err := s.hub.AwaitCluster(within(t, limit), cluster, wanted); err != nil {
		t.Fatalf("%v\nmanager log:\n%s", err, tail(s.hub.Manager.LogFile()))
	}
	return time.Since(began)
}

// kubectl runs kubectl in a member through the hub as the bearer of a token.
func (s *system) kubectl(t *testing.T, cluster types.NamespacedName, token string, args ...string) (string, error) {
	t.Helper()
	kubeconfig, err := s.hub.ProxyKubeconfig(t.Context(), cluster, token, filepath.Join(t.TempDir(), "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	return stage.Kubectl(within(t, 30*time.Second), s.programs, kubeconfig, nil, args...)
}

func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

func tail(file string) string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	const most = 4000
	return string(raw[max(0, len(raw)-most):])
}

func TestAMemberIsImportedAndReached(t *testing.T) {
	s := start(t)
	cluster, agent := s.imported(t, "member", s.member, protocol.AgentNamespace)
	took := s.await(t, cluster, 30*time.Second, stage.Ready)
	t.Logf("agent start to Ready: %s", took)

	t.Run("kubectl get clusters says True Connected and the version", func(t *testing.T) {
		out, err := s.hub.Kubectl(t.Context(), nil, "get", "clusters", "member")
		if err != nil || !strings.Contains(out, "True    Connected   v1.36") {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("kubectl works in the member through the hub", func(t *testing.T) {
		for _, args := range [][]string{
			{"get", "namespaces"}, {"create", "configmap", "a", "--from-literal=k=v"}, {"patch", "configmap", "a", "-p", `{"data":{"k":"w"}}`},
			{"get", "configmap", "a", "-o", "jsonpath={.data.k}"}, {"delete", "configmap", "a"},
		} {
			if out, err := s.kubectl(t, cluster, demoToken, args...); err != nil {
				t.Errorf("%v: %v\n%s", args, err, out)
			}
		}
	})
	t.Run("who may not is refused, as kubectl says it", func(t *testing.T) { testRefusals(t, s, cluster) })
	t.Run("an agent that is killed shows in two seconds and heals", func(t *testing.T) {
		if err := agent.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		s.await(t, cluster, 2*time.Second, stage.NotReady(v1.ReasonTunnelLost))
		if _, err := s.kubectl(t, cluster, demoToken, "get", "namespaces"); err == nil || !strings.Contains(err.Error(), "not connected") {
			t.Errorf("kubectl says %v", err)
		}
		s.startAgent(t, agent)
		s.await(t, cluster, 10*time.Second, stage.Ready)
	})
	t.Run("an agent that hangs shows in thirty seconds and heals", func(t *testing.T) {
		if err := agent.Process.Pause(); err != nil {
			t.Fatal(err)
		}
		took := s.await(t, cluster, 30*time.Second, stage.NotReady(v1.ReasonTunnelLost))
		t.Logf("noticed after %s", took)
		if err := agent.Process.Resume(); err != nil {
			t.Fatal(err)
		}
		s.await(t, cluster, 40*time.Second, stage.Ready)
	})
	t.Run("a manager that is killed and started again changes no status and the agent comes back", func(t *testing.T) { testManagerRestart(t, s, cluster) })
	t.Run("an agent that stops while the manager is away shows within thirty seconds of its return", func(t *testing.T) {
		if err := s.hub.Manager.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := agent.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		s.restartManager(t)
		s.await(t, cluster, 60*time.Second, stage.NotReady(v1.ReasonTunnelLost))
		s.startAgent(t, agent)
		s.await(t, cluster, 30*time.Second, stage.Ready)
	})
	t.Run("a second cluster with the used token is refused and that shows", func(t *testing.T) { testSecondCluster(t, s, cluster) })
	t.Run("the level of a running agent's log changes", func(t *testing.T) { testLogLevel(t, s, agent) })
	t.Run("no secret is in a log, a status or an event", func(t *testing.T) { testNothingLeaks(t, s, agent) })
	t.Run("a Cluster deleted while connected leaves nothing in the member", func(t *testing.T) { testRemoval(t, s, cluster, agent) })
}
