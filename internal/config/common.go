// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Port is a port for operators. Its connections and handshakes do not count toward the limits of Server.
type Port struct {
	// Listen is its address, or ListenNowhere.
	Listen string `json:"listen,omitempty"`
}

// Validate reports faults of the port with that name.
func (p Port) Validate(name string, add func(field, format string, args ...any)) {
	if _, _, err := net.SplitHostPort(p.Listen); err != nil && p.Listen != ListenNowhere {
		add(name+".listen", "want host:port, :port or %q: %w", ListenNowhere, err)
	}
}

// LeaderElection among the replicas of a program, through a Lease.
type LeaderElection struct {
	// Enabled by default. Turn it off for a single process only.
	Enabled *bool `json:"enabled,omitempty"`
	// LeaseDuration, default 15s; RenewDeadline, default 10s; RetryPeriod, default 2s.
	LeaseDuration metav1.Duration `json:"leaseDuration,omitempty"`
	RenewDeadline metav1.Duration `json:"renewDeadline,omitempty"`
	RetryPeriod   metav1.Duration `json:"retryPeriod,omitempty"`
}

// SetDefaults sets the fields that the file leaves out.
func (l *LeaderElection) SetDefaults() {
	setDefault(&l.Enabled, new(true))
	setDefault(&l.LeaseDuration.Duration, 15*time.Second)
	setDefault(&l.RenewDeadline.Duration, 10*time.Second)
	setDefault(&l.RetryPeriod.Duration, 2*time.Second)
}

// Validate reports faults.
func (l LeaderElection) Validate(add func(field, format string, args ...any)) {
	if l.RetryPeriod.Duration >= l.RenewDeadline.Duration || l.RenewDeadline.Duration >= l.LeaseDuration.Duration {
		add("leaderElection", "want retryPeriod < renewDeadline < leaseDuration")
	}
}
