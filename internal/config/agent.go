// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"context"
	"fmt"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// Agent holds the defaults for agents. A field in a Cluster's spec.agent overrides the corresponding field here. Env is
// merged: a variable in the Cluster overrides only the variable with the same name.
type Agent struct {
	// Image is the agent's image. Default: the image of the manager's own container (see SetAgentImage), or
	// "drover:latest" if the manager runs outside a cluster.
	Image string `json:"image,omitempty"`
	// Rollout specifies how a new image or version is gradually rolled out to the agents.
	Rollout Rollout `json:"rollout,omitempty"`
	// Registry is prepended to the images of agents and Plans that do not specify a registry, for example
	// "registry.example.com/mirror". Default: none.
	Registry string `json:"registry,omitempty"`
	// ImagePullSecrets are the names of Secrets in the agent's namespace in each member.
	ImagePullSecrets []v1.PullSecret `json:"imagePullSecrets,omitempty"`
	// Env holds environment variables for agents. Only variables that a Cluster may set are allowed.
	Env []v1.AgentEnv `json:"env,omitempty"`
	// NodeSelector, Tolerations and PriorityClassName are set on the agents' pods.
	NodeSelector      map[string]string   `json:"nodeSelector,omitempty"`
	Tolerations       []corev1.Toleration `json:"tolerations,omitempty"`
	PriorityClassName string              `json:"priorityClassName,omitempty"`
}

// Defaults returns the defaults for spec.agent.
func (a Agent) Defaults() v1.Agent {
	return v1.Agent{Image: a.Image, ImagePullSecrets: a.ImagePullSecrets, Env: a.Env,
		NodeSelector: a.NodeSelector, Tolerations: a.Tolerations, PriorityClassName: a.PriorityClassName}
}

// aRegistry matches the host of a registry, with an optional path. The host must contain a dot or a port, because
// container runtimes would otherwise not recognize it as a host.
var aRegistry = regexp.MustCompile(`^(localhost|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+|[A-Za-z0-9.-]+:[0-9]+|\[[0-9A-Fa-f:]+\](:[0-9]+)?)(/[a-z0-9._/-]+)?$`)

// validate calls add for each error in the section. The arguments of add are a field, a format string and the format's
// arguments.
func (a Agent) validate(add func(field, format string, args ...any)) {
	if a.Registry != "" && !aRegistry.MatchString(a.Registry) {
		add("agent.registry", "%q is not of the form host[:port][/folder], with a dot or a port in the host", a.Registry)
	}
	for i, secret := range a.ImagePullSecrets {
		if secret.Name == "" {
			add(fmt.Sprintf("agent.imagePullSecrets[%d].name", i), "want the name of a Secret")
		}
	}
	for i, e := range a.Env {
		field := fmt.Sprintf("agent.env[%d]", i)
		if !protocol.AgentVariable(e.Name) {
			add(field+".name", "%q is not a variable that an agent takes: %s", e.Name, protocol.AgentVariables)
		}
		if e.Value != "" && e.SecretKey != "" {
			add(field, "set value or secretKey, not both")
		}
	}
}

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

// AgentSettings returns a function that returns the current settings of all agents: the hub's addresses, the CA bundle,
// and the image registry. Agents whose trust is System also receive the CA. Such agents ignore the CA, but need it in
// case their trust changes.
func (c *Config) AgentSettings(bundle func() []byte) func() protocol.Settings {
	return func() protocol.Settings {
		return protocol.Settings{Servers: c.Server.URLs, CABundle: string(bundle()), Registry: c.Agent.Registry}
	}
}
