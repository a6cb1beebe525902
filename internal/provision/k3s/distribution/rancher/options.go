// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/drover-dev/drover/internal/provision/k3s/roster"
	"github.com/drover-dev/drover/internal/untrusted"
)

// reserved returns the options in config.yaml that only Drover may set.
func reserved() []string {
	return []string{
		"server", "token", "token-file", "agent-token", "agent-token-file", "cluster-secret", "cluster-init",
		"cluster-reset", "cluster-reset-restore-path", "node-name", "with-node-id", "data-dir",
		"disable-etcd", "disable-apiserver", "disable-controller-manager", "disable-scheduler", "disable-agent",
		"datastore-endpoint", "config", "private-registry",
		"write-kubeconfig", // required to remove nodes
		// Hosts join through these ports and addresses. Probes use them on the loopback interface.
		"https-listen-port", "bind-address", "supervisor-port", "apiserver-port", "apiserver-bind-address",
		// options that spec.etcd sets
		"etcd-snapshot-schedule-cron", "etcd-snapshot-retention", "etcd-snapshot-dir", "etcd-s3", "etcd-s3-endpoint",
		"etcd-s3-endpoint-ca", "etcd-s3-access-key", "etcd-s3-secret-key", "etcd-s3-bucket", "etcd-s3-region",
		"etcd-s3-folder", "etcd-s3-config-secret", "etcd-s3-session-token",
	}
}

// shortOptions maps the short names of reserved options to their long names.
func shortOptions() map[string]string {
	return map[string]string{"s": "server", "t": "token", "d": "data-dir", "c": "config", "o": "write-kubeconfig"}
}

// reservedArguments returns the component arguments that only Drover or the distribution may set, by the option that
// passes them. Other values would break probes, or change the names of nodes or the members of etcd.
func reservedArguments() map[string][]string {
	return map[string][]string{
		// With its own configuration file, the kubelet would ignore settings from the distribution, such as the port
		// for probes.
		"kubelet-arg": {"healthz-port", "healthz-bind-address", "hostname-override", "register-node", "kubeconfig", "config", "config-dir"},
		"etcd-arg": {
			"name", "data-dir", "listen-metrics-urls", "listen-client-urls", "listen-peer-urls", "advertise-client-urls",
			"initial-advertise-peer-urls", "initial-cluster", "initial-cluster-state", "force-new-cluster",
		},
		"kube-apiserver-arg": {"secure-port", "bind-address", "etcd-servers", "client-ca-file", "encryption-provider-config"},
	}
}

// optionName returns the name of the option that a key in config.yaml sets. The distributions turn each key into a
// flag. For example, the keys "token=x" and "t" both set the option "token". A key that ends with "+" adds to the
// values from other files.
func optionName(key string) string {
	name, _, _ := strings.Cut(strings.TrimSuffix(strings.TrimSpace(key), "+"), "=")
	name = strings.ReplaceAll(strings.TrimLeft(name, "-"), "_", "-")
	if long, is := shortOptions()[name]; is {
		return long
	}
	return name
}

// argumentName returns the name of the argument that a value such as "--healthz_port=0" sets. Components accept
// underscores in place of hyphens. The distributions accept "+=" and "-=" for changing a list.
func argumentName(value string) string {
	name, _, _ := strings.Cut(strings.TrimSpace(value), "=")
	return strings.ReplaceAll(strings.Trim(name, "-+ "), "_", "-")
}

// reservedPattern returns a regular expression that matches the names and short names of the reserved options.
func reservedPattern() string {
	all := strings.Join(slices.Concat(reserved(), slices.Sorted(maps.Keys(shortOptions()))), "|")
	return strings.ReplaceAll(all, "-", ".")
}

func (r rancher) CheckConfig(field string, raw []byte) (map[string]any, error) {
	config := map[string]any{}
	if len(raw) == 0 {
		return config, nil
	}
	if err := untrusted.JSON(raw, &config, untrusted.Small()); err != nil {
		return nil, fmt.Errorf("%s is not an object, or has more than 64 KiB or 4,096 values", field)
	}
	for _, key := range slices.Sorted(maps.Keys(config)) {
		name := optionName(key)
		written, _, _ := strings.Cut(key, "=") // the rest may be a secret
		if slices.Contains(reserved(), name) {
			return nil, fmt.Errorf("%s.%s cannot be set: Drover decides it", field, written)
		}
		values := texts(config[key])
		if _, value, is := strings.Cut(key, "="); is {
			values = append(values, value)
		}
		for _, value := range values {
			if argument := argumentName(value); slices.Contains(reservedArguments()[name], argument) {
				return nil, fmt.Errorf("%s.%s cannot have the argument %s: Drover decides it", field, name, argument)
			}
		}
	}
	return config, nil
}

func (r rancher) CheckSpec(spec roster.Spec) error {
	encrypts := spec.Config["secrets-encryption"] == true || spec.ServerConfig["secrets-encryption"] == true
	if spec.EncryptionKeyRotation != 0 && !encrypts {
		return fmt.Errorf("spec.encryptionKeyRotation: %s encrypts Secrets only with serverConfig.secrets-encryption: true, "+
			"which must be set when the cluster is created", r.name)
	}
	return checkSnapshots(spec)
}

// optionNoSnapshots is the option that makes a distribution ignore any snapshot schedule.
const optionNoSnapshots = "etcd-disable-snapshots"

func checkSnapshots(spec roster.Spec) error {
	if spec.Etcd.Schedule == "" {
		return nil
	}
	for field, config := range map[string]map[string]any{"config": spec.Config, "serverConfig": spec.ServerConfig} {
		for key, value := range config {
			if optionName(key) == optionNoSnapshots && fmt.Sprint(value) != "false" {
				return fmt.Errorf("no snapshots of etcd would be made: spec.%s has %s beside spec.etcd.schedule: "+
					"leave one of them out", field, optionNoSnapshots)
			}
		}
	}
	return nil
}
