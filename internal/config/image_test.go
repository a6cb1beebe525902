// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/drover-dev/drover/internal/config"
)

func TestAgentsRunTheImageOfTheManager(t *testing.T) {
	pod := func(container string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "drover-system", Name: "drover-manager-0"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{
				{Name: "proxy", Image: "registry.test/proxy:v1"}, {Name: container, Image: "registry.test/drover@sha256:0123"},
			}}}
	}
	for name, tt := range map[string]struct {
		configured, variable string
		pod                  *corev1.Pod
		want, problem        string
	}{
		"the image of the manager's container": {
			variable: "drover-manager-0", pod: pod("manager"), want: "registry.test/drover@sha256:0123",
		},
		"an image in the configuration wins": {
			configured: "mirror.test/drover:v1", variable: "drover-manager-0", pod: pod("manager"),
			want: "mirror.test/drover:v1",
		},
		"the default name outside of a cluster": {pod: pod("manager"), want: "drover:latest"},
		"a pod that cannot be read is an error": {
			variable: "another", pod: pod("manager"), problem: "set agent.image",
		},
		"a pod without that container is an error, too": {
			variable: "drover-manager-0", pod: pod("other"), problem: "set agent.image",
		},
		"an image in the configuration needs no such pod": {
			configured: "mirror.test/drover:v1", variable: "another", pod: pod("manager"), want: "mirror.test/drover:v1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config.Config{Program: config.Program{Namespace: "drover-system"}, Agent: config.Agent{Image: tt.configured}}
			err := cfg.SetAgentImage(t.Context(), fake.NewClientBuilder().WithObjects(tt.pod).Build(), tt.variable)
			if (err != nil) != (tt.problem != "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
				t.Fatalf("the error is %v, want one with %q", err, tt.problem)
			}
			if cfg.Agent.Image != tt.want {
				t.Errorf("the image of agents is %q, want %q", cfg.Agent.Image, tt.want)
			}
		})
	}
}
