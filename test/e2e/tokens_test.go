// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
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

// registrationOf returns the Secret with which a Cluster's agent joins.
func (s *system) registrationOf(t *testing.T, cluster types.NamespacedName) *corev1.Secret {
	t.Helper()
	name := registration.RegistrationSecret(cluster)
	return secret(t, s.hub.Plane, name.Namespace, name.Name)
}

// renewed deletes a Cluster's registration Secret and returns the manifest with the new token.
func (s *system) renewed(t *testing.T, cluster types.NamespacedName) []byte {
	t.Helper()
	old := s.registrationOf(t, cluster)
	if err := s.hub.Client.Delete(t.Context(), old.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	var manifest []byte
	testkit.Eventually(t, 10*time.Second, func(ctx context.Context) error {
		now := &corev1.Secret{}
		if err := s.hub.Client.Get(ctx, client.ObjectKeyFromObject(old), now); err != nil {
			return err
		}
		if bytes.Equal(now.Data[registration.KeyToken], old.Data[registration.KeyToken]) {
			return errors.New("it is the old token")
		}
		manifest = now.Data[registration.KeyManifest]
		return nil
	})
	return manifest
}

// rejoin applies a manifest in a member whose agent is running.
func (s *system) rejoin(t *testing.T, manifest []byte, namespace string) {
	t.Helper()
	if err := framework.ApplyManifest(within(t, 30*time.Second), s.member, manifest, namespace); err != nil {
		t.Fatal(err)
	}
}

// testWrongToken checks that an agent with an unknown token waits for another token.
func testWrongToken(t *testing.T, s *system) {
	cluster, manifest := s.created(t, "wrong")
	namespace := agentNamespace(cluster.Name)
	agent, err := framework.InstallAgent(within(t, time.Minute), s.member, manifest, cluster.Name, namespace)
	if err != nil {
		t.Fatal(err)
	}
	for what, wrong := range map[string]string{"another random token": registration.NewToken(), "a text of the same length that was never a token": strings.Repeat("x", 43)} {
		t.Run(what+" does not let the agent join", func(t *testing.T) {
			s.setToken(t, namespace, wrong)
			s.startAgent(t, agent)
			defer kill(t, agent.Process)
			if log := awaitLog(t, agent, 20*time.Second, "no cluster has this join token"); strings.Contains(log, wrong) {
				t.Error("the log shows the token")
			}
		})
		if err := os.Remove(agent.Log); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("nothing of it shows on the Cluster, since any client could fill its status otherwise", func(t *testing.T) {
		s.await(t, cluster, 10*time.Second, framework.NotReady(v1.ReasonAwaitingAgent))
		if shown := conditionsOf(s.cluster(t, cluster)); strings.Contains(shown, "efused") {
			t.Errorf("the conditions are %v, want no refusal", shown)
		}
	})
	t.Run("a running agent takes the right token when it comes", func(t *testing.T) {
		s.setToken(t, namespace, registration.NewToken())
		s.startAgent(t, agent)
		awaitLog(t, agent, 20*time.Second, "no cluster has this join token")
		s.rejoin(t, manifest, namespace)
		s.await(t, cluster, 10*time.Second, framework.Ready)
	})
}

// setToken sets another token with which an agent joins.
func (s *system) setToken(t *testing.T, namespace, token string) {
	t.Helper()
	object := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: protocol.RegistrationSecret}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"stringData":{"`+protocol.KeyToken+`":"`+token+`"}}`))
	if err := s.member.Client.Patch(t.Context(), object, patch); err != nil {
		t.Fatal(err)
	}
}

func conditionsOf(c *v1.Cluster) string {
	var all strings.Builder
	for _, condition := range c.Status.Conditions {
		all.WriteString(condition.Reason + ": " + condition.Message + "\n")
	}
	return all.String()
}

func testExpiredToken(t *testing.T, s *system) {
	cluster, manifest := s.created(t, "expired")
	old := s.registrationOf(t, cluster)
	past := time.Now().Add(-25 * time.Hour).UTC().Format(time.RFC3339)
	patch := `{"metadata":{"annotations":{"` + v1.Group + `/token-created":"` + past + `"}}}`
	if err := s.hub.Client.Patch(t.Context(), old, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		t.Fatal(err)
	}
	s.await(t, cluster, 10*time.Second, func(c *v1.Cluster) bool {
		return framework.NotReady(v1.ReasonTokenExpired)(c) && meta.IsStatusConditionTrue(c.Status.Conditions, v1.ConditionStalled)
	})
	agent := s.agent(t, manifest, cluster.Name, s.member, agentNamespace(cluster.Name))
	awaitLog(t, agent, 20*time.Second, "delete its Secret expired-registration for a new one")
	if out, err := s.fetch(t, string(old.Data[registration.KeyManifestURL])); err == nil {
		t.Errorf("the manifest of an expired token is served: %s", out)
	}
	s.rejoin(t, s.renewed(t, cluster), agentNamespace(cluster.Name))
	s.await(t, cluster, 10*time.Second, func(c *v1.Cluster) bool {
		return framework.Ready(c) && meta.FindStatusCondition(c.Status.Conditions, v1.ConditionStalled) == nil
	})
}

// testUsedToken checks that an agent that lost its key does not get another key with the same token.
func testUsedToken(t *testing.T, s *system) {
	cluster, agent := s.ready(t, "used")
	kill(t, agent.Process)
	identity := secret(t, s.member, agentNamespace(cluster.Name), protocol.IdentitySecret)
	if err := s.member.Client.Delete(t.Context(), identity); err != nil {
		t.Fatal(err)
	}
	s.startAgent(t, agent)
	awaitLog(t, agent, 20*time.Second, "was used with another key of the same cluster")
	s.await(t, cluster, 10*time.Second, func(c *v1.Cluster) bool {
		return framework.NotReady(v1.ReasonTunnelLost)(c) && strings.Contains(conditionsOf(c), "used with another key")
	})
	if out, err := s.fetch(t, string(s.registrationOf(t, cluster).Data[registration.KeyManifestURL])); err == nil {
		t.Errorf("the manifest of a used token is served: %s", out)
	}
	s.rejoin(t, s.renewed(t, cluster), agentNamespace(cluster.Name))
	s.await(t, cluster, 10*time.Second, framework.Ready)
}

func testChosenToken(t *testing.T, s *system) {
	cluster := types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "chosen"}
	object := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name},
		Spec: v1.ClusterSpec{Registration: v1.Registration{TokenSecretRef: &v1.SecretKeyReference{Name: "mine", Key: "join"}}}}
	chosen := registration.NewToken()
	create(t, s.hub.Plane, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: "mine"}, StringData: map[string]string{"join": chosen}})
	create(t, s.hub.Plane, object)
	manifest, err := s.hub.Manifest(within(t, 10*time.Second), cluster, object.UID)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.registrationOf(t, cluster).Data[registration.KeyToken]; string(got) != chosen {
		t.Fatal("the Cluster has another token")
	}
	s.agent(t, manifest, cluster.Name, s.member, agentNamespace(cluster.Name))
	s.await(t, cluster, 20*time.Second, framework.Ready)
}

// testRebuiltMember checks that another cluster can take over the name with a new token. This cluster is the hub's own
// control plane.
func testRebuiltMember(t *testing.T, s *system) {
	cluster, old := s.ready(t, "rebuilt")
	manifest := s.renewed(t, cluster)
	if c := s.cluster(t, cluster); !framework.Ready(c) {
		t.Errorf("a new token harms the agent that has joined: %+v", c.Status.Conditions)
	}
	before := s.cluster(t, cluster).Status.ClusterUID
	s.agent(t, manifest, "rebuilt-new", s.hub.Plane, agentNamespace(cluster.Name))
	s.await(t, cluster, 20*time.Second, func(c *v1.Cluster) bool { return framework.Ready(c) && c.Status.ClusterUID != before })
	awaitLog(t, old, 10*time.Second, "apply the manifest")
	s.await(t, cluster, 10*time.Second, func(c *v1.Cluster) bool { return c.Status.Agent != nil && c.Status.Agent.Replicas == 1 })
}

func testRevokedAgent(t *testing.T, s *system) {
	cluster, agent := s.ready(t, "revoked")
	name := registration.AgentSecret(cluster)
	if err := s.hub.Client.Delete(t.Context(), secret(t, s.hub.Plane, name.Namespace, name.Name)); err != nil {
		t.Fatal(err)
	}
	took := s.awaitWithin(t, cluster, 5*time.Second, framework.NotReady(v1.ReasonAwaitingAgent))
	t.Logf("cut after %s", took)
	log := awaitLog(t, agent, 20*time.Second, "apply the manifest")
	if !strings.Contains(log, "tunnel ended") {
		t.Error("the agent was not cut")
	}
	manifest, err := s.hub.Manifest(within(t, 10*time.Second), cluster, s.cluster(t, cluster).UID)
	if err != nil {
		t.Fatal(err)
	}
	s.rejoin(t, manifest, agentNamespace(cluster.Name))
	s.await(t, cluster, 10*time.Second, framework.Ready)
}
