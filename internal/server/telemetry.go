// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/portal/subscribe"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tracing"
	"github.com/drover-dev/drover/internal/trust"
)

// flushTimeout is the time limit for sending the last spans when the hub stops.
const flushTimeout = 3 * time.Second

// registry is a prometheus.Registry, or its substitute in a test.
type registry interface {
	prometheus.Registerer
	prometheus.Gatherer
}

// telemetry contains the metrics, spans and logs that operators use to observe this replica.
// docs/operations/monitoring.md lists them.
type telemetry struct {
	registry registry
	tracer   *tracing.Tracer
	tunnels  *tunnelMetrics
	proxy    *proxyMetrics

	moved      *prometheus.CounterVec
	turnedAway prometheus.Counter
	stopping   atomic.Pointer[time.Time] // when the replica began to shut down; nil before that
}

// newTelemetry creates the configured telemetry. The agent argument is this binary's user agent.
func newTelemetry(
	ctx context.Context, cfg config.Tracing, agent string, members *members.States, log logr.Logger,
) (*telemetry, error) {
	host, _ := os.Hostname() // the pod's name distinguishes the replicas' spans
	service, version, _ := strings.Cut(agent, "/")
	tracer, err := tracing.New(ctx, tracing.Options{
		Endpoint: cfg.Endpoint, Ratio: *cfg.SampleRatio, Service: service, Version: version, Instance: host,
		Environ: os.LookupEnv, Log: log.WithName("tracing"),
	})
	if err != nil {
		return nil, err
	}
	return observe(tracer, members, prometheus.NewRegistry()), nil
}

// observe returns the telemetry of one hub, and registers its metrics.
func observe(tracer *tracing.Tracer, members *members.States, registry registry) *telemetry {
	t := &telemetry{
		registry: registry, tracer: tracer, tunnels: newTunnelMetrics(registry, members), proxy: newProxyMetrics(registry),
		moved: counters("drover_agents_moved_total",
			"Agents asked to open their tunnel to another replica because this one stops.", "result"),
		turnedAway: prometheus.NewCounter(prometheus.CounterOpts{Name: "drover_handshakes_refused_total",
			Help: "Connections that were closed before their TLS handshake because too many were opened at once. Agents " +
				"connect again."}),
	}
	registry.MustRegister(t.moved, t.turnedAway,
		gauge("drover_stopping_seconds", "For how long this replica has been stopping, 0 while it is not.", func() float64 {
			if begun := t.stopping.Load(); begun != nil {
				return time.Since(*begun).Seconds()
			}
			return 0
		}))
	return t
}

// serve counts and traces the users' requests that next serves.
func (t *telemetry) serve(next http.Handler) http.Handler {
	return t.proxy.observe(t.tracer.Entrance(next, describe))
}

// hop traces the requests from other replicas that next serves.
func (t *telemetry) hop(next http.Handler) http.Handler {
	return t.tracer.Continue(next, func(r *http.Request) tracing.About {
		_, path, _ := strings.Cut(r.URL.Path, protocol.PathKubernetes)
		return tracing.Kubernetes(r, path, "replica", "")
	})
}

// watchLinks registers the metrics of the links to other replicas. For each other replica, there should be one link in
// each direction.
func (t *telemetry) watchLinks(links func() (heard, hearing int)) {
	t.registry.MustRegister(
		gauge("drover_peers_heard", "Other replicas that tell this one of their members.",
			func() float64 { heard, _ := links(); return float64(heard) }),
		gauge("drover_peers_hearing", "Other replicas that this one tells of its members.",
			func() float64 { _, hearing := links(); return float64(hearing) }),
	)
}

// watchServer registers the metrics that are read from a server on each scrape.
func (t *telemetry) watchServer(ready func() error, holder *trust.Holder, clusters client.Reader) {
	t.registry.MustRegister(
		gauge("drover_replica_ready", "1 if this replica serves users and agents, else 0.", func() float64 {
			if ready() != nil {
				return 0
			}
			return 1
		}),
		certificates{holder},
		newConditionStates(clusters, v1.ConditionReady, "drover_clusters", "ready"),
		newConditionStates(clusters, v1.ConditionGuardsApplied, "drover_cluster_guards", "applied"),
		newConditionStates(clusters, v1.ConditionAgentUpToDate, "drover_cluster_agents", "up_to_date"),
		newConditionStates(clusters, v1.ConditionRestoreConfirmed, "drover_cluster_restores", "confirmed"),
		newPlanStates(clusters),
	)
}

func (t *telemetry) stop(now time.Time) { t.stopping.CompareAndSwap(nil, &now) }

// movedAgents counts the agents that have opened a tunnel to another replica, and the agents that have not.
func (t *telemetry) movedAgents(moved, stayed int) {
	t.moved.WithLabelValues("moved").Add(float64(moved))
	t.moved.WithLabelValues("stayed").Add(float64(stayed))
}

func (t *telemetry) flush(log logr.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if err := t.tracer.Close(ctx); err != nil {
		log.Error(err, "the last spans were lost")
	}
}

func gauge(name, help string, value func() float64) prometheus.GaugeFunc {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
}

// certificates is a collector for the expiry of the hub's own certificates.
type certificates struct{ *trust.Holder }

func (certificates) desc() *prometheus.Desc {
	return prometheus.NewDesc("drover_certificate_expiry_timestamp_seconds",
		"When a certificate of the hub expires, in seconds since 1970.", []string{"certificate"}, nil)
}

// Describe implements prometheus.Collector.
func (c certificates) Describe(out chan<- *prometheus.Desc) { out <- c.desc() }

// Collect implements prometheus.Collector.
func (c certificates) Collect(out chan<- prometheus.Metric) {
	send := func(name string, expiry time.Time) {
		out <- prometheus.MustNewConstMetric(c.desc(), prometheus.GaugeValue, float64(expiry.Unix()), name)
	}
	if state, ok := c.Authority(); ok {
		if block, _ := pem.Decode(state.Active.Cert); block != nil {
			if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
				send("authority", cert.NotAfter)
			}
		}
	}
	if serving, err := c.GetCertificate(nil); err == nil && serving.Leaf != nil {
		send("serving", serving.Leaf.NotAfter)
	}
}

// withStreams treats the streams of changes as part of the hub's own API. The streams contain the hub's objects, so
// they do not accept tokens for members.
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
