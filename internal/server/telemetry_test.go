// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/drover-dev/drover/agent/direct"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/policies"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/testkit"
)

// listing is a registry that records the names and labels of all metrics, including metrics without a sample.
type listing struct {
	*prometheus.Registry
	names  []string
	labels map[string][]string
}

var (
	fqName         = regexp.MustCompile(`fqName: "([^"]+)"`)
	variableLabels = regexp.MustCompile(`variableLabels: \{([^}]*)\}`)
)

func (l *listing) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		descs := make(chan *prometheus.Desc)
		go func() { defer close(descs); c.Describe(descs) }()
		for desc := range descs {
			name := fqName.FindStringSubmatch(desc.String())[1]
			l.names = append(l.names, name)
			l.labels[name] = strings.Split(variableLabels.FindStringSubmatch(desc.String())[1], ",")
		}
	}
	l.Registry.MustRegister(all...)
}

// seen returns the telemetry of a hub with all optional parts.
func seen(t *testing.T, clusters ...client.Object) (*telemetry, *listing) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	holder, err := trust.New([]string{"https://hub.test"}, nil, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	names := &listing{Registry: prometheus.NewRegistry(), labels: map[string][]string{}}
	o := observe(nil, members.New(logr.Discard(), time.Now).States, names)
	o.watchLinks(func() (heard, hearing int) { return 1, 2 })
	o.watchServer(func() error { return nil }, holder,
		fake.NewClientBuilder().WithScheme(scheme).WithObjects(clusters...).Build())
	if _, err := o.openAudit(config.Audit{}, logr.Discard()); err != nil {
		t.Fatal(err)
	}
	names.MustRegister(&policies.Watch{}) // as watchPolicies does, which needs a manager
	o.subscriptions()
	(&Server{telemetry: o}).Deliveries()
	return o, names
}

// metricName finds names of metrics in expressions and in documents.
var metricName = regexp.MustCompile(`\b(drover|go|process|leader_election|controller_runtime|workqueue|rest_client)_[a-z0-9_]+\b`)

// namesIn returns the metrics that a file in config/ or docs/ names, without the suffixes of histograms.
func namesIn(t *testing.T, file string, known []string) []string {
	t.Helper()
	text, err := os.ReadFile("../../" + file)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, name := range metricName.FindAllString(string(text), -1) {
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, ok := strings.CutSuffix(name, suffix); ok && slices.Contains(known, base) {
				name = base
			}
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func TestMetrics(t *testing.T) {
	_, list := seen(t)
	known := append([]string{
		"leader_election_master_status", // client-go adds it once there is an election
	}, list.names...)
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		known = append(known, family.GetName())
	}
	agents := httptest.NewRecorder()
	new(direct.Endpoint).Metrics().ServeHTTP(agents, httptest.NewRequestWithContext(t.Context(), http.MethodGet,
		"/metrics", nil))
	list.names = append(list.names, metricName.FindAllString(agents.Body.String(), -1)...)
	known = append(known, list.names...)
	for _, file := range []string{"config/prometheus/rules.yaml", "config/prometheus/dashboard.json",
		"config/prometheus/rules_test.yaml"} {
		t.Run("the manager has each metric that is used in "+file, func(t *testing.T) {
			used := namesIn(t, file, known)
			if len(used) < 10 {
				t.Errorf("found only %q, want more metrics", used)
			}
			for _, name := range used {
				if !slices.Contains(known, name) {
					t.Errorf("%s is used but does not exist", name)
				}
			}
		})
	}
	t.Run("each metric of Drover is documented", func(t *testing.T) {
		documented := namesIn(t, "docs/operations/monitoring.md", known)
		for _, name := range list.names {
			if !slices.Contains(documented, name) {
				t.Errorf("%s is missing from docs/operations/monitoring.md", name)
			}
		}
		pages, err := filepath.Glob("../../docs/operations/*.md")
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range pages {
			documented = append(documented, namesIn(t, strings.TrimPrefix(page, "../../"), known)...)
		}
		for _, name := range documented {
			if name == "drover_notice" { // a field of a token response
				continue
			}
			if strings.HasPrefix(name, "drover_") && !slices.Contains(known, name) {
				t.Errorf("%s is in docs/operations but does not exist", name)
			}
		}
	})
	t.Run("each alert has a runbook, and each runbook an alert", func(t *testing.T) {
		rules, err := os.ReadFile("../../config/prometheus/rules.yaml")
		if err != nil {
			t.Fatal(err)
		}
		docs, err := os.ReadFile("../../docs/operations/alerts.md")
		if err != nil {
			t.Fatal(err)
		}
		find := func(pattern, text string) (found []string) {
			for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
				found = append(found, match[1])
			}
			slices.Sort(found)
			return found
		}
		alerts, runbooks := find(`(?m)^  - alert: (\w+)$`, string(rules)), find(`(?m)^### (Drover\w+)$`, string(docs))
		links := slices.Compact(find(
			`runbook_url: https://github\.com/drover-dev/drover/blob/main/docs/operations/alerts\.md#(\w+)\n`, string(rules)))
		var anchors []string
		for _, name := range runbooks {
			anchors = append(anchors, strings.ToLower(name))
		}
		if len(alerts) < 12 || !slices.Equal(links, anchors) {
			t.Errorf("alerts %q link to %q, want links to the runbooks %q", alerts, links, anchors)
		}
	})
}

