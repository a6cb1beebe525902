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
		if c.Namespace != "drover-system" || c.Server.Listen != ":8443" || !*c.LeaderElection.Enabled ||
			c.Server.URLs[0] != "https://hub.example.com" {
			t.Errorf("unexpected defaults: %+v", c)
		}
	})
	for name, tc := range map[string]struct{ file, want string }{
		"a misspelt field is named": {minimal + "sever: {}\n", `unknown field "sever"`},
		"a missing URL says what to write": {
			strings.Replace(minimal, `"https://hub.example.com/"`, "", 1), "server.urls: at least one is required",
		},
		"http is refused": {
			strings.Replace(minimal, "https:", "http:", 1), "not of the form https://host[:port]",
		},
		"a URL with a path is refused": {
			strings.Replace(minimal, ".com/", ".com/hub", 1), "not of the form https://host[:port]",
		},
		"a URL without a host is refused": {
			strings.Replace(minimal, "hub.example.com/", ":8443", 1), "not of the form https://host[:port]",
		},
		"a URL with a fragment is refused": {
			strings.Replace(minimal, ".com/", ".com#hub", 1), "not of the form https://host[:port]",
		},
		"a URL with an empty query is refused": {
			strings.Replace(minimal, ".com/", ".com?", 1), "not of the form https://host[:port]",
		},
		"a URL with an empty port is refused": {
			strings.Replace(minimal, ".com/", ".com:", 1), "not of the form https://host[:port]",
		},
		"a collector needs a host": {
			minimal + "tracing: {endpoint: 'http://:4318'}\n", "tracing.endpoint",
		},
		"another kind is refused": {
			strings.Replace(minimal, "ManagerConfig", "Config", 1), "want config.drover.dev/v1, ManagerConfig",
		},
		"contradictory leader election is refused": {
			minimal + "leaderElection: {leaseDuration: 1s}\n", "retryPeriod < renewDeadline < leaseDuration",
		},
		"peers need either a service or addresses": {
			minimal + "peers: {service: drover-peers, addresses: ['127.0.0.1:1']}\n", "not both",
		},
		"a peer without a port is named": {
			minimal + "peers: {addresses: ['127.0.0.1:1', localhost]}\n", "peers.addresses[1]",
		},
		"an invalid port for peers is refused":       {minimal + "peers: {listen: nonsense}\n", "peers.listen"},
		"a delay beyond the maximum is refused":      {minimal + "drain: {delay: 1h}\n", "drain.delay"},
		"a negative duration of sessions is refused": {minimal + "drain: {sessions: -1s}\n", "drain.sessions"},
		"a service that is not a name is refused":    {minimal + "peers: {service: 'a/b'}\n", "peers.service"},
		"a collector needs a scheme": {
			minimal + "tracing: {endpoint: 'collector:4318'}\n", "tracing.endpoint",
		},
		"a URL with a password is refused": {
			minimal + "tracing: {endpoint: 'http://me:secret@c:4318'}\n", "OTEL_EXPORTER_OTLP_HEADERS",
		},
		"a sample ratio above 1 is refused": {minimal + "tracing: {sampleRatio: 2}\n", "tracing.sampleRatio"},
		"an issuer must be one of the URLs": {
			minimal + "signIn: {issuer: 'https://other.example.com'}\n", "none of server.urls",
		},
		"an issuer with port 443 is refused": {
			strings.Replace(minimal, ".com/", ".com:443", 1) + "signIn: {issuer: 'https://hub.example.com:443'}\n",
			"in the form that browsers use",
		},
		"an issuer in capitals is refused": {
			strings.Replace(minimal, "hub.", "HUB.", 1) + "signIn: {issuer: 'https://HUB.example.com'}\n",
			"in the form that browsers use",
		},
		"a session must last for ten minutes or more": {
			minimal + "signIn: {sessionLifetime: 9m}\n", "signIn.sessionLifetime: want 10m0s to 720h0m0s",
		},
		"a session must last for a month or less": {
			minimal + "signIn: {sessionLifetime: 721h}\n", "signIn.sessionLifetime",
		},
		"an idle timeout beyond the lifetime is refused": {
			minimal + "signIn: {sessionIdleTimeout: 13h}\n", "signIn.sessionIdleTimeout: want 10m0s to signIn.sessionLifetime",
		},
		"Cluster API has moved to another program": {
			minimal + "clusterAPI: {enabled: true}\n",
			"drover-provisioner reads this key now: move it to the configuration in config/clusterapi/config.yaml",
		},
		"provision has moved to another program": {
			minimal + "provision: {enabled: true}\n", "provision: remove this key",
		},
		"an invalid listen address is refused": {
			strings.Replace(minimal, "{urls", "{listen: nonsense, urls", 1), "server.listen",
		},
		"a token must end within a year": {
			minimal + "signIn: {issuer: 'https://hub.example.com', tokens: {maxTTL: 9000h}}\n",
			"signIn.tokens.maxTTL: want 1m0s",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Parse([]byte(tc.file))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want it to contain %q", err, tc.want)
			}
		})
	}
}

