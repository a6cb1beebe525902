// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config loads and validates the provisioner's configuration file, and decides what its manager caches.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	core "github.com/drover-dev/drover/internal/config"
)

// Kind is the kind of the configuration file. It has the same apiVersion as the manager's file.
const Kind = "ProvisionerConfig"

// EnvNamespace is the environment variable with the namespace of the provisioner's pod.
const EnvNamespace = "DROVER_NAMESPACE"

// Config is the provisioner's configuration file.
type Config struct {
	metav1.TypeMeta `json:",inline"`

	// Namespace is the namespace on the hub for the provisioner's Lease, and for the objects that the manager
	// publishes. Default: the value of EnvNamespace, or "drover-system".
	Namespace string `json:"namespace,omitempty"`
	// Health is the port for the kubelet's probes, without TLS. Default: ":8081".
	Health core.Port `json:"health,omitempty"`
	// Metrics is the HTTPS port for scrapers. Default: ":8445".
	Metrics core.Port `json:"metrics,omitempty"`
	// LeaderElection configures leader election among the provisioner's replicas.
	LeaderElection core.LeaderElection `json:"leaderElection,omitempty"`
	// ClusterAPI makes the hub a Cluster API infrastructure provider. It is off by default.
	ClusterAPI ClusterAPI `json:"clusterAPI,omitempty"`
}

// ClusterAPI lets Cluster API create clusters on Hosts. Anyone who can write Cluster API objects has root access to the
// Hosts.
type ClusterAPI struct {
	// Enabled turns on reconciliation of the kinds in config/clusterapi, which must be installed. Default: false.
	Enabled bool `json:"enabled,omitempty"`
	// InPlaceUpdates (experimental) serves the hooks that Cluster API uses to update machines in place. It requires
	// Enabled. Default: false.
	InPlaceUpdates bool `json:"inPlaceUpdates,omitempty"`
	// Hooks is the port for InPlaceUpdates.
	Hooks Hooks `json:"hooks,omitempty"`
	// Import turns on the import of Cluster API clusters that have the label cluster.drover.dev/import. It requires
	// config/clusterapi/import. Default: false.
	Import bool `json:"import,omitempty"`
}

// Hooks configures the HTTPS port that Cluster API calls.
type Hooks struct {
	// Listen is the address of the port. Default: ":9443".
	Listen string `json:"listen,omitempty"`
	// CertDir is the directory with the certificate, as tls.crt and tls.key. Default: "/etc/drover-tls".
	CertDir string `json:"certDir,omitempty"`
}

// Load reads, defaults and validates the file at path. Unknown fields are errors.
func Load(path string) (Config, error) { return core.Read(path, Parse) }

// Parse does the same as Load for the content of a file. It reports all problems together.
func Parse(raw []byte) (Config, error) {
	var c Config
	if err := yaml.UnmarshalStrict(raw, &c); err != nil {
		return Config{}, err
	}
	for field, value := range map[*string]string{
		&c.Namespace: cmp.Or(os.Getenv(EnvNamespace), "drover-system"), &c.Health.Listen: ":8081", &c.Metrics.Listen: ":8445",
		&c.ClusterAPI.Hooks.Listen: ":9443", &c.ClusterAPI.Hooks.CertDir: "/etc/drover-tls",
	} {
		if *field == "" {
			*field = value
		}
	}
	c.LeaderElection.SetDefaults()
	return c, c.validate()
}

func (c *Config) validate() error {
	var errs []error
	add := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: "+format, append([]any{field}, args...)...))
	}
	if c.APIVersion != core.APIVersion || c.Kind != Kind {
		add("apiVersion, kind", "want %s, %s", core.APIVersion, Kind)
	}
	if problems := validation.IsDNS1123Label(c.Namespace); len(problems) > 0 {
		add("namespace", "%s", strings.Join(problems, "; "))
	}
	c.Health.Validate("health", add)
	c.Metrics.Validate("metrics", add)
	c.LeaderElection.Validate(add)
	if _, _, err := c.ClusterAPI.Hooks.address(); err != nil {
		add("clusterAPI.hooks.listen", "want host:port or :port: %w", err)
	}
	if c.ClusterAPI.InPlaceUpdates && !c.ClusterAPI.Enabled {
		add("clusterAPI.inPlaceUpdates",
			"requires clusterAPI.enabled, because only machines that Drover has created are updated")
	}
	return errors.Join(errs...)
}

// address returns the host and the port.
func (h Hooks) address() (string, int, error) {
	host, text, err := net.SplitHostPort(h.Listen)
	if err != nil {
		return "", 0, err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	return host, int(port), err
}
