// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/agent/host/instructions"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// Environment variables of the agent.
const (
	// EnvConfigDir is the variable for the directory with the agent's configuration. EnvRancherConfigDir is the
	// corresponding variable of Rancher's system agent.
	EnvConfigDir        = "DROVER_AGENT_CONFIG_DIR"
	EnvRancherConfigDir = "RANCHER_SYSTEM_AGENT_CONFIG_DIR"
	// DefaultConfigDir is the default directory with the agent's configuration. It is used if neither variable is set.
	DefaultConfigDir = "/var/lib/drover/host-agent/etc"
)

const (
	fileConfig  = "config.json"
	folderState = "state" // next to the directory with the configuration
)

// ConfigDir returns the directory with the agent's configuration.
func ConfigDir(env func(string) string) string {
	return cmp.Or(env(EnvConfigDir), env(EnvRancherConfigDir), DefaultConfigDir)
}

// Config holds the settings of the hub and the machine that were passed to the join command.
type Config struct {
	// Servers are the hub's base URLs.
	Servers []string `json:"servers"`
	// Trust is Pinned, or System if the hub's certificate was issued by a public CA.
	Trust v1.Trust `json:"trust"`
	// Checksums pin the hub's CA, in the format of protocol.CertificateChecksums.
	Checksums []string `json:"checksums,omitempty"`
	// Roles, Labels and Taints apply to the machine's node.
	Roles  []string `json:"roles,omitempty"`
	Labels []string `json:"labels,omitempty"`
	Taints []string `json:"taints,omitempty"`
}

// Roles that a machine can have.
var roles = []string{"etcd", "control-plane", "worker"}

var (
	labelForm = regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9_./]{0,316}(=[A-Za-z0-9]?[-A-Za-z0-9_.]{0,62})?$`)
	taintForm = regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9_./]{0,316}(=[A-Za-z0-9]?[-A-Za-z0-9_.]{0,62})?:(NoSchedule|PreferNoSchedule|NoExecute)$`)
)

// check returns the problem with a configuration, or nil if there is none.
func (c *Config) check() error {
	if len(c.Servers) == 0 {
		return errors.New("no server: name the hub with --server")
	}
	for i, server := range c.Servers {
		url, err := protocol.ServerURL(server)
		if err != nil {
			return err
		}
		c.Servers[i] = url
	}
	if c.Trust != v1.TrustPinned && c.Trust != v1.TrustSystem {
		return fmt.Errorf("trust %q: must be %s or %s", c.Trust, v1.TrustPinned, v1.TrustSystem)
	}
	if c.Trust == v1.TrustPinned && len(c.Checksums) == 0 {
		return errors.New("nothing to verify the hub with: give --ca-checksum, or --trust System for a hub with a certificate of a public CA")
	}
	for _, role := range c.Roles {
		if !slices.Contains(roles, role) {
			return fmt.Errorf("role %q: must be etcd, control-plane or worker", role)
		}
	}
	for _, label := range c.Labels {
		if !labelForm.MatchString(label) {
			return fmt.Errorf("label %q: must be key=value", label)
		}
	}
	for _, taint := range c.Taints {
		if !taintForm.MatchString(taint) {
			return fmt.Errorf("taint %q: must be key=value:NoSchedule, PreferNoSchedule or NoExecute", taint)
		}
	}
	return nil
}

// Join writes the configuration and the join token of an agent. The agent reads both when it next starts.
func Join(dir string, config Config, token string) error {
	if err := config.check(); err != nil {
		return err
	}
	if token == "" {
		return errors.New("no join token")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	s := &secrets{folder: dir}
	registration := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: protocol.RegistrationSecret},
		Data: map[string][]byte{protocol.KeyToken: []byte(token)}}
	raw, err := json.MarshalIndent(config, "", "  ")
	if err == nil {
		err = instructions.WriteDurably(filepath.Join(dir, fileConfig), append(raw, '\n'))
	}
	if err != nil || s.same(registration.Name, registration.Data) {
		return err
	}
	_, err = s.write(registration)
	return err
}

func readConfig(dir string) (Config, error) {
	raw, err := os.ReadFile(filepath.Join(dir, fileConfig))
	if err != nil {
		return Config{}, fmt.Errorf("no configuration: run the join command of the hub: %w", err)
	}
	var config Config
	if err := json.Unmarshal(raw, &config); err != nil {
		return Config{}, fmt.Errorf("%s: %w", filepath.Join(dir, fileConfig), err)
	}
	return config, config.check()
}