func TestProxyMetrics(t *testing.T) {
	for name, tt := range map[string]struct {
		method, target string
		status         int
		want           string
	}{
		"a read of a member": {"GET", "/k8s/clusters/a/b/api/v1/pods", 200, "code=200,kind=read,target=member"},
		"a write to the hub": {"POST", "/k8s/local/api/v1/namespaces/x/pods", 201, "code=201,kind=write,target=hub"},
		"a watch":            {"GET", "/k8s/clusters/a/b/api/v1/pods?watch=1", 200, "code=200,kind=watch,target=member"},
		"logs that are followed count as a watch": {
			"GET", "/k8s/clusters/a/b/api/v1/namespaces/x/pods/p/log?follow=true", 200, "code=200,kind=watch,target=member",
		},
		"an exec is a session": {
			"POST", "/k8s/clusters/a/b/api/v1/namespaces/x/pods/p/exec", 200, "code=200,kind=session,target=member",
		},
		"a refused request counts as well": {"GET", "/k8s/clusters/a", 404, "code=404,kind=read,target=member"},
		"a code that does not exist adds no series": {
			"GET", "/k8s/clusters/a/b/version", 799, "code=other,kind=read,target=member",
		},
		"an unknown method adds no series": {
			"BREW", "/k8s/clusters/a/b/version", 405, "code=405,kind=write,target=member",
		},
	} {
		t.Run(name, func(t *testing.T) {
			o, list := seen(t)
			handler := o.serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(tt.status) }))
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(tt.method, tt.target, nil))
			got := testkit.Scrape(t, list)
			if !strings.Contains(got, "drover_proxy_requests_total "+tt.want+" 1\n") {
				t.Errorf("want %q in\n%s", tt.want, got)
			}
			short := strings.Contains(tt.want, "kind=read") || strings.Contains(tt.want, "kind=write")
			if strings.Contains(got, "drover_proxy_request_seconds ") != short {
				t.Errorf("want only short requests to be timed in\n%s", got)
			}
		})
	}
	t.Run("an aborted request does not count as a 200, and is no longer in progress", func(t *testing.T) {
		o, list := seen(t)
		handler := o.serve(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
		func() {
			defer func() { _ = recover() }()
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/k8s/local/api", nil))
		}()
		got := testkit.Scrape(t, list)
		for _, want := range []string{"drover_proxy_requests_total code=none,kind=read,target=hub 1\n", "drover_proxy_requests_under_way kind=read,target=hub 0\n"} {
			if !strings.Contains(got, want) {
				t.Errorf("want %q in\n%s", want, got)
			}
		}
	})
}

func TestSplit(t *testing.T) {
	for path, want := range map[string][2]string{
		"/k8s/clusters/a/b/api/v1": {"a/b", "/api/v1"},
		"/k8s/clusters/a/b":        {"a/b", ""},
		"/k8s/clusters/a":          {"a", ""},
		"/k8s/clusters//":          {"/", ""},
		"/k8s/local/api":           {"", "/api"},
		"/k8s/local":               {"", ""},
	} {
		if cluster, rest := split(path); cluster != want[0] || rest != want[1] {
			t.Errorf("%s: %q, %q, want %q", path, cluster, rest, want)
		}
	}
}

