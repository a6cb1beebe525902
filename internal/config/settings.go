// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import "github.com/drover-dev/drover/internal/protocol"

// AgentSettings returns the settings of all agents as they are when they are asked for: the hub's addresses, the CA
// bundle, and the registry of images. Agents with the trust System receive the CA too and ignore it, so that they have
// it if their trust changes.
func (c *Config) AgentSettings(bundle func() []byte) func() protocol.Settings {
	return func() protocol.Settings {
		return protocol.Settings{Servers: c.Server.URLs, CABundle: string(bundle()), Registry: c.Agent.Registry}
	}
}
