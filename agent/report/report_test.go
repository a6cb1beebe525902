// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/agent/report"
	"github.com/drover-dev/drover/agent/stream"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/agenttest"
)

func node(name string, ready corev1.ConditionStatus) *corev1.Node {
	have := corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("16Gi"),
		"pods": resource.MustParse("110")}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{
			Capacity: have, Allocatable: have, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}},
		},
	}
}

func pod(name, cpu string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}},
		}}},
	}
}

// world is an API server and a Reporter that watches it.
type world struct {
	api      *agenttest.APIServer
	reporter *report.Reporter
	stream   *bufio.Reader
	digest   atomic.Value
	logged   *strings.Builder
	mu       *sync.Mutex
	stop     context.CancelFunc
	end      func()             // stops the Reporter, and returns when nothing is running
	leading  context.CancelFunc // ends the leadership that start or lead started
	lead     func()             // starts another leadership
}

func prepare(t *testing.T) *world {
	t.Helper()
	w := &world{api: agenttest.NewAPIServer(t), logged: &strings.Builder{}, mu: &sync.Mutex{}}
	w.digest.Store("")
	return w
}

func (w *world) log() logr.Logger {
	return funcr.New(func(_, args string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		fmt.Fprintln(w.logged, args)
	}, funcr.Options{})
}

// start starts a Reporter that leads.
func (w *world) start(t *testing.T) {
	t.Helper()
	w.startWith(t, true)
}

func (w *world) startWith(t *testing.T, leads bool) {
	t.Helper()
	client, err := kube.New(w.api.Config())
	if err != nil {
		t.Fatal(err)
	}
	reports := stream.New()
	w.reporter = report.New(report.Options{
		Client: client.REST, Stream: reports, AgentVersion: "v0.1.0", ClusterUID: "uid", Log: w.log(),
		SettingsDigest: func() string { return w.digest.Load().(string) },
		Deployment:     func() *protocol.Deployment { return &protocol.Deployment{Digest: "digest"} },
	})
	ctx, cancel := context.WithCancel(t.Context())
	w.stop = cancel
	ended := make(chan struct{})
	go func() { defer close(ended); w.reporter.Run(ctx) }()
	var terms sync.WaitGroup
	t.Cleanup(terms.Wait)
	w.lead = func() {
		leadership, end := context.WithCancel(ctx)
		w.leading = end
		terms.Go(func() { w.reporter.Lead(leadership) })
	}
	w.end = func() { cancel(); <-ended; terms.Wait() }
	if leads {
		w.lead()
	} else {
		w.reporter.Follow()
	}
	server := httptest.NewServer(reports)
	t.Cleanup(func() { cancel(); <-ended; server.Close() })
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	w.stream = bufio.NewReader(resp.Body)
}

