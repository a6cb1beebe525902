// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config loads and validates the provisioner's configuration file, and determines what its manager caches.
package config

import (
	"cmp"
	"net"
	"os"
	"strconv"

	"sigs.k8s.io/yaml"

	core "github.com/drover-dev/drover/internal/config"
)

// Kind is the kind of the provisioner's configuration file. Its apiVersion is the same as in the manager's
// configuration file.
const Kind = "ProvisionerConfig"

// EnvNamespace is the environment variable with the namespace of the provisioner's pod.
const EnvNamespace = "DROVER_NAMESPACE"

// Config is the provisioner's configuration file.
type Config struct {
	core.Program `json:",inline"`

	// ClusterAPI makes the hub a Cluster API infrastructure provider. Default: disabled.
	ClusterAPI ClusterAPI `json:"clusterAPI,omitempty"`
}

// ClusterAPI lets Cluster API create clusters on Hosts. Anyone who can write Cluster API objects gains root access to
// the Hosts.
type ClusterAPI struct {
	// Enabled turns on reconciliation of the kinds in config/clusterapi. These kinds must be installed. Default: false.
	Enabled bool `json:"enabled,omitempty"`
	// InPlaceUpdates (experimental) serves the hooks that Cluster API calls to update machines in place. It requires
	// Enabled. Default: false.
	InPlaceUpdates bool `json:"inPlaceUpdates,omitempty"`
	// Hooks configures the port that InPlaceUpdates uses.
	Hooks Hooks `json:"hooks,omitempty"`
	// Import turns on the import of Cluster API clusters with the label cluster.drover.dev/import. It requires the
	// objects in config/clusterapi/import. Default: false.
	Import bool `json:"import,omitempty"`
}

// Hooks configures the HTTPS port that Cluster API calls.
type Hooks struct {
	// Listen is the address that the server listens on. Default: ":9443".
	Listen string `json:"listen,omitempty"`
	// CertDir is the directory with the certificate and its key, tls.crt and tls.key. Default: "/etc/drover-tls".
	CertDir string `json:"certDir,omitempty"`
}

// Load reads and validates the file at path, and sets defaults. Unknown fields are errors.
func Load(path string) (Config, error) { return core.Read(path, Parse) }

// Parse is like Load, but for the content of a file. It reports all errors together.
func Parse(raw []byte) (Config, error) {
	var c Config
	if err := yaml.UnmarshalStrict(raw, &c); err != nil {
		return Config{}, err
	}
	c.Namespace = cmp.Or(c.Namespace, os.Getenv(EnvNamespace))
	c.SetDefaults()
	hooks := &c.ClusterAPI.Hooks
	hooks.Listen, hooks.CertDir = cmp.Or(hooks.Listen, ":9443"), cmp.Or(hooks.CertDir, "/etc/drover-tls")
	return c, c.Validate(Kind, c.validate)
}

// validate reports errors in the fields that only the provisioner has.
func (c *Config) validate(add func(field, format string, args ...any)) {
	if _, _, err := c.ClusterAPI.Hooks.address(); err != nil {
		add("clusterAPI.hooks.listen", "want host:port or :port: %w", err)
	}
	if c.ClusterAPI.InPlaceUpdates && !c.ClusterAPI.Enabled {
		add("clusterAPI.inPlaceUpdates",
			"requires clusterAPI.enabled, because only machines that Drover has created are updated")
	}
}

func (h Hooks) address() (string, int, error) {
	host, text, err := net.SplitHostPort(h.Listen)
	if err != nil {
		return "", 0, err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	return host, int(port), err
}
