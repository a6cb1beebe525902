// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Drain is how a replica stops. The pod's grace period must exceed their sum, or Delay and MoveTime, by 10 s.
type Drain struct {
	// Delay is how long a replica that stops still serves new requests, until whatever spreads them has noticed. Default
	// 5s, at least 0s (for a process that nothing is in front of), at most 5m.
	Delay *metav1.Duration `json:"delay,omitempty"`
	// Sessions is how long what is under way may last after that: shells, forwarded ports, logs that are followed, and
	// requests. Default 2m, at most 24h. Watches end at once, cleanly.
	Sessions *metav1.Duration `json:"sessions,omitempty"`
}

// MoveTime is the time for agents to open tunnels at other replicas. It runs at the same time as Sessions. Ten thousand
// agents need most of it.
const MoveTime = time.Minute

// drainMargin is the time for the rest of a stop: controllers end, the Lease is released, connections are closed.
const drainMargin = 10 * time.Second

// Timeout returns the most time that a stop takes.
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
		add("drain.delay", "%s is not from 0s to 5m", d.Delay.Duration)
	}
	if d.Sessions.Duration < 0 || d.Sessions.Duration > 24*time.Hour {
		add("drain.sessions", "%s is not from 0s to 24h", d.Sessions.Duration)
	}
}
