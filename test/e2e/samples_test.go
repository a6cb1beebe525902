// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

func testSamples(t *testing.T, s *system) {
	apply := func(how ...string) string {
		t.Helper()
		out, err := s.hub.Kubectl(within(t, 20*time.Second), nil, append([]string{"apply", "-n", "default", "-k", "config/samples"}, how...)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	apply()
	cluster := types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "prod-eu"}
	manifest, err := s.hub.Manifest(within(t, 10*time.Second), cluster, s.cluster(t, cluster).UID)
	if err != nil {
		t.Fatal(err)
	}
	s.agent(t, manifest, cluster.Name, s.member, agentNamespace(cluster.Name))
	s.await(t, cluster, 20*time.Second, framework.Ready)
	t.Run("applying again changes nothing", func(t *testing.T) {
		if out := apply(); !strings.Contains(out, "unchanged") || strings.Contains(out, "configured") {
			t.Errorf("applied again: %v, want unchanged", out)
		}
	})
	t.Run("there is no difference to what was applied after Drover has worked on it", func(t *testing.T) {
		diff := func(how ...string) {
			t.Helper()
			// kubectl reads each object twice, and a status may be written in between.
			testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error {
				out, err := s.hub.Kubectl(ctx, nil, append([]string{"diff", "-n", "default", "-k", "config/samples"}, how...)...)
				if err != nil {
					return fmt.Errorf("%v: %w\n%s", how, err, out)
				}
				return nil
			})
		}
		diff()
		apply("--server-side")
		diff("--server-side")
	})
	t.Run("the agent's manifest is applied again without a change", func(t *testing.T) {
		before := s.registrationOf(t, cluster).Data["manifest.yaml"]
		s.rejoin(t, before, agentNamespace(cluster.Name))
		if c := s.cluster(t, cluster); !framework.Ready(c) {
			t.Errorf("the conditions are %+v, want Ready", c.Status.Conditions)
		}
	})
}

// testChosenTokenPolicy checks that naming a Secret requires the right to read it.
func testChosenTokenPolicy(t *testing.T, s *system) {
	s.allow(t, "carol", rbacv1.PolicyRule{APIGroups: []string{v1.Group}, Resources: []string{"clusters"}, Verbs: []string{"*"}})
	const manifest = `{"apiVersion": "cluster.drover.dev/v1", "kind": "Cluster", "metadata": {"name": "policy", "namespace": "default"},
		"spec": {"registration": {"tokenSecretRef": {"name": "carols"}}}}`
	apply := func(ctx context.Context, user string) error {
		_, err := s.hub.Kubectl(ctx, []byte(manifest), "apply", "--as="+user, "-f", "-")
		return err
	}
	t.Run("a user who may not get the Secret may not name it", func(t *testing.T) {
		err := apply(t.Context(), "carol")
		if err == nil || !strings.Contains(err.Error(), "user carol cannot get Secret carols in namespace default") {
			t.Errorf("kubectl says %v", err)
		}
	})
	t.Run("a user who may get it may name it", func(t *testing.T) {
		s.allow(t, "dave",
			rbacv1.PolicyRule{APIGroups: []string{v1.Group}, Resources: []string{"clusters"}, Verbs: []string{"*"}},
			rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"carols"}, Verbs: []string{"get"}})
		// The API server may need a moment to notice a new right.
		testkit.Eventually(t, 10*time.Second, func(ctx context.Context) error { return apply(ctx, "dave") })
	})
	t.Run("a user who may not get it may annotate the Cluster, and not name another", func(t *testing.T) {
		if _, err := s.hub.Kubectl(t.Context(), nil, "annotate", "cluster", "policy", "example.com/note=test", "--as=carol"); err != nil {
			t.Error(err)
		}
		_, err := s.hub.Kubectl(t.Context(), nil, "patch", "cluster", "policy", "--as=carol", "--type=merge", "-p",
			`{"spec":{"registration":{"tokenSecretRef":{"name":"other"}}}}`)
		if err == nil || !strings.Contains(err.Error(), "cannot get Secret other") {
			t.Errorf("kubectl says %v", err)
		}
	})
	t.Run("a missing Secret is shown as a fault that a user must mend", func(t *testing.T) {
		name := types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "policy"}
		s.await(t, name, 10*time.Second, framework.NotReady(v1.ReasonTokenInvalid))
		if !strings.Contains(conditionsOf(s.cluster(t, name)), "Secret carols does not exist") {
			t.Error(errors.New(conditionsOf(s.cluster(t, name))))
		}
	})
}

