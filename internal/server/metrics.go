// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/tunnel"
)

// tunnelMetrics observes this replica's tunnels. docs/operations/monitoring.md lists the metrics.
type tunnelMetrics struct {
	ended       *prometheus.CounterVec
	refused     *prometheus.CounterVec
	bytes       *prometheus.CounterVec
	pings       prometheus.Histogram
	blocked     prometheus.Histogram
	http2Errors *prometheus.CounterVec
	hops        *prometheus.CounterVec
}

// newTunnelMetrics registers the metrics of the tunnels. The gauges read their values from members on each scrape.
func newTunnelMetrics(registry prometheus.Registerer, members *members.States) *tunnelMetrics {
	m := &tunnelMetrics{
		ended: counters("drover_tunnels_ended_total", "Tunnels that ended, by reason.", "reason"),
		refused: counters("drover_agents_refused_total",
			"Agents with a cluster's token or key that were refused, by reason.", "reason"),
		bytes: counters("drover_tunnel_bytes_total",
			"Bytes through tunnels, without TLS, by direction as seen from the hub.", "direction"),
		hops: counters("drover_peer_requests_total", "Requests sent to members through another replica, by result.",
			"result"),
		http2Errors: counters("drover_tunnel_http2_errors_total", "HTTP/2 errors in tunnels, by kind.", "kind"),
		pings: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "drover_tunnel_ping_seconds",
			Help: "Round trips of keepalive pings.", Buckets: prometheus.ExponentialBuckets(0.001, 3, 9)}),
		blocked: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "drover_tunnel_write_blocked_seconds",
			Help: "Waits of more than 100 ms for a write to the network.", Buckets: prometheus.ExponentialBuckets(0.1, 2, 8)}),
	}
	registry.MustRegister(m.ended, m.refused, m.bytes, m.http2Errors, m.hops, m.pings, m.blocked,
		gauge("drover_members_connected", "Members with an open tunnel to this replica.", func() float64 {
			connected, _ := members.LocalSize()
			return float64(connected)
		}),
		gauge("drover_members_known", "Members with an open tunnel to any replica, as known to this replica.",
			func() float64 {
				known, _ := members.Size()
				return float64(known)
			}),
		gauge("drover_tunnels", "Open tunnels to this replica.", func() float64 {
			_, tunnels := members.LocalSize()
			return float64(tunnels)
		}),
		gauge("drover_tunnel_streams", "Requests in progress in tunnels, including watches and upgraded connections.",
			func() float64 {
				return float64(members.Streams())
			}))
	return m
}

// observe returns a configuration for tunnels that update the metrics.
func (m *tunnelMetrics) observe(cfg tunnel.Config) tunnel.Config {
	received, sent := m.bytes.WithLabelValues("received"), m.bytes.WithLabelValues("sent")
	seconds := func(h prometheus.Histogram) func(time.Duration) {
		return func(d time.Duration) { h.Observe(d.Seconds()) }
	}
	cfg.Observer = tunnel.Observer{
		BytesRead:    func(n int) { received.Add(float64(n)) },
		BytesWritten: func(n int) { sent.Add(float64(n)) },
		Ping:         seconds(m.pings),
		WriteBlocked: seconds(m.blocked),
		HTTP2Error: func(kind string) {
			if strings.Contains(kind, "ERR_UNKNOWN") { // the error text ends with a number that the agent chose
				kind = "unknown"
			}
			m.http2Errors.WithLabelValues(kind).Inc()
		},
	}
	cfg.OnEnd = func(err error) { m.ended.WithLabelValues(tunnel.Reason(err)).Inc() }
	return cfg
}

// Deliveries registers the metrics of the delivery store and returns the observer that updates them. Only the leader's
// metrics have values.
func (s *Server) Deliveries() delivery.Observer {
	sent := counters("drover_sets_sent_total", "Sets that were sent to members or removed there, by verb and result.",
		"verb", "result")
	took := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "drover_set_seconds",
		Help: "How long an agent took to apply or remove a set.", Buckets: prometheus.ExponentialBuckets(0.001, 3, 10)})
	awaited := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "drover_sets_awaited",
		Help: "The first owners that the leader has not reconciled since its start. No set without an owner is removed " +
			"until all are reconciled."}, []string{"kind", "workspace", "owner"})
	s.telemetry.registry.MustRegister(sent, took, awaited)
	return delivery.Observer{
		Sent: func(verb, result string, d time.Duration) {
			sent.WithLabelValues(verb, result).Inc()
			took.Observe(d.Seconds())
		},
		Awaited: func(owners []delivery.Key) {
			awaited.Reset()
			for _, key := range owners[:min(len(owners), maxAwaited)] {
				awaited.WithLabelValues(key.Kind, key.Namespace, key.Name).Set(1)
			}
		},
	}
}

// maxAwaited is the maximum number of owners that a metric names. The owners are sorted, so an owner that is awaited
// for a long time remains in the metric.
const maxAwaited = 10

func (t *telemetry) openAudit(cfg config.Audit, logger logr.Logger) (*audit.Log, error) {
	counter := func(name, help string) func(int) {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		t.registry.MustRegister(c)
		return func(n int) { c.Add(float64(n)) }
	}
	return audit.Open(cfg.Settings(), audit.Observer{
		Written: counter("drover_audit_lines_total", "Lines of the audit log that were written."),
		Dropped: counter("drover_audit_dropped_total",
			"Lines missing from the audit log because there was no room or they could not be written."),
	}, logger)
}
