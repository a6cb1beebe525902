// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/config"
)

const minimal = `
apiVersion: config.drover.dev/v1
kind: ManagerConfig
server: {urls: ["https://hub.example.com/"]}
`

func TestParse(t *testing.T) {
	t.Run("a file with one URL gets all defaults", func(t *testing.T) {
		c, err := config.Parse([]byte(minimal))
		if err != nil {
			t.Fatal(err)
		}
		if c.Namespace != "drover-system" || c.Server.Listen != ":8443" || !*c.LeaderElection.Enabled || c.Server.URLs[0] != "https://hub.example.com" {
			t.Errorf("unexpected defaults: %+v", c)
		}
	})
	for name, tc := range map[string]struct{ file, want string }{
		"a misspelt field is named":             {minimal + "sever: {}\n", `unknown field "sever"`},
		"a missing URL says what to write":      {strings.Replace(minimal, `"https://hub.example.com/"`, "", 1), "server.urls: at least one is required"},
		"http is refused":                       {strings.Replace(minimal, "https:", "http:", 1), "not of the form https://host[:port]"},
		"a URL with a path is refused":          {strings.Replace(minimal, ".com/", ".com/hub", 1), "not of the form https://host[:port]"},
		"another kind is refused":               {strings.Replace(minimal, "ManagerConfig", "Config", 1), "want config.drover.dev/v1, ManagerConfig"},
		"an impossible leader election is said": {minimal + "leaderElection: {leaseDuration: 1s}\n", "retryPeriod < renewDeadline < leaseDuration"},
		"peers are found in one way only":       {minimal + "peers: {service: drover-peers, addresses: ['127.0.0.1:1']}\n", "not both"},
		"a peer without a port is named":        {minimal + "peers: {addresses: ['127.0.0.1:1', localhost]}\n", "peers.addresses[1]"},
		"a bad port for peers is said":          {minimal + "peers: {listen: nonsense}\n", "peers.listen"},
		"a stop that takes for ever is refused": {minimal + "drain: {delay: 1h}\n", "drain.delay"},
		"sessions cannot end before they began": {minimal + "drain: {sessions: -1s}\n", "drain.sessions"},
		"a service is a name":                   {minimal + "peers: {service: 'a/b'}\n", "peers.service"},
		"a collector needs a scheme":            {minimal + "tracing: {endpoint: 'collector:4318'}\n", "tracing.endpoint"},
		"a collector's password stays unsaid":   {minimal + "tracing: {endpoint: 'http://me:secret@c:4318'}\n", "OTEL_EXPORTER_OTLP_HEADERS"},
		"more than all is no share":             {minimal + "tracing: {sampleRatio: 2}\n", "tracing.sampleRatio"},
		"a bad listen address is said":          {strings.Replace(minimal, "{urls", "{listen: nonsense, urls", 1), "server.listen"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Parse([]byte(tc.file))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want it to contain %q", err, tc.want)
			}
		})
	}
}