// testAgentPolicy checks that the right to edit the Cluster is not enough to choose the agent's image, because the
// agent can act as any user of the member.
func testAgentPolicy(t *testing.T, s *system) {
	clusters := rbacv1.PolicyRule{APIGroups: []string{v1.Group}, Resources: []string{"clusters"}, Verbs: []string{"*"}}
	s.allow(t, "erin", clusters)
	s.allow(t, "frank", clusters, rbacv1.PolicyRule{APIGroups: []string{v1.Group}, Resources: []string{"clusters/agent"}, Verbs: []string{"update"}})
	patch := func(ctx context.Context, user, agent string) error {
		_, err := s.hub.Kubectl(ctx, nil, "patch", "cluster", "imaged", "--as="+user, "--type=merge", "-p", `{"spec":{"agent":`+agent+`}}`)
		return err
	}
	const manifest = `{"apiVersion": "cluster.drover.dev/v1", "kind": "Cluster", "metadata": {"name": "imaged", "namespace": "default"}, "spec": {"agent": {"image": "drover:one"}}}`
	apply := func(ctx context.Context, user string) error {
		_, err := s.hub.Kubectl(ctx, []byte(manifest), "apply", "--as="+user, "-f", "-")
		return err
	}
	const refusal = "user erin cannot update clusters/agent imaged in namespace default"
	t.Run("a user who may only create Clusters names no image", func(t *testing.T) {
		testkit.Eventually(t, time.Minute, func(ctx context.Context) error { // a right may take the API server a moment to notice
			if err := apply(ctx, "erin"); err == nil || !strings.Contains(err.Error(), refusal) {
				return fmt.Errorf("kubectl says %w", err)
			}
			return nil
		})
	})
	t.Run("a user who may update clusters/agent names one", func(t *testing.T) {
		testkit.Eventually(t, time.Minute, func(ctx context.Context) error { return apply(ctx, "frank") })
		if err := patch(t.Context(), "frank", `{"image":"drover:two"}`); err != nil {
			t.Error(err)
		}
	})
	t.Run("a user who may edit the Cluster changes replicas", func(t *testing.T) {
		if err := patch(t.Context(), "erin", `{"replicas":2,"image":"drover:two"}`); err != nil {
			t.Error(err)
		}
	})
	t.Run("a user who may only edit the Cluster neither changes nor removes what decides who the agent is", func(t *testing.T) {
		for _, agent := range []string{`{"image":"drover:three"}`, `{"image":null}`, `{"profile":"ReadOnly"}`, `{"trust":"System"}`, `{"env":[{"name":"HTTPS_PROXY","value":"http://x"}]}`} {
			if err := patch(t.Context(), "erin", agent); err == nil || !strings.Contains(err.Error(), refusal) {
				t.Errorf("%s: kubectl says %v", agent, err)
			}
		}
	})
	t.Run("no user can give an agent a variable that is not on the list", func(t *testing.T) {
		err := patch(t.Context(), "frank", `{"env":[{"name":"SSL_CERT_FILE","value":"/proc/self/environ"}]}`)
		if err == nil || !strings.Contains(err.Error(), "an agent accepts only the variables") {
			t.Errorf("kubectl says %v", err)
		}
	})
}