func TestScrape(t *testing.T) {
	cluster := func(name string, conditions ...metav1.Condition) *v1.Cluster {
		return &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name},
			Status: v1.ClusterStatus{Conditions: conditions}}
	}
	lost := metav1.Condition{Type: v1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1.ReasonTunnelLost}
	unguarded := metav1.Condition{Type: v1.ConditionGuardsApplied, Status: metav1.ConditionFalse,
		Reason: v1.ReasonConflict}
	waiting := metav1.Condition{Type: v1.ConditionAgentUpToDate, Status: metav1.ConditionFalse,
		Reason: v1.ReasonAgentWaiting}
	restored := metav1.Condition{Type: v1.ConditionRestoreConfirmed, Status: metav1.ConditionFalse,
		Reason: v1.ReasonHubRestored}
	stalled := &v1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "x"},
		Status: v1.PlanStatus{Conditions: []metav1.Condition{
			{Type: v1.ConditionComplete, Status: metav1.ConditionFalse, Reason: v1.ReasonNodeFailed}, {Type: v1.ConditionStalled,
				Status: metav1.ConditionTrue}}}}
	stalled.Spec.ClusterName = "x"
	own := &v1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "own"}}
	o, list := seen(t, cluster("x", lost, unguarded, waiting), cluster("y", lost), cluster("z", restored), stalled, own)
	for _, want := range []string{
		"drover_clusters ready=False,reason=TunnelLost 2", "drover_clusters ready=Unknown,reason=Pending 1",
		"drover_cluster_guards applied=False,reason=Conflict 1", "drover_cluster_guards applied=Unknown,reason=Pending 2",
		"drover_cluster_agents reason=AgentWaiting,up_to_date=False 1", "drover_cluster_agents " +
			"reason=Pending,up_to_date=Unknown 2",
		"drover_cluster_restores confirmed=False,reason=HubRestored 1", "drover_cluster_restores " +
			"confirmed=Unknown,reason=Pending 2",
		"drover_plans reason=NodeFailed,stalled=true 1", "drover_replica_ready  1", "drover_stopping_seconds  0",
		"drover_peers_heard  1", "drover_peers_hearing  2",
	} {
		if !strings.Contains(testkit.Scrape(t, list), want+"\n") {
			t.Errorf("%q is not in\n%s", want, testkit.Scrape(t, list))
		}
	}
	o.stop(time.Now().Add(-time.Hour))
	o.stop(time.Now())
	if !regexp.MustCompile(`drover_stopping_seconds +360\d`).MatchString(testkit.Scrape(t, list)) {
		t.Errorf("want an hour in drover_stopping_seconds of %v", testkit.Scrape(t, list))
	}
}

func TestMetricNamesTheAwaitedOwners(t *testing.T) {
	o, list := seen(t)
	list.Registry = prometheus.NewRegistry()
	o.registry = list
	observer := (&Server{telemetry: o}).Deliveries()
	var keys []delivery.Key
	for i := range 2 * maxAwaited {
		keys = append(keys, delivery.Key{Kind: "crtb", Namespace: "team", Name: fmt.Sprintf("b%02d", i)})
	}
	observer.Awaited(keys)
	got := testkit.Scrape(t, list)
	if want := "drover_sets_awaited kind=crtb,owner=b00,workspace=team 1\n"; !strings.Contains(got, want) || strings.Count(got, "drover_sets_awaited") != maxAwaited {
		t.Errorf("want %q and a total of %d owners in\n%s", want, maxAwaited, got)
	}
	observer.Awaited(nil)
	if got := testkit.Scrape(t, list); strings.Contains(got, "drover_sets_awaited") {
		t.Errorf("no owner is awaited any longer, want none in\n%s", got)
	}
}

func TestCertificates(t *testing.T) {
	now := time.Now()
	holder, err := trust.New([]string{"https://hub.test"}, nil, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(certificates{holder})
	if got := testkit.Scrape(t, registry); got != "" {
		t.Errorf("before there is a certificate:\n%s", got)
	}
	authority, err := trust.NewAuthority(now)
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{}
	trust.WriteSecret(secret, trust.State{Active: authority})
	if err := holder.LoadAuthority(secret); err != nil {
		t.Fatal(err)
	}
	got := testkit.Scrape(t, registry)
	for name, days := range map[string]int{"authority": 3650, "serving": 30} {
		line := regexp.MustCompile("(?m)^drover_certificate_expiry_timestamp_seconds certificate=" + name +
			" (.*)$").FindStringSubmatch(got)
		if line == nil {
			t.Errorf("want %s in\n%s", name, got)
			continue
		}
		at, err := strconv.ParseFloat(line[1], 64)
		if left := (at - float64(now.Unix())) / 86400; err != nil || math.Abs(left-float64(days)) > 5 {
			t.Errorf("%s expires in %v days, want %d, %v", name, left, days, err)
		}
	}
}
