// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/proxy"
	"github.com/drover-dev/drover/internal/request"
	"github.com/drover-dev/drover/internal/tracing"
)

// Kinds of requests, used as label values. Read and write requests are short, and the other kinds are long-running.
const (
	kindRead    = "read"
	kindWrite   = "write"
	kindWatch   = "watch"   // including logs that are followed
	kindSession = "session" // exec, attach, port-forward and any other upgrade
)

// proxyMetrics observes users' requests. It has no labels for users or clusters, because there may be thousands of
// both.
type proxyMetrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	underWay *prometheus.GaugeVec
	stalled  *prometheus.CounterVec
	waited   prometheus.Histogram
	refused  *prometheus.CounterVec
	backlog  *prometheus.CounterVec
}

func newProxyMetrics(registry prometheus.Registerer) *proxyMetrics {
	m := &proxyMetrics{
		requests: counters("drover_proxy_requests_total", "Requests of users that have ended.", "target", "kind", "code"),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "drover_proxy_request_seconds",
			Help:    "From the head of a user's request to the end of its response. Only requests that are not meant to last.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 12)}, []string{"target", "kind"}),
		underWay: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "drover_proxy_requests_under_way",
			Help: "Requests of users in progress, including waiting requests."}, []string{"target", "kind"}),
		stalled: counters("drover_proxy_stalled_total",
			"Users who were cut off because they stalled, by the side that they held up.", "side"),
		waited: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "drover_limit_wait_seconds",
			Help:    "How long requests without room waited for it, whether or not they got it.",
			Buckets: prometheus.ExponentialBuckets(0.005, 3, 8)}),
		refused: counters("drover_limit_refused_total", "Requests answered with 429, by what is full.", "kind", "scope"),
		backlog: counters("drover_limit_cut_total",
			"Responses cut because too much was held for users who do not read, by the limit that was reached.", "scope"),
	}
	registry.MustRegister(m.requests, m.seconds, m.underWay, m.stalled, m.waited, m.refused, m.backlog)
	return m
}

func (m *proxyMetrics) observer() proxy.Observer {
	return proxy.Observer{Cut: func(side proxy.Side) { m.stalled.WithLabelValues(string(side)).Inc() }}
}

func (m *proxyMetrics) limits() limit.Observers {
	refused := func(kind string) func(limit.Scope) {
		return func(scope limit.Scope) { m.refused.WithLabelValues(kind, string(scope)).Inc() }
	}
	return limit.Observers{
		Short: limit.Observer{Queued: func(d time.Duration) { m.waited.Observe(d.Seconds()) }, Refused: refused("short")},
		Long:  limit.Observer{Refused: refused("long")},
		Cut:   func(scope limit.Scope) { m.backlog.WithLabelValues(string(scope)).Inc() },
	}
}

// observe counts and times the requests that next serves.
func (m *proxyMetrics) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		target, kind := labels(r)
		begun := time.Now()
		underWay := m.underWay.WithLabelValues(target, kind)
		underWay.Inc()
		recorder := request.NewRecorder(w)
		defer func() {
			underWay.Dec()
			m.requests.WithLabelValues(target, kind, code(recorder.Status())).Inc()
			if (kind == kindRead || kind == kindWrite) && recorder.Status() != request.Aborted {
				m.seconds.WithLabelValues(target, kind).Observe(time.Since(begun).Seconds())
			}
		}()
		next.ServeHTTP(recorder, r)
		recorder.Done()
	})
}

func labels(r *http.Request) (target, kind string) {
	cluster, path := split(r.URL.Path)
	target = "member"
	if cluster == "" {
		target = "hub"
	}
	info := request.Of(r, path)
	switch {
	case info.Verb == "watch" || info.Subresource == "log" && info.Long:
		return target, kindWatch
	case info.Long:
		return target, kindSession
	case r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions:
		return target, kindRead
	}
	return target, kindWrite
}

// split divides a path on the proxy into the Cluster's "namespace/name" and the path in the Cluster's API. The first
// part is empty for the hub itself. split does not validate the parts, because the proxy validates them.
func split(path string) (cluster, rest string) {
	path, ok := strings.CutPrefix(path, proxy.PathClusters)
	if !ok {
		return "", strings.TrimPrefix(path, proxy.PathLocal)
	}
	end := len(path)
	if slash := strings.IndexByte(path, '/'); slash >= 0 {
		if next := strings.IndexByte(path[slash+1:], '/'); next >= 0 {
			end = slash + 1 + next
		}
	}
	return path[:end], path[end:]
}

// code returns a label value for a status code. Members choose their status codes, so all unknown codes share one
// series.
func code(status int) string {
	switch {
	case status == request.Aborted:
		return "none"
	case http.StatusText(status) == "":
		return "other"
	}
	return strconv.Itoa(status)
}

// describe returns the span attributes of a user's request.
func describe(r *http.Request) tracing.About {
	cluster, path := split(r.URL.Path)
	return tracing.Kubernetes(r, path, "hub", cluster)
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}
