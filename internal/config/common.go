// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Port configures a port for operators. Connections to it and handshakes on it do not count toward the limits of
// Server.
type Port struct {
	// Listen is the address of the port, or ListenNowhere.
	Listen string `json:"listen,omitempty"`
}

// Validate reports the errors in the configuration of the port with the given name.
func (p Port) Validate(name string, add func(field, format string, args ...any)) {
	if _, _, err := net.SplitHostPort(p.Listen); err != nil && p.Listen != ListenNowhere {
		add(name+".listen", "want host:port, :port or %q: %w", ListenNowhere, err)
	}
}

// LeaderElection configures leader election among the replicas of a command, through a Lease.
type LeaderElection struct {
	// Enabled turns leader election on. Default: true. Turn it off only for a single process.
	Enabled *bool `json:"enabled,omitempty"`
	// LeaseDuration defaults to 15s, RenewDeadline to 10s and RetryPeriod to 2s.
	LeaseDuration metav1.Duration `json:"leaseDuration,omitempty"`
	RenewDeadline metav1.Duration `json:"renewDeadline,omitempty"`
	RetryPeriod   metav1.Duration `json:"retryPeriod,omitempty"`
}

// SetDefaults sets the fields that are missing in the file.
func (l *LeaderElection) SetDefaults() {
	setDefault(&l.Enabled, new(true))
	setDefault(&l.LeaseDuration.Duration, 15*time.Second)
	setDefault(&l.RenewDeadline.Duration, 10*time.Second)
	setDefault(&l.RetryPeriod.Duration, 2*time.Second)
}

// Validate reports the errors in the section.
func (l LeaderElection) Validate(add func(field, format string, args ...any)) {
	if l.RetryPeriod.Duration >= l.RenewDeadline.Duration || l.RenewDeadline.Duration >= l.LeaseDuration.Duration {
		add("leaderElection", "want retryPeriod < renewDeadline < leaseDuration")
	}
}
