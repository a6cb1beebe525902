// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/drover-dev/drover/internal/subscribe"
)

// subscriptions makes the metrics of the streams of changes.
func (t *telemetry) subscriptions() subscribe.Observer {
	open := prometheus.NewGauge(prometheus.GaugeOpts{Name: "drover_subscriptions", Help: "Streams of changes that are open to users."})
	ended := counters("drover_subscriptions_ended_total", "Streams of changes that have ended, by why.", "why")
	t.registry.MustRegister(open, ended)
	return subscribe.Observer{Streams: func(n int) { open.Add(float64(n)) }, Ended: func(why string) { ended.WithLabelValues(why).Inc() }}
}
