// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

func testRefusals(t *testing.T, s *system, cluster types.NamespacedName) {
	unknown := types.NamespacedName{Namespace: "default", Name: "missing"}
	for name, tc := range map[string]struct {
		cluster types.NamespacedName
		token   string
		args    []string
		want    string
	}{
		"a wrong token":                          {cluster, "wrong-0123456789abcdef", []string{"get", "ns"}, "logged in"},
		"no right on the hub":                    {cluster, strangerToken, []string{"get", "ns"}, "orbidden"},
		"no right on the hub, and no such":       {unknown, strangerToken, []string{"get", "ns"}, "orbidden"},
		"a Cluster that does not exist":          {unknown, demoToken, []string{"get", "--raw", "/k8s/clusters/default/missing/api"}, "not found"},
		"impersonating a user of the member":     {cluster, demoToken, []string{"get", "ns", "--as=system:admin"}, "orbidden"},
		"impersonating masters (CVE-2021-36776)": {cluster, demoToken, []string{"get", "ns", "--as=bob", "--as-group=system:masters"}, "orbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := s.kubectl(t, tc.cluster, tc.token, tc.args...)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	t.Run("--as works for a user who may impersonate in the member, with the other user's rights", func(t *testing.T) {
		_, err := s.kubectl(t, cluster, demoToken, "get", "ns", "--as=bob")
		if err == nil || !strings.Contains(err.Error(), `User "bob" cannot list`) {
			t.Errorf("got %v, want that bob cannot list", err)
		}
	})
}

func (s *system) restartManager(t *testing.T) {
	t.Helper()
	if err := s.hub.StartManager(within(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
}

func testManagerRestart(t *testing.T, s *system, cluster types.NamespacedName) {
	if err := s.hub.Manager.Kill(); err != nil {
		t.Fatal(err)
	}
	before := &v1.Cluster{}
	if err := s.hub.Client.Get(t.Context(), cluster, before); err != nil {
		t.Fatal(err)
	}
	s.restartManager(t)
	began := time.Now()
	testkit.Eventually(t, 30*time.Second, func(context.Context) error {
		_, err := s.kubectl(t, cluster, demoToken, "get", "ns")
		return err
	})
	t.Logf("served again %s after the start", time.Since(began))
	after := &v1.Cluster{}
	if err := s.hub.Client.Get(t.Context(), cluster, after); err != nil {
		t.Fatal(err)
	}
	for _, c := range before.Status.Conditions {
		now := meta.FindStatusCondition(after.Status.Conditions, c.Type)
		if now == nil || !now.LastTransitionTime.Equal(&c.LastTransitionTime) {
			t.Errorf("condition %s changed over a restart: %+v -> %+v", c.Type, c, now)
		}
	}
}

// testManagerStops checks that the later of two status writes in quick succession takes effect, even if the cache has
// not seen the earlier.
func testManagerStops(t *testing.T, s *system, cluster types.NamespacedName) {
	for range 2 {
		if err := s.hub.Manager.Stop(within(t, 30*time.Second)); err != nil {
			t.Fatal(err)
		}
		s.restartManager(t)
		testkit.Eventually(t, 30*time.Second, func(context.Context) error {
			_, err := s.kubectl(t, cluster, demoToken, "get", "ns")
			return err
		})
		s.await(t, cluster, 15*time.Second, framework.Ready)
	}
}

// testSecondCluster uses the hub itself as the second cluster, because its kube-system namespace has a different UID.
func testSecondCluster(t *testing.T, s *system, cluster types.NamespacedName) {
	c := &v1.Cluster{}
	if err := s.hub.Client.Get(t.Context(), cluster, c); err != nil {
		t.Fatal(err)
	}
	manifest, err := s.hub.Manifest(within(t, 5*time.Second), cluster, c.UID)
	if err != nil {
		t.Fatal(err)
	}
	intruder := s.agent(t, manifest, "intruder", s.hub.Plane, protocol.AgentNamespace)
	s.await(t, cluster, 15*time.Second, func(c *v1.Cluster) bool {
		condition := meta.FindStatusCondition(c.Status.Conditions, v1.ConditionRegistered)
		return framework.Ready(c) && condition != nil && strings.Contains(condition.Message, "showed the join token")
	})
	out, err := s.hub.Kubectl(t.Context(), nil, "get", "events.events.k8s.io", "--field-selector", "reason="+v1.ReasonIdentityMismatch)
	if err != nil || !strings.Contains(out, "cluster/member") {
		t.Errorf("no event of the refusal: %v\n%s", err, out)
	}
	if err := intruder.Process.Kill(); err != nil {
		t.Error(err)
	}
}

func testLogLevel(t *testing.T, s *system, agent *framework.Agent) {
	command := exec.CommandContext(t.Context(), s.programs.Agent, "loglevel", "--set", "debug")
	command.Env = []string{protocol.EnvSocket + "=" + agent.Socket}
	if out, err := command.CombinedOutput(); err != nil || !strings.Contains(string(out), "debug") {
		t.Errorf("kubectl debug: %v: %s", err, out)
	}
}

// testNothingLeaks searches all written data for every token that was used: CVE-2023-22649, CVE-2024-58269,
// CVE-2019-11250, CVE-2020-8565.
func testNothingLeaks(t *testing.T, s *system) {
	secrets := []string{demoToken, strangerToken}
	var list corev1.SecretList
	if err := s.hub.Client.List(t.Context(), &list, client.HasLabels{v1.LabelSecretKind}); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		for key, value := range list.Items[i].Data {
			if key == registration.KeyToken || strings.HasSuffix(key, ".key") {
				secrets = append(secrets, strings.TrimSpace(string(value)))
			}
		}
	}
	logs, err := filepath.Glob(filepath.Join(s.dir, "*", "*.log")) // the manager's and the agents'
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]string{}
	for _, file := range logs {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		shown[file] = string(raw)
	}
	for _, kind := range []string{"clusters", "events", "configmaps"} {
		out, err := s.hub.Kubectl(t.Context(), nil, "get", kind, "-A", "-o", "yaml", "--show-managed-fields")
		if err != nil {
			t.Fatal(err)
		}
		shown[kind] = out
	}
	for where, text := range shown {
		for _, secret := range secrets {
			if strings.Contains(text, secret) {
				t.Errorf("%s shows a secret", where)
			}
		}
	}
	if len(secrets) < 4 || len(logs) < 2 {
		t.Error("the test has not looked at what it should")
	}
}

