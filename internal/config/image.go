// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// EnvPod is the environment variable that contains the name of the manager's Pod. It is not set if the manager runs
// outside a cluster.
const EnvPod = "DROVER_POD"

const (
	// managerContainer is the name of the manager's container in its Pod.
	managerContainer = "manager"
	defaultImage     = "drover:latest"
)

// +kubebuilder:rbac:groups="",namespace=drover-system,resources=pods,verbs=get

// SetAgentImage sets the agents' image if the configuration file does not specify one. Since a single image contains
// both binaries, the default is the image of the manager's own container.
func (c *Config) SetAgentImage(ctx context.Context, hub client.Reader, pod string) error {
	if c.Agent.Image != "" {
		return nil
	}
	if pod == "" {
		c.Agent.Image = defaultImage
		return nil
	}
	own := &corev1.Pod{}
	if err := hub.Get(ctx, types.NamespacedName{Namespace: c.Namespace, Name: pod}, own); err != nil {
		return fmt.Errorf("read pod %s in namespace %s, because agents run the manager's own image: %w: allow it, or set agent.image in the configuration", pod, c.Namespace, err)
	}
	for _, container := range own.Spec.Containers {
		if container.Name == managerContainer {
			c.Agent.Image = container.Image
			return nil
		}
	}
	return fmt.Errorf("pod %s has no container %s with the image for agents: set agent.image in the configuration", pod,
		managerContainer)
}
