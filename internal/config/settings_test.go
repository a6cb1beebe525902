// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"slices"
	"testing"

	"github.com/drover-dev/drover/internal/config"
)

func TestAgentSettings(t *testing.T) {
	t.Parallel()
	c := &config.Config{Agent: config.Agent{Registry: "registry.example"},
		Server: config.Server{URLs: []string{"https://a.example.com", "https://b.example.com"}}}
	bundle := ""
	settings := c.AgentSettings(func() []byte { return []byte(bundle) })
	for _, bundle = range []string{"", "one", "two"} {
		got := settings()
		if got.CABundle != bundle || got.Registry != "registry.example" || !slices.Equal(got.Servers, c.Server.URLs) {
			t.Errorf("the settings are %+v, want the addresses %q and the current bundle %q", got, c.Server.URLs, bundle)
		}
	}
}
