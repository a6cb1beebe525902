// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/portal/subscribe"
)

// withStreams treats the streams of changes as part of the hub's own API. The streams show the hub's objects, so they
// do not accept tokens for members.
func withStreams(a identity.Audiences) identity.Audiences {
	member := a.Member
	a.Member = func(r *http.Request) string {
		if r.URL.Path == subscribe.Path || r.URL.Path == subscribe.PathRancher {
			return identity.Local
		}
		return member(r)
	}
	return a
}

func (t *telemetry) subscriptions() subscribe.Observer {
	open := prometheus.NewGauge(prometheus.GaugeOpts{Name: "drover_subscriptions", Help: "Open streams of changes."})
	ended := counters("drover_subscriptions_ended_total", "Streams of changes that have ended, by reason.", "why")
	t.registry.MustRegister(open, ended)
	return subscribe.Observer{Streams: func(n int) { open.Add(float64(n)) },
		Ended: func(why string) { ended.WithLabelValues(why).Inc() }}
}
