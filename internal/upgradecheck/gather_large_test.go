// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package upgradecheck_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/internal/upgradecheck"
)

// fake is an API server with one node, equal pods and equal budgets, without TLS. All other lists are empty.
type fake struct {
	pods, budgets int
	pod           corev1.Pod
	budget        policyv1.PodDisruptionBudget
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body any = map[string]any{"items": []any{}}
	switch r.URL.Path {
	case "/version":
		body = apiversion.Info{GitVersion: "v1.35.2"}
	case "/metrics":
		return
	case "/api/v1/nodes":
		body = corev1.NodeList{Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "first",
			Labels: map[string]string{corev1.LabelHostname: "first"}}}}}
	case "/api/v1/pods":
		body = pageOf(r, f.pods, f.pod)
	case "/apis/policy/v1/poddisruptionbudgets":
		body = pageOf(r, f.budgets, f.budget)
	}
	raw, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	_, _ = w.Write(raw) // the client closes the connection when a page is too large
}

// pageOf returns the page of a list that a request asks for.
func pageOf[T any](r *http.Request, total int, item T) any {
	start, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	end, next := min(start+limit, total), ""
	if end < total {
		next = strconv.Itoa(end)
	}
	return map[string]any{"metadata": map[string]string{"continue": next}, "items": slices.Repeat([]T{item}, end-start)}
}

// gather reads the facts of a fake API server.
func (f *fake) gather(t testing.TB, direct bool) *upgradecheck.Facts {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, QPS: -1}
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	goal, _ := upgradecheck.TargetOf(drainingPlan(), "v1.36.0")
	facts, err := upgradecheck.Gather(t.Context(), upgradecheck.Source{Client: client, Direct: direct}, &goal)
	if err != nil {
		t.Fatal(err)
	}
	return facts
}

func runningPod() corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"}}
	requests := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")}
	p.Spec = corev1.PodSpec{NodeName: "first", Containers: []corev1.Container{{Name: "c", Image: "x",
		Resources: corev1.ResourceRequirements{Requests: requests}}}}
	p.Status.Phase = corev1.PodRunning
	return p
}

func TestLargePodsAreReadInSmallerPages(t *testing.T) {
	f := &fake{pods: 150, pod: runningPod()}
	f.pod.Annotations = map[string]string{"large": strings.Repeat("x", 400<<10)}
	facts := f.gather(t, false)
	if len(facts.Unread) > 0 || facts.Nodes[0].Requested.Pods != 150 {
		t.Errorf("got %d pods and %+v, want 150 pods and all facts", facts.Nodes[0].Requested.Pods, facts.Unread)
	}
}

func TestTheSizeOfSelectorsIsLimited(t *testing.T) {
	f := &fake{}
	f.budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for i := range 1000 {
		f.budget.Spec.Selector.MatchLabels[fmt.Sprintf("label-%d", i)] = strings.Repeat("x", 60)
	}
	for budgets, want := range map[int]bool{50: false, 200: true} { // each selector has about 70 KB
		f.budgets = budgets
		facts := f.gather(t, false)
		if got := slices.ContainsFunc(facts.Unread, func(u upgradecheck.Unread) bool {
			return u.Check == upgradecheck.CheckDisruptionBudgets && strings.Contains(u.Cause, "selectors")
		}); got != want {
			t.Errorf("%d budgets: got %+v, want the selectors refused: %t", budgets, facts.Unread, want)
		}
	}
}

func TestACertificateThatIsNotKnownIsAFinding(t *testing.T) {
	f := &fake{}
	for direct, want := range map[bool]int{true: 1, false: 0} {
		facts := f.gather(t, direct)
		if len(facts.Unread) != want || want > 0 && facts.Unread[0].Check != upgradecheck.CheckCertificates {
			t.Errorf("direct connection: %t: got %+v, want %d findings about the certificate", direct, facts.Unread, want)
		}
	}
}

func BenchmarkGatherOf50000Pods(b *testing.B) {
	f := &fake{pods: 50_000, pod: runningPod()}
	b.ReportAllocs()
	for b.Loop() {
		if got := f.gather(b, false).Nodes[0].Requested.Pods; got != 50_000 {
			b.Fatalf("got %d pods, want 50,000", got)
		}
	}
}
