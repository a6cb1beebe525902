// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest/fake"

	"github.com/drover-dev/drover/agent/stream"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// refuser is a fake API server that either refuses or accepts all writes, with a fake clock.
type refuser struct {
	t          *testing.T
	leadership *leadership
	now        time.Time
	takes      bool
	undo       bool // accept writes of nodes without changing anything
	node       *corev1.Node
	tried      map[string][]time.Time // attempts by the resource to write
}

// newRefuser returns a refuser with a runner that knows a Plan and a node.
func newRefuser(t *testing.T) *refuser {
	t.Helper()
	r := &refuser{t: t, now: time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC), tried: map[string][]time.Time{}}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	codecs := serializer.NewCodecFactory(scheme).WithoutConversion()
	r.leadership = newLeadership(Options{
		Client: &fake.RESTClient{Client: fake.CreateHTTPClient(r.answer), NegotiatedSerializer: codecs,
			GroupVersion: schema.GroupVersion{Version: "v1"}},
		Topic: stream.New().Topic(protocol.SubjectPlans), Now: func() time.Time { return r.now }, Log: logr.Discard(),
	})
	r.leadership.watching = true
	plan := &v1.Plan{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: v1.PlansNamespace, UID: "u", Generation: 1,
		ResourceVersion: "1"}}
	plan.Spec.Version, plan.Spec.Upgrade.Image = "v1", "i"
	node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "1", Labels: map[string]string{corev1.LabelHostname: "a"}}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	r.node = node
	for _, err := range []error{r.leadership.plans.Add(plan), r.leadership.nodes.Add(node)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func (r *refuser) answer(req *http.Request) (*http.Response, error) {
	what := "node"
	if strings.HasSuffix(req.URL.Path, "/status") {
		what = "status"
	}
	r.tried[what] = append(r.tried[what], r.now)
	if r.undo && what == "node" {
		return response(http.StatusOK, r.node), nil
	}
	if !r.takes || what == "node" {
		return response(http.StatusForbidden, metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		}), nil
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	plan := &v1.Plan{}
	if err := json.Unmarshal(body, plan); err != nil {
		return nil, err
	}
	plan.ResourceVersion = "2"
	return response(http.StatusOK, plan), nil
}

func response(code int, object any) *http.Response {
	body, _ := json.Marshal(object) // objects of these types always marshal
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(body))}
}

// pass runs a pass each time that one is due, and once in between as if something had changed.
func (r *refuser) pass(times int) {
	r.t.Helper()
	for range times {
		next := r.leadership.pass(r.t.Context())
		if !next.After(r.now) {
			r.t.Fatalf("at %s the next time is %s", r.now, next)
		}
		wait := next.Sub(r.now)
		r.now = r.now.Add(wait / 2)
		r.leadership.pass(r.t.Context())
		r.now = next
	}
}

// gaps returns the seconds between the attempts.
func (r *refuser) gaps(what string) []float64 {
	var gaps []float64
	for i, at := range r.tried[what][1:] {
		gaps = append(gaps, at.Sub(r.tried[what][i]).Seconds())
	}
	return gaps
}

func TestRefusedWritesAreRetriedWithBackoff(t *testing.T) {
	want := []float64{1, 2, 4, 8, 16, 32, 60, 60}
	t.Run("a step and a status, even if other changes come often", func(t *testing.T) {
		r := newRefuser(t)
		r.pass(9)
		for _, what := range []string{"node", "status"} {
			if got := r.gaps(what); !slices.Equal(got, want) {
				t.Errorf("the %s: got attempts %v seconds apart, want %v", what, got, want)
			}
		}
	})
	t.Run("a step that is accepted but changes nothing", func(t *testing.T) {
		r := newRefuser(t)
		r.undo = true
		r.pass(9)
		got := slices.DeleteFunc(r.gaps("node"), func(gap float64) bool { return gap == 0 })
		if !slices.Equal(got, want) {
			t.Errorf("got attempts %v seconds apart, want %v", got, want)
		}
	})
	t.Run("after an accepted status, a refused one is retried soon", func(t *testing.T) {
		r := newRefuser(t)
		r.pass(6)
		r.takes = true
		r.pass(1)
		if c := r.leadership.planState("u"); c.status != (backoff{}) || c.steps == (backoff{}) {
			t.Errorf("got the backoff %+v of the status and %+v of steps, want both reset", c.status, c.steps)
		}
	})
	t.Run("the release of a node whose Plan is gone", func(t *testing.T) {
		r := newRefuser(t)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b", ResourceVersion: "2", Annotations: map[string]string{
			v1.PlanLabel("gone"): `{"uid":"x","since":"2026-11-20T00:00:00Z"}`,
		}}}
		if err := r.leadership.nodes.Replace([]any{node}, "2"); err != nil {
			t.Fatal(err)
		}
		if err := r.leadership.plans.Replace(nil, "2"); err != nil {
			t.Fatal(err)
		}
		r.pass(9)
		if got := r.gaps("node"); !slices.Equal(got, want) {
			t.Errorf("got attempts %v seconds apart, want %v", got, want)
		}
	})
}
