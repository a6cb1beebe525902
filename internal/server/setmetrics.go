// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/drover-dev/drover/internal/delivery"
)

// Deliveries registers metrics of what a delivery store sends, and returns what has the delivery store feed them. Only the leader's say anything.
func (s *Server) Deliveries() delivery.Observer {
	sent := counters("drover_sets_sent_total", "Sets that were sent to members or removed there, by verb and result.", "verb", "result")
	took := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "drover_set_seconds",
		Help: "How long an agent took to take a set or remove it.", Buckets: prometheus.ExponentialBuckets(0.001, 3, 10)})
	s.telemetry.registry.MustRegister(sent, took)
	return delivery.Observer{Sent: func(verb, result string, d time.Duration) {
		sent.WithLabelValues(verb, result).Inc()
		took.Observe(d.Seconds())
	}}
}
