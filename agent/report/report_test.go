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

	"github.com/drover-dev/drover/agent/agenttest"
	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/agent/report"
	"github.com/drover-dev/drover/internal/protocol"
)

func node(name string, ready corev1.ConditionStatus) *corev1.Node {
	have := corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("16Gi"), "pods": resource.MustParse("110")}
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
	leading  context.CancelFunc // ends the leadership that start begins
	lead     func()             // begins another
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
	w.reporter = report.New(report.Options{
		Client: client.REST, AgentVersion: "v0.1.0", ClusterUID: "uid", Log: w.log(),
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
	if leads {
		w.lead()
	} else {
		w.reporter.Follow()
	}
	server := httptest.NewServer(w.reporter)
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

func TestReporter(t *testing.T) {
	t.Parallel()
	t.Run("the first report has all of it and comes at once", func(t *testing.T) {
		t.Parallel()
		w := prepare(t)
		w.api.Put(t, "/api/v1/nodes/a", node("a", corev1.ConditionTrue))
		w.api.Put(t, "/api/v1/nodes/b", node("b", corev1.ConditionFalse))
		w.api.Put(t, "/api/v1/pods/p", pod("p", "250m"))
		start := time.Now()
		w.start(t)
		r := w.next(t)
		if took := time.Since(start); took > time.Second {
			t.Errorf("took %s", took)
		}
		want := protocol.Nodes{
			Total: 2, Ready: 1,
			Capacity:    map[string]string{"cpu": "8", "memory": "32Gi", "pods": "220"},
			Allocatable: map[string]string{"cpu": "8", "memory": "32Gi", "pods": "220"},
			Requested:   map[string]string{"cpu": "250m", "pods": "1"},
		}
		if r.Nodes == nil || fmt.Sprint(*r.Nodes) != fmt.Sprint(want) {
			t.Errorf("nodes %+v, want %+v", r.Nodes, want)
		}
		if r.Version != "v1.36.3" || r.Distribution != "kubernetes" || !r.Health.Healthy || r.Protocol != protocol.Version || r.ClusterUID != "uid" {
			t.Errorf("got %+v", r)
		}
	})

	t.Run("changes that come together are one report, and no change is none", func(t *testing.T) {
		t.Parallel()
		w := prepare(t)
		w.api.Put(t, "/api/v1/nodes/a", node("a", corev1.ConditionTrue))
		w.start(t)
		w.next(t)
		w.api.Put(t, "/api/v1/nodes/a", node("a", corev1.ConditionTrue)) // a heartbeat
		for i := range 10 {
			name := fmt.Sprintf("n%d", i)
			w.api.Put(t, "/api/v1/nodes/"+name, node(name, corev1.ConditionTrue))
		}
		if r := w.next(t); r.Nodes.Total != 11 {
			t.Errorf("got %d nodes, want all in one report", r.Nodes.Total)
		}
		w.api.Delete("/api/v1/nodes/a")
		if r := w.next(t); r.Nodes.Total != 10 {
			t.Errorf("got %d nodes", r.Nodes.Total)
		}
	})

	t.Run("what pods request does not hurry", func(t *testing.T) {
		t.Parallel()
		w := prepare(t)
		w.start(t)
		w.next(t)
		w.api.Put(t, "/api/v1/pods/p", pod("p", "1"))
		w.api.Put(t, "/api/v1/nodes/a", node("a", corev1.ConditionTrue))
		if r := w.next(t); r.Nodes.Total != 1 || len(r.Nodes.Requested) > 0 {
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
		if r := w.next(t); r.SettingsDigest != "abc" {
			t.Errorf("got %q", r.SettingsDigest)
		}
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
		if r := w.next(t); r.Nodes != nil || r.Version != "v1.36.3" || !r.Health.Healthy {
			t.Errorf("got %+v", r)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if n := strings.Count(w.logged.String(), `"resource"="nodes"`); n != 1 {
			t.Errorf("logged %d times:\n%s", n, w.logged)
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
		if r := w.next(t); r.Health.Healthy || !strings.Contains(r.Health.Message, "etcd") {
			t.Errorf("got %+v", r.Health)
		}
	})

	t.Run("a replica that does not lead watches nothing and reports version and health", func(t *testing.T) {
		t.Parallel()
		w := prepare(t)
		w.startWith(t, false)
		if r := w.next(t); r.Leader || r.Nodes != nil || r.Distribution != "" || r.Deployment != nil || r.Version != "v1.36.3" || !r.Health.Healthy {
			t.Errorf("got %+v", r)
		}
		for _, request := range w.api.Seen() {
			if strings.Contains(request, "/nodes") || strings.Contains(request, "/pods") {
				t.Errorf("it asked %s", request)
			}
		}
	})

	t.Run("a replica that begins to lead reports nodes once pods are known too, and one that ends takes them back", func(t *testing.T) {
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

	t.Run("reports are read with GET", func(t *testing.T) {
		t.Parallel()
		answer := httptest.NewRecorder()
		report.New(report.Options{}).ServeHTTP(answer, httptest.NewRequest(http.MethodPost, protocol.PathReport, nil))
		if answer.Code != http.StatusMethodNotAllowed {
			t.Errorf("got %d", answer.Code)
		}
	})
}
