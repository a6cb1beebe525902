// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"cmp"
	"slices"
	"strings"

	v1 "github.com/drover-dev/drover/api/v1"
)

// WithDefaults returns a Cluster's spec.agent with the hub's defaults for unset fields. If the Cluster sets a variable,
// it replaces both the uppercase and the lowercase form of the hub's variable, because HTTPS_PROXY and https_proxy have
// the same meaning.
func WithDefaults(agent, hub v1.Agent) v1.Agent {
	agent.Image = cmp.Or(agent.Image, hub.Image)
	agent.PriorityClassName = cmp.Or(agent.PriorityClassName, hub.PriorityClassName)
	if len(agent.NodeSelector) == 0 {
		agent.NodeSelector = hub.NodeSelector
	}
	if len(agent.Tolerations) == 0 {
		agent.Tolerations = hub.Tolerations
	}
	if len(agent.ImagePullSecrets) == 0 {
		agent.ImagePullSecrets = hub.ImagePullSecrets
	}
	env := slices.DeleteFunc(slices.Clone(hub.Env), func(e v1.AgentEnv) bool {
		return slices.ContainsFunc(agent.Env, func(own v1.AgentEnv) bool { return strings.EqualFold(own.Name, e.Name) })
	})
	agent.Env = append(env, agent.Env...)
	return agent
}
