// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config loads and validates the manager's configuration file, and sets up logging for the process.
package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	"sigs.k8s.io/yaml"
)

// APIVersion and Kind identify the configuration file format.
const (
	APIVersion = "config.drover.dev/v1"
	Kind       = "ManagerConfig"
)

// Config is the manager's configuration file.
type Config struct {
	Program `json:",inline"`

	// Server is the hub's HTTPS port.
	Server Server `json:"server"`
	// Agent holds the defaults for agents.
	Agent Agent `json:"agent,omitempty"`
	// Peers configures how the replicas of the manager connect to each other.
	Peers Peers `json:"peers,omitempty"`
	// Tracing configures traces of requests. It is off by default.
	Tracing Tracing `json:"tracing,omitempty"`
	// Drain configures how a replica stops.
	Drain Drain `json:"drain,omitempty"`
	// Limits restricts the load that users can put on one replica.
	Limits Limits `json:"limits,omitempty"`
	// Audit configures the log of users' requests to members. It is off by default.
	Audit Audit `json:"audit,omitempty"`
	// Channels restricts the release channels of Plans.
	Channels Channels `json:"channels,omitempty"`
	// SignIn configures how users sign in to the hub. It is off by default.
	SignIn SignIn `json:"signIn,omitempty"`
}

// Channels restricts the release channels that the hub queries. Any user who can create a Plan can choose the URL of
// its channel.
type Channels struct {
	// Private allows channels at private addresses (RFC 1918, RFC 4193, 100.64.0.0/10), for sites with their own channel
	// server. Loopback and link-local addresses are never queried. Default: false.
	Private bool `json:"private,omitempty"`
}

// Server configures the hub's HTTPS port and how agents reach it.
type Server struct {
	// Listen is the address of the port. Default: ":8443".
	Listen string `json:"listen,omitempty"`
	// URLs are the base URLs at which agents and users reach the hub. The preferred URL comes first. Only https is
	// allowed. All URLs are announced to the agents. At least one URL is required.
	URLs []string `json:"urls"`
	// TLSSecretName names a Secret in Namespace (tls.crt, tls.key, optional ca.crt). The hub serves the certificate in
	// this Secret instead of a certificate from its own CA. Agents trust the Secret's ca.crt in addition to the hub's
	// own CA.
	TLSSecretName string `json:"tlsSecretName,omitempty"`
}

// ListenNowhere is used instead of an address to disable a Port.
const ListenNowhere = "0"

// Load reads and validates the file at path, and sets defaults. Unknown fields are errors.
func Load(path string) (Config, error) { return Read(path, Parse) }

// Read reads a command's configuration file and returns the result of parse.
func Read[T any](path string, parse func([]byte) (T, error)) (T, error) {
	var none T
	raw, err := os.ReadFile(path)
	if err != nil {
		return none, fmt.Errorf("read configuration: %w", err)
	}
	c, err := parse(raw)
	if err != nil {
		return none, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}

// Parse is like Load, but takes the content of the file. It reports all errors together.
func Parse(raw []byte) (Config, error) {
	var c Config
	if err := yaml.UnmarshalStrict(raw, &c); err != nil {
		return Config{}, errors.Join(moved(raw), err)
	}
	c.setDefaults()
	return c, c.Validate(Kind, c.validate)
}

func (c *Config) setDefaults() {
	c.SetDefaults()
	setDefault(&c.Server.Listen, ":8443")
	c.Agent.Rollout.setDefaults()
	c.Peers.setDefaults()
	c.Tracing.setDefaults()
	c.Drain.setDefaults()
	c.Limits.setDefaults()
	c.Audit.setDefaults()
	c.SignIn.setDefaults()
	for i, u := range c.Server.URLs {
		c.Server.URLs[i] = strings.TrimRight(u, "/")
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// validate reports the errors in the fields that only the manager has.
func (c *Config) validate(add func(field, format string, args ...any)) {
	if _, _, err := net.SplitHostPort(c.Server.Listen); err != nil {
		add("server.listen", "want host:port or :port: %w", err)
	}
	if len(c.Server.URLs) == 0 {
		add("server.urls", "at least one is required: the https URL under which agents reach this hub")
	}
	for i, raw := range c.Server.URLs {
		if u, err := url.Parse(raw); err != nil || u.Hostname() == "" || strings.HasSuffix(u.Host, ":") ||
			(*u != url.URL{Scheme: "https", Host: u.Host}) {
			add(fmt.Sprintf("server.urls[%d]", i), "%q is not of the form https://host[:port]", raw)
		}
	}
	c.Agent.validate(add)
	c.Agent.Rollout.validate(add)
	c.Peers.validate(add)
	c.Tracing.validate(add)
	c.Drain.validate(add)
	c.Limits.validate(add)
	c.Audit.validate(add)
	c.SignIn.validate(c.Server.URLs, add)
}

// moved returns an error if the file contains keys that the manager no longer supports.
func moved(raw []byte) error {
	var former struct {
		ClusterAPI any `json:"clusterAPI"`
		Provision  any `json:"provision"`
	}
	if yaml.Unmarshal(raw, &former) != nil {
		return nil
	}
	var errs []error
	if former.ClusterAPI != nil {
		errs = append(errs, errors.New("clusterAPI: the program drover-provisioner reads this key now: "+
			"move it to the configuration in config/clusterapi/config.yaml, and install config/clusterapi: "+
			"docs/guide/cluster-api.md"))
	}
	if former.Provision != nil {
		errs = append(errs, errors.New("provision: remove this key, which has no successor: "+
			"the program drover-provisioner makes clusters of Hosts wherever config/provision is installed: "+
			"docs/guide/k3s-rke2.md"))
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("the manager no longer makes clusters: %w", errors.Join(errs...))
}