// expectLeading waits until a running agent leads. A killed agent holds the Lease until it expires.
func (s *system) expectLeading(t *testing.T) {
	t.Helper()
	began := time.Now()
	testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		lease := &coordinationv1.Lease{}
		key := types.NamespacedName{Namespace: protocol.AgentNamespace, Name: protocol.LeaderLease}
		if err := s.member.Client.Get(ctx, key, lease); err != nil {
			return err
		}
		if renewed := lease.Spec.RenewTime; renewed == nil || renewed.Time.Before(began) {
			return fmt.Errorf("no running agent leads: the Lease was last renewed at %s", renewed)
		}
		return nil
	})
}

func testRemoval(t *testing.T, s *system, cluster types.NamespacedName, agent *framework.Agent) {
	s.expectLeading(t)
	object := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}}
	if err := s.hub.Client.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	ctx := within(t, 30*time.Second)
	watch := testkit.StartStopwatch()
	if err := s.hub.AwaitGone(ctx, object); err != nil {
		t.Fatal(err)
	}
	if took := watch.Took(); took > 15*time.Second { // it does not wait for an agent that has gone
		t.Errorf("the Cluster is gone after %s", took)
	}
	out, err := s.hub.Kubectl(t.Context(), nil, "get", "events.events.k8s.io", "-o", "wide", "--field-selector", "reason="+v1.ReasonLeftBehind)
	if err != nil || strings.Contains(out, "cluster/"+cluster.Name+" ") {
		t.Errorf("%v: something was left behind:\n%s", err, out)
	}
	for _, left := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: protocol.AgentNamespace}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: protocol.AgentName}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: protocol.AgentName}},
	} {
		if err := s.member.AwaitGone(ctx, left); err != nil {
			t.Error(err)
		}
	}
	for _, left := range []types.NamespacedName{registration.RegistrationSecret(cluster), registration.AgentSecret(cluster)} {
		if err := s.hub.AwaitGone(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: left.Namespace, Name: left.Name}}); err != nil {
			t.Error(err)
		}
	}
	select {
	case <-agent.Process.Exited():
		if err := agent.Process.Err(); err != nil {
			t.Errorf("the agent ended with %v", err)
		}
	case <-ctx.Done():
		t.Error("the agent still runs")
	}
}
