// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import "github.com/drover-dev/drover/internal/protocol"

// AgentSettings returns a function that returns the current settings of all agents: the hub's addresses, the CA bundle,
// and the image registry. Agents whose trust is System also receive the CA. Such agents ignore the CA, but need it in
// case their trust changes.
func (c *Config) AgentSettings(bundle func() []byte) func() protocol.Settings {
	return func() protocol.Settings {
		return protocol.Settings{Servers: c.Server.URLs, CABundle: string(bundle()), Registry: c.Agent.Registry}
	}
}
