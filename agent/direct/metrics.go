// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"fmt"
	"net/http"
	"sync/atomic"
)

// metrics counts the requests and connections of an Endpoint. The zero value is ready to use.
type metrics struct {
	served, refusedToken, refusedAll, refusedRequest, refusedPlace atomic.Int64
	reviewAccepted, reviewRefused, reviewUnknown                   atomic.Int64
	connections, tooMany, tooManyOfClient, unproven                atomic.Int64
}

// Metrics serves the metrics in the Prometheus text format. The metrics contain neither user names nor tokens. This
// package does not use client_golang, which is larger than all other dependencies of the package combined.
func (e *Endpoint) Metrics() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		for _, family := range e.families() {
			// An error means that the client has disconnected.
			_, _ = fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", family.name, family.help, family.name, family.kind)
			for _, s := range family.samples {
				_, _ = fmt.Fprintf(w, "%s%s %d\n", family.name, s.labels, s.value)
			}
		}
	})
}

type family struct {
	name, kind, help string
	samples          []sample
}

type sample struct {
	labels string
	value  int64
}

func (e *Endpoint) families() []family {
	m := &e.metrics
	e.open.mu.Lock()
	open := int64(len(e.open.requests))
	e.open.mu.Unlock()
	return []family{
		{"drover_direct_requests_total", "counter", "Requests of users with direct access that were forwarded.",
			[]sample{{"", m.served.Load()}}},
		{"drover_direct_requests_in_progress", "gauge", "Requests of users with direct access that are being forwarded.",
			[]sample{{"", open}}},
		{"drover_direct_refused_total", "counter", "Requests of users with direct access that were refused.", []sample{
			{`{reason="token"}`, m.refusedToken.Load()}, {`{reason="unavailable"}`, m.refusedAll.Load()},
			{`{reason="request"}`, m.refusedRequest.Load()}, {`{reason="limit"}`, m.refusedPlace.Load()},
		}},
		{"drover_direct_reviews_total", "counter", "Reviews of users' tokens for API servers.", []sample{
			{`{result="accepted"}`, m.reviewAccepted.Load()}, {`{result="refused"}`, m.reviewRefused.Load()},
			{`{result="unavailable"}`, m.reviewUnknown.Load()},
		}},
		{"drover_direct_connections", "gauge", "Connections that are open.", []sample{{"", m.connections.Load()}}},
		{"drover_direct_connections_closed_total", "counter", "Connections that were closed beyond a bound.", []sample{
			{`{reason="limit"}`, m.tooMany.Load()}, {`{reason="client"}`, m.tooManyOfClient.Load()},
			{`{reason="unproven"}`, m.unproven.Load()},
		}},
	}
}
