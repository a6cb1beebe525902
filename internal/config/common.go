// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Program is the part of a configuration file that all programs share.
type Program struct {
	metav1.TypeMeta `json:",inline"`

	// Namespace is the namespace on the hub that contains the program's Lease and the objects that the manager
	// publishes, such as its CA. Default: "drover-system" for the manager, and the provisioner's own namespace for the
	// provisioner.
	Namespace string `json:"namespace,omitempty"`
	// Health is the port for the kubelet's probes. It does not use TLS. Default: ":8081".
	Health Port `json:"health,omitempty"`
	// Metrics is the HTTPS port for scrapers. Default: ":8445".
	Metrics Port `json:"metrics,omitempty"`
	// LeaderElection configures leader election among the program's replicas.
	LeaderElection LeaderElection `json:"leaderElection,omitempty"`
}

// SetDefaults sets all missing fields to their defaults.
func (p *Program) SetDefaults() {
	setDefault(&p.Namespace, "drover-system")
	setDefault(&p.Health.Listen, ":8081")
	setDefault(&p.Metrics.Listen, ":8445")
	p.LeaderElection.SetDefaults()
}

// Validate returns all errors in a file of the given kind. The function rest reports the errors in the fields that only
// this program has.
func (p *Program) Validate(kind string, rest func(add func(field, format string, args ...any))) error {
	var errs []error
	add := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: "+format, append([]any{field}, args...)...))
	}
	if p.APIVersion != APIVersion || p.Kind != kind {
		add("apiVersion, kind", "want %s, %s", APIVersion, kind)
	}
	if problems := validation.IsDNS1123Label(p.Namespace); len(problems) > 0 {
		add("namespace", "%s", strings.Join(problems, "; "))
	}
	p.Health.validate("health", add)
	p.Metrics.validate("metrics", add)
	p.LeaderElection.validate(add)
	rest(add)
	return errors.Join(errs...)
}

// Port configures a port for operators. Its connections and handshakes do not count toward the limits for the hub's
// HTTPS port.
type Port struct {
	// Listen is the address of the port, or ListenNowhere.
	Listen string `json:"listen,omitempty"`
}

// validate calls add for each error in the configuration of the port with the given name.
func (p Port) validate(name string, add func(field, format string, args ...any)) {
	if _, _, err := net.SplitHostPort(p.Listen); err != nil && p.Listen != ListenNowhere {
		add(name+".listen", "want host:port, :port or %q: %w", ListenNowhere, err)
	}
}

// LeaderElection configures leader election among the replicas of a program. It uses a Lease.
type LeaderElection struct {
	// Enabled turns leader election on. Default: true. Turn it off only for a single process.
	Enabled *bool `json:"enabled,omitempty"`
	// LeaseDuration defaults to 15s, RenewDeadline to 10s and RetryPeriod to 2s.
	LeaseDuration metav1.Duration `json:"leaseDuration,omitempty"`
	RenewDeadline metav1.Duration `json:"renewDeadline,omitempty"`
	RetryPeriod   metav1.Duration `json:"retryPeriod,omitempty"`
}

// SetDefaults sets all missing fields to their defaults.
func (l *LeaderElection) SetDefaults() {
	setDefault(&l.Enabled, new(true))
	setDefault(&l.LeaseDuration.Duration, 15*time.Second)
	setDefault(&l.RenewDeadline.Duration, 10*time.Second)
	setDefault(&l.RetryPeriod.Duration, 2*time.Second)
}

// validate calls add for each error in the section.
func (l LeaderElection) validate(add func(field, format string, args ...any)) {
	if l.RetryPeriod.Duration >= l.RenewDeadline.Duration || l.RenewDeadline.Duration >= l.LeaseDuration.Duration {
		add("leaderElection", "want retryPeriod < renewDeadline < leaseDuration")
	}
}
