// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration_test

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/registration"
)

func TestWithDefaults(t *testing.T) {
	t.Parallel()
	replicas := int32(3)
	hub := v1.Agent{
		Image: "hub", ImagePullSecrets: []v1.PullSecret{{Name: "hub"}}, NodeSelector: map[string]string{"hub": ""},
		PriorityClassName: "hub",
		Tolerations:       []corev1.Toleration{{Key: "hub"}}, Env: []v1.AgentEnv{{Name: "HTTPS_PROXY", Value: "hub"},
			{Name: "NO_PROXY", Value: "hub"}},
	}
	own := v1.Agent{
		Image: "own", ImagePullSecrets: []v1.PullSecret{{Name: "own"}}, NodeSelector: map[string]string{"own": ""},
		PriorityClassName: "own",
		Tolerations:       []corev1.Toleration{{Key: "own"}}, Env: []v1.AgentEnv{{Name: "https_proxy"},
			{Name: "no_proxy", SecretKey: "own"}},
	}
	partly := hub
	partly.Replicas, partly.Trust, partly.Env = &replicas, v1.TrustSystem, []v1.AgentEnv{{Name: "NO_PROXY", Value: "hub"},
		{Name: "https_proxy", Value: "own"}}
	for name, tc := range map[string]struct{ agent, hub, want v1.Agent }{
		"a Cluster that sets nothing":                {v1.Agent{}, hub, hub},
		"a hub that sets nothing":                    {own, v1.Agent{}, own},
		"fields that a Cluster sets take precedence": {own, hub, own},
		"fields without a default stay, and env is merged": {
			v1.Agent{Replicas: &replicas, Trust: v1.TrustSystem, Env: []v1.AgentEnv{{Name: "https_proxy", Value: "own"}}}, hub,
			partly,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := registration.WithDefaults(tc.agent, tc.hub); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got\n%+v, want\n%+v", got, tc.want)
			}
		})
	}
	if hub.Env[0].Name != "HTTPS_PROXY" || hub.Env[1].Name != "NO_PROXY" {
		t.Errorf("the hub's defaults changed to %+v, want them unchanged", hub.Env)
	}
}
