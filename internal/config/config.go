// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config loads and validates the manager's one configuration file, and starts its one log.
package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// APIVersion and Kind of the file.
const (
	APIVersion = "config.drover.dev/v1"
	Kind       = "ManagerConfig"
)

// Config is the manager's configuration file.
type Config struct {
	metav1.TypeMeta `json:",inline"`

	// Namespace on the hub for the manager's own objects: its Lease and its CA. Default "drover-system".
	Namespace string `json:"namespace,omitempty"`
	// Server is the hub's HTTPS port.
	Server Server `json:"server"`
	// Agent has the defaults of agents.
	Agent Agent `json:"agent,omitempty"`
	// Health is the port for probes of the kubelet, without TLS. Default ":8081".
	Health Port `json:"health,omitempty"`
	// Metrics is the HTTPS port for scrapers. Default ":8445".
	Metrics Port `json:"metrics,omitempty"`
	// LeaderElection among manager replicas.
	LeaderElection LeaderElection `json:"leaderElection,omitempty"`
	// Peers are the other replicas of the manager.
	Peers Peers `json:"peers,omitempty"`
	// Tracing of requests. Off by default.
	Tracing Tracing `json:"tracing,omitempty"`
	// Drain is how a replica stops.
	Drain Drain `json:"drain,omitempty"`
	// Limits of what users do through one replica.
	Limits Limits `json:"limits,omitempty"`
	// Audit is the log of who did what in which member. Off by default.
	Audit Audit `json:"audit,omitempty"`
	// Channels are the release channels that Plans name.
	Channels Channels `json:"channels,omitempty"`
	// SignIn is how users sign in at the hub. Off by default.
	SignIn SignIn `json:"signIn,omitempty"`
	// ClusterAPI makes the hub an infrastructure provider of Cluster API. Off by default.
	ClusterAPI ClusterAPI `json:"clusterAPI,omitempty"`
	// Provision has the hub make clusters of Hosts with k3s and RKE2. Off by default.
	Provision Provision `json:"provision,omitempty"`
}

// Provision lets ClusterInstallations make clusters of Hosts. Who may write one is root on them.
type Provision struct {
	// Enabled has the manager reconcile the kind of config/provision, which must be there. Default: false.
	Enabled bool `json:"enabled,omitempty"`
}

// ClusterAPI lets Cluster API make clusters of Hosts. What it makes is root on them.
type ClusterAPI struct {
	// Enabled has the manager reconcile the kinds of config/clusterapi, which must be there. Default: false.
	Enabled bool `json:"enabled,omitempty"`
	// InPlaceUpdates has the server answer the hooks by which Cluster API updates machines in place. It takes Enabled. Default: false.
	InPlaceUpdates bool `json:"inPlaceUpdates,omitempty"`
	// Import has the manager import the clusters of Cluster API that have the label cluster.drover.dev/import. It takes config/clusterapi/import. Default: false.
	Import bool `json:"import,omitempty"`
}

// Channels restricts the release channels that the hub asks. Any user who may create a Plan chooses the URL of one.
type Channels struct {
	// Private lets channels be at private addresses (RFC 1918, RFC 4193, 100.64.0.0/10) too, for sites with a channel server of their own.
	// Addresses of this machine and of its link are never asked. Default: false.
	Private bool `json:"private,omitempty"`
}

// Server is the hub's HTTPS port and how agents reach it.
type Server struct {
	// Listen is the address of the port. Default ":8443".
	Listen string `json:"listen,omitempty"`
	// URLs are the base URLs under which agents and people reach the hub, the preferred one first. https only. All
	// of them are announced to the agents. At least one is required.
	URLs []string `json:"urls"`
	// TLSSecretName names a Secret in Namespace (tls.crt, tls.key, optional ca.crt) to serve with instead of certificates
	// of the hub's own CA. Agents are told to trust its ca.crt beside the hub's own CA.
	TLSSecretName string `json:"tlsSecretName,omitempty"`
}

