// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Drain configures how a replica stops. The pod's grace period must be at least 10 s longer than the sum of Delay and
// Sessions, and at least 10 s longer than the sum of Delay and MoveTime.
type Drain struct {
	// Delay is how long a stopping replica continues to accept new requests, so that load balancers have time to stop
	// sending them. Default: 5s. Minimum: 0s, for a process without a load balancer. Maximum: 5m.
	Delay *metav1.Duration `json:"delay,omitempty"`
	// Sessions is how long ongoing shells, forwarded ports, followed logs and other requests may continue after Delay.
	// Default: 2m. Maximum: 24h. Watches end immediately and cleanly.
	Sessions *metav1.Duration `json:"sessions,omitempty"`
}

// MoveTime is the time that a stopping replica gives its agents to open tunnels to other replicas. It runs concurrently
// with Sessions. With ten thousand agents, most of this time is needed.
const MoveTime = time.Minute

// drainMargin is the time for the remaining steps of a shutdown: stopping controllers, releasing the Lease and closing
// connections.
const drainMargin = 10 * time.Second

// Timeout returns the maximum duration of a shutdown.
func (d Drain) Timeout() time.Duration {
	return d.Delay.Duration + max(d.Sessions.Duration, MoveTime) + drainMargin
}

func (d *Drain) setDefaults() {
	if d.Delay == nil {
		d.Delay = &metav1.Duration{Duration: 5 * time.Second}
	}
	if d.Sessions == nil {
		d.Sessions = &metav1.Duration{Duration: 2 * time.Minute}
	}
}

func (d *Drain) validate(add func(field, format string, args ...any)) {
	if d.Delay.Duration < 0 || d.Delay.Duration > 5*time.Minute {
		add("drain.delay", "%s is not between 0s and 5m", d.Delay.Duration)
	}
	if d.Sessions.Duration < 0 || d.Sessions.Duration > 24*time.Hour {
		add("drain.sessions", "%s is not between 0s and 24h", d.Sessions.Duration)
	}
}