func TestOperatorsPorts(t *testing.T) {
	for name, tc := range map[string]struct{ more, health, metrics, err string }{
		"each has its own port by default": {"", ":8081", ":8445", ""},
		"they can be moved": {
			`health: {listen: "[::1]:1"}, metrics: {listen: "127.0.0.1:2"}`, "[::1]:1", "127.0.0.1:2", "",
		},
		"they can be left out": {
			`health: {listen: "0"}, metrics: {listen: "0"}`, config.ListenNowhere, config.ListenNowhere, "",
		},
		"a port alone is not enough":  {`health: {listen: "8081"}`, "", "", "health.listen: want host:port"},
		"an IPv6 address in brackets": {`metrics: {listen: "::1:8445"}`, "", "", "metrics.listen: want host:port"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := config.Parse([]byte("{apiVersion: config.drover.dev/v1, kind: ManagerConfig, server: {urls: [\"https://hub\"]}, " + tc.more + "}"))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("got %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil || cfg.Health.Listen != tc.health || cfg.Metrics.Listen != tc.metrics {
				t.Errorf("got %+v, %+v, %v", cfg.Health, cfg.Metrics, err)
			}
		})
	}
}

func TestDefaultsOfAgents(t *testing.T) {
	for name, tc := range map[string]struct{ agent, err string }{
		"a registry with a folder": {`{registry: registry.example.com/mirror}`, ""},
		"a registry with a port":   {`{registry: "mirror:5000"}`, ""},
		"an IPv6 registry":         {`{registry: "[fd00::1]:5000/a"}`, ""},
		"everything": {
			`{image: a, imagePullSecrets: [{name: b}], env: [{name: HTTPS_PROXY, secretKey: proxy}], nodeSelector: {a: b}, tolerations: [{key: a}], priorityClassName: c}`, "",
		},
		"a registry that runtimes take for a folder": {`{registry: mirror}`, `agent.registry: "mirror" is not of the form`},
		"a URL":                         {`{registry: "https://registry.example.com"}`, "agent.registry"},
		"a variable that agents refuse": {`{env: [{name: DROVER_SERVER, value: x}]}`, "agent.env[0].name"},
		"a value and a key": {
			`{env: [{name: HTTPS_PROXY, value: x, secretKey: y}]}`, "agent.env[0]: set value or secretKey",
		},
		"a Secret without a name": {`{imagePullSecrets: [{}]}`, "agent.imagePullSecrets[0].name"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := config.Parse([]byte("{apiVersion: config.drover.dev/v1, kind: ManagerConfig, server: {urls: [\"https://hub\"]}, agent: " + tc.agent + "}"))
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("got %v, want %q", err, tc.err)
			}
			if d := cfg.Agent.Defaults(); name == "everything" &&
				(len(d.ImagePullSecrets) != 1 || len(d.Env) != 1 || len(d.NodeSelector) != 1 || len(d.Tolerations) != 1 ||
					d.PriorityClassName != "c" || d.Image != "a") {
				t.Errorf("got %+v", d)
			}
		})
	}
}