// ListenNowhere in place of an address leaves a Port out.
const ListenNowhere = "0"

// Port is one for operators. Neither the connections nor the handshakes on it count with those of Server.
type Port struct {
	// Listen is its address, or ListenNowhere.
	Listen string `json:"listen,omitempty"`
}

// LeaderElection among manager replicas, through a Lease.
type LeaderElection struct {
	// Enabled by default. Turn it off for a single process only.
	Enabled *bool `json:"enabled,omitempty"`
	// LeaseDuration, default 15s; RenewDeadline, default 10s; RetryPeriod, default 2s.
	LeaseDuration metav1.Duration `json:"leaseDuration,omitempty"`
	RenewDeadline metav1.Duration `json:"renewDeadline,omitempty"`
	RetryPeriod   metav1.Duration `json:"retryPeriod,omitempty"`
}

// Load reads, defaults and validates the file at path. Unknown fields are errors.
func Load(path string) (Config, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	c, err := Parse(raw)
	if err != nil {
		return Config{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}

// Parse is Load for a file's content. It reports all faults at once.
func Parse(raw []byte) (Config, error) {
	var c Config
	if err := yaml.UnmarshalStrict(raw, &c); err != nil {
		return Config{}, err
	}
	c.setDefaults()
	return c, c.validate()
}

func (c *Config) setDefaults() {
	setDefault(&c.Namespace, "drover-system")
	setDefault(&c.Server.Listen, ":8443")
	setDefault(&c.Health.Listen, ":8081")
	setDefault(&c.Metrics.Listen, ":8445")
	c.Agent.Rollout.setDefaults()
	c.Peers.setDefaults()
	c.Tracing.setDefaults()
	c.Drain.setDefaults()
	c.Limits.setDefaults()
	c.Audit.setDefaults()
	enabled := true
	setDefault(&c.LeaderElection.Enabled, &enabled)
	setDefault(&c.LeaderElection.LeaseDuration.Duration, 15*time.Second)
	setDefault(&c.LeaderElection.RenewDeadline.Duration, 10*time.Second)
	setDefault(&c.LeaderElection.RetryPeriod.Duration, 2*time.Second)
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

func (c *Config) validate() error {
	var errs []error
	add := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: "+format, append([]any{field}, args...)...))
	}
	if c.APIVersion != APIVersion || c.Kind != Kind {
		add("apiVersion, kind", "want %s, %s", APIVersion, Kind)
	}
	if problems := validation.IsDNS1123Label(c.Namespace); len(problems) > 0 {
		add("namespace", "%s", strings.Join(problems, "; "))
	}
	if _, _, err := net.SplitHostPort(c.Server.Listen); err != nil {
		add("server.listen", "want host:port or :port: %w", err)
	}
	for field, port := range map[string]Port{"health.listen": c.Health, "metrics.listen": c.Metrics} {
		if _, _, err := net.SplitHostPort(port.Listen); err != nil && port.Listen != ListenNowhere {
			add(field, "want host:port, :port or %q: %w", ListenNowhere, err)
		}
	}
	if len(c.Server.URLs) == 0 {
		add("server.urls", "at least one is required: the https URL under which agents reach this hub")
	}
	for i, raw := range c.Server.URLs {
		if u, err := url.Parse(raw); err != nil || u.Hostname() == "" || strings.HasSuffix(u.Host, ":") || (*u != url.URL{Scheme: "https", Host: u.Host}) {
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
	if c.ClusterAPI.InPlaceUpdates && !c.ClusterAPI.Enabled {
		add("clusterAPI.inPlaceUpdates", "it takes clusterAPI.enabled: what is updated are machines that Drover has made")
	}
	l := c.LeaderElection
	if l.RetryPeriod.Duration >= l.RenewDeadline.Duration || l.RenewDeadline.Duration >= l.LeaseDuration.Duration {
		add("leaderElection", "want retryPeriod < renewDeadline < leaseDuration")
	}
	return errors.Join(errs...)
}
