// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
)

// A user who can edit a Cluster, or the Secret that its spec names, must not be able to choose the token with which
// another agent replaces an agent that has joined.
func TestTokenChosenAfterAnAgentJoinedIsIgnored(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	first, chosen := strings.Repeat("first-", 6), strings.Repeat("chosen-", 6)
	cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", UID: "cluster"}}
	cluster.Spec.Registration = v1.Registration{TokenTTL: metav1.Duration{Duration: time.Hour}, TokenSecretRef: &v1.SecretKeyReference{Name: "mine", Key: "token"}}
	made := registration.ApplySecret(cluster, registration.Token{Value: first, Created: now}, registration.Content{})
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Annotations: made.Annotations, Labels: made.Labels, OwnerReferences: []metav1.OwnerReference{{UID: cluster.UID}}}, Type: *made.Type, Data: made.Data}
	former := secret.DeepCopy()
	former.OwnerReferences[0].UID = "former"
	joining, given := secret.DeepCopy(), secret.DeepCopy()
	joining.Annotations = map[string]string{v1.Group + "/token-used": "joining " + now.Add(-time.Second).Format(time.RFC3339)}
	given.Annotations = map[string]string{v1.Group + "/token-used": "joining " + now.Add(-time.Hour).Format(time.RFC3339)}
	for _, claimed := range []*corev1.Secret{joining, given} {
		maps.Copy(claimed.Annotations, made.Annotations)
	}
	joined := &registration.AgentIdentity{TokenHash: registration.HashToken(first), ClusterUID: "uid"}
	for name, tt := range map[string]struct {
		identity *registration.AgentIdentity
		secret   *corev1.Secret
		want     string
		used     bool
	}{
		"no agent has joined":                                      {nil, secret, chosen, false},
		"an agent joins, and has no identity yet":                  {nil, joining, first, false},
		"an agent began to join, and never did":                    {nil, given, chosen, false},
		"an agent has joined":                                      {joined, secret, first, true},
		"it has, and the registration was deleted":                 {joined, nil, chosen, false},
		"it has, and the registration is that of a former Cluster": {joined, former, chosen, false},
		"it has, and the registration holds nothing":               {joined, &corev1.Secret{}, chosen, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := &input{cluster: cluster, now: now, secret: tt.secret, identity: tt.identity}
			in.chosen.value = chosen
			in.token, _ = decideToken(in)
			if in.token.Value != tt.want || in.token.Used != tt.used {
				t.Errorf("the token in force is %s, used %t", in.token.Value, in.token.Used)
			}
			if tt.identity == nil {
				return
			}
			if says := strings.Contains(decideRegistered(in).message, "The token in Secret mine is another one: for it to count, delete Secret -registration"); says != tt.used {
				t.Errorf("the message is %v, want the Secret to delete if and only if the token was used", decideRegistered(in).message)
			}
		})
	}
}

func TestHubsDefaultsForAgents(t *testing.T) {
	t.Parallel()
	r := &Reconciler{Agent: v1.Agent{Image: "drover:v1", ImagePullSecrets: []v1.PullSecret{{Name: "mirror"}}}}
	settings := protocol.Settings{Servers: []string{"https://hub.example.com"}, Registry: "registry.example.com/mirror"}
	for name, tc := range map[string]struct {
		agent        v1.Agent
		image, pulls string
	}{
		"a Cluster that sets nothing":              {v1.Agent{}, "registry.example.com/mirror/drover:v1", "mirror"},
		"an image of its own":                      {v1.Agent{Image: "team/drover:v2"}, "registry.example.com/mirror/team/drover:v2", "mirror"},
		"an image with a registry, and its Secret": {v1.Agent{Image: "own.example/drover", ImagePullSecrets: []v1.PullSecret{{Name: "own"}}}, "own.example/drover", "own"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := r.manifestInput(&input{cluster: &v1.Cluster{Spec: v1.ClusterSpec{Agent: tc.agent}}, settings: settings})
			if got.Image != tc.image || len(got.Agent.ImagePullSecrets) != 1 || got.Agent.ImagePullSecrets[0].Name != tc.pulls {
				t.Errorf("got %s with %v, want %s with %s", got.Image, got.Agent.ImagePullSecrets, tc.image, tc.pulls)
			}
		})
	}
}