func (w *world) next(t *testing.T) protocol.Report {
	t.Helper()
	line, err := w.stream.ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var r protocol.Report
	if err := json.Unmarshal(line, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// await returns the first report that is as expected. Earlier reports may lack data that a busy machine has not read
// yet. TestPace checks the exact times.
func (w *world) await(t *testing.T, wanted func(protocol.Report) bool) protocol.Report {
	t.Helper()
	for {
		if r := w.next(t); wanted(r) {
			return r
		}
	}
}

func versioned(r protocol.Report) bool { return r.Version != "" }

// awaitPods returns the first report with this many pods.
func (w *world) awaitPods(t *testing.T, pods string) protocol.Report {
	t.Helper()
	return w.await(t, func(r protocol.Report) bool { return r.Nodes != nil && r.Nodes.Requested["pods"] == pods })
}

func TestReporter(t *testing.T) {
	t.Parallel()
	t.Run("a report has all that is known", func(t *testing.T) {
		t.Parallel()
		w := prepare(t)
		w.api.Put(t, "/api/v1/nodes/a", node("a", corev1.ConditionTrue))
		w.api.Put(t, "/api/v1/nodes/b", node("b", corev1.ConditionFalse))
		w.api.Put(t, "/api/v1/pods/p", pod("p", "250m"))
		w.start(t)
		r := w.awaitPods(t, "1")
		want := protocol.Nodes{
			Total: 2, Ready: 1,
			Capacity:    map[string]string{"cpu": "8", "memory": "32Gi", "pods": "220"},
			Allocatable: map[string]string{"cpu": "8", "memory": "32Gi", "pods": "220"},
			Requested:   map[string]string{"cpu": "250m", "pods": "1"},
		}
		if r.Nodes == nil || fmt.Sprint(*r.Nodes) != fmt.Sprint(want) {
			t.Errorf("nodes %+v, want %+v", r.Nodes, want)
		}
		if r.Version != "v1.36.3" || r.Distribution != "kubernetes" || !r.Health.Healthy || r.Protocol != protocol.Version ||
			r.ClusterUID != "uid" {
			t.Errorf("got %+v", r)
		}
	})

	t.Run("changes at the same time become one report, and events without a change none", func(t *testing.T) {
		t.Parallel()
		w := prepare(t)
		w.api.Put(t, "/api/v1/nodes/a", node("a", corev1.ConditionTrue))
		w.start(t)
		w.await(t, func(r protocol.Report) bool { return r.Nodes != nil })
		start := time.Now()
		w.api.Put(t, "/api/v1/nodes/a", node("a", corev1.ConditionTrue)) // a heartbeat
		for i := range 10 {
			name := fmt.Sprintf("n%d", i)
			w.api.Put(t, "/api/v1/nodes/"+name, node(name, corev1.ConditionTrue))
		}
		total, reports := int32(1), 0
		for ; total < 11; reports++ {
			r := w.next(t)
			if r.Nodes.Total <= total {
				t.Errorf("got a report of %d nodes after one of %d, want none without a change", r.Nodes.Total, total)
			}
			total = r.Nodes.Total
		}
		// TestPace checks the exact times. One report may have been due when the first node was added.
		if most := 1 + int(time.Since(start)/(200*time.Millisecond)); reports > most {
			t.Errorf("10 nodes came in %d reports, want at most %d: one for each 200 ms", reports, most)
		}
		w.api.Delete("/api/v1/nodes/a")
		if r := w.next(t); r.Nodes.Total != 10 {
			t.Errorf("the report has %d nodes after one was deleted, want 10", r.Nodes.Total)
		}
	})

	t.Run("requests of pods are reported later", func(t *testing.T) {
		t.Parallel()
		w := prepare(t)
		w.api.Put(t, "/api/v1/pods/p", pod("p", "1"))
		w.start(t)
		w.awaitPods(t, "1")
		w.api.Put(t, "/api/v1/pods/q", pod("q", "1"))
		w.api.Put(t, "/api/v1/nodes/a", node("a", corev1.ConditionTrue))
		if r := w.next(t); r.Nodes.Total != 1 || r.Nodes.Requested["pods"] != "1" {
			t.Errorf("got %+v", r.Nodes)
		}
	})

	t.Run("settings show at once", func(t *testing.T) {
		t.Parallel()
		w := prepare(t)
		w.start(t)
		w.next(t)
		w.digest.Store("abc")
		w.reporter.Touch()
		w.await(t, func(r protocol.Report) bool { return r.SettingsDigest == "abc" })
	})

	t.Run("nodes that may not be listed are missing and logged once", func(t *testing.T) {
		t.Parallel()
		w := prepare(t)
		w.api.Hook = func(rw http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/api/v1/nodes" {
				return false
			}
			http.Error(rw, `{"kind":"Status","apiVersion":"v1","code":403,"reason":"Forbidden"}`, http.StatusForbidden)
			return true
		}
		w.start(t)
		if r := w.await(t, versioned); r.Nodes != nil || r.Version != "v1.36.3" || !r.Health.Healthy {
			t.Errorf("got %+v", r)
		}
		w.end() // the report does not wait until the error has been logged
		if n := strings.Count(w.logged.String(), `"resource"="nodes"`); n != 1 {
			t.Errorf("logged %d times, want once:\n%s", n, w.logged)
		}
	})

	t.Run("an unhealthy API server is reported with the checks that fail", func(t *testing.T) {
		t.Parallel()
		w := prepare(t)
		w.api.Hook = func(rw http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/readyz" {
				return false
			}
			http.Error(rw, "[+]ping ok\n[-]etcd failed: reason withheld", http.StatusInternalServerError)
			return true
		}
		w.start(t)
		unhealthy := func(r protocol.Report) bool { return r.Health.Message != "" }
		if r := w.await(t, unhealthy); r.Health.Healthy || !strings.Contains(r.Health.Message, "etcd") {
			t.Errorf("got %+v", r.Health)
		}
	})

	t.Run("a replica that does not lead watches nothing and reports version and health", func(t *testing.T) {
		t.Parallel()
		w := prepare(t)
		w.startWith(t, false)
		if r := w.await(t, versioned); r.Leader || r.Nodes != nil || r.Distribution != "" || r.Deployment != nil ||
			r.Version != "v1.36.3" || !r.Health.Healthy {
			t.Errorf("got %+v", r)
		}
		for _, request := range w.api.Seen() {
			if strings.Contains(request, "/nodes") || strings.Contains(request, "/pods") {
				t.Errorf("got the request %s, want only health and version", request)
			}
		}
	})

	t.Run("a new leader reports nodes once pods are known, and removes them when it stops leading", func(t *testing.T) {
		t.Parallel()
		w := prepare(t)
		w.api.Put(t, "/api/v1/nodes/a", node("a", corev1.ConditionTrue))
		w.api.Put(t, "/api/v1/pods/p", pod("p", "250m"))
		w.startWith(t, false)
		w.next(t)
		for range 2 {
			w.lead()
			r := w.next(t)
			for r.Nodes == nil && r.Leader {
				r = w.next(t)
			}
			if !r.Leader || r.Nodes.Total != 1 || r.Nodes.Requested["cpu"] != "250m" || r.Distribution != "kubernetes" ||
				r.Deployment == nil || r.Deployment.Digest != "digest" {
				t.Errorf("got %+v", r)
			}
			w.leading()
			if r := w.next(t); r.Leader || r.Nodes != nil || r.Deployment != nil {
				t.Errorf("got %+v", r)
			}
		}
	})

	t.Run("a stream ends cleanly with the Reporter", func(t *testing.T) {
		t.Parallel()
		w := prepare(t)
		w.start(t)
		w.next(t)
		w.stop()
		if _, err := w.stream.ReadByte(); err != io.EOF {
			t.Errorf("got %v", err)
		}
	})
}
