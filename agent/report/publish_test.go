// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/internal/protocol"
)

// pace runs the publishing part of a Reporter in a bubble. The test feeds it manually, and pace records when a report
// came.
type pace struct {
	*Reporter
	start time.Time
	at    []time.Duration
}

func runPace(t *testing.T, feed func(*pace)) []time.Duration {
	t.Helper()
	p := &pace{start: time.Now()}
	p.Reporter = New(Options{SettingsDigest: func() string { return "" }, Log: logr.Discard()})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); p.publish(ctx) }()
	noted := make(chan struct{})
	go func() {
		defer close(noted)
		p.options.Stream.ServeHTTP(p, httptest.NewRequestWithContext(ctx, http.MethodGet, protocol.PathReport, nil))
	}()
	feed(p)
	pass(10 * time.Minute)
	cancel()
	<-done
	<-noted
	return p.at
}

// Write records when a report came. It implements http.ResponseWriter, as do Header, WriteHeader and Flush.
func (p *pace) Write(line []byte) (int, error) {
	p.at = append(p.at, time.Since(p.start))
	return len(line), nil
}

func (p *pace) Header() http.Header { return http.Header{} }
func (p *pace) WriteHeader(int)     {}
func (p *pace) Flush()              {}

// pass advances the bubble's time.
func pass(d time.Duration) { <-time.After(d) }

// know makes everything except pods known.
func (p *pace) know() {
	p.begin()
	p.setVersion("v1.36.3", nil)
	_ = p.nodes.Replace(nil, "1")
	var v healthState
	v.observe("", p.start)
	p.setHealth(v)
}

func (p *pace) addPod(name string) {
	_ = p.pods.Add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "x"}})
}

func (p *pace) addNode(name string) {
	_ = p.nodes.Add(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.NodeStatus{Capacity: corev1.ResourceList{"cpu": resource.MustParse("1")}},
	})
}

func TestPace(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		feed func(*pace)
		want []time.Duration
	}{
		"the first report is sent as soon as everything is known": {
			func(p *pace) { p.know(); _ = p.pods.Replace(nil, "1") }, []time.Duration{0},
		},
		"it waits a quarter of a second for pods, once": {
			func(p *pace) { pass(time.Second); p.know() }, []time.Duration{1250 * time.Millisecond},
		},
		"it is sent after five seconds even if something is missing": {
			func(p *pace) {}, []time.Duration{5 * time.Second},
		},
		"nodes are reported 200 ms after the first change, together": {
			func(p *pace) {
				p.know()
				_ = p.pods.Replace(nil, "1")
				pass(time.Second)
				for i := range 5 {
					p.addNode(fmt.Sprint(i))
					pass(30 * time.Millisecond)
				}
			}, []time.Duration{0, 1200 * time.Millisecond},
		},
		"requests of pods are reported at most once a minute": {
			func(p *pace) {
				p.know()
				_ = p.pods.Replace(nil, "1")
				for i := range 150 { // one pod each second
					pass(time.Second)
					p.addPod(fmt.Sprint(i))
				}
			}, []time.Duration{0, time.Minute, 2 * time.Minute, 3 * time.Minute},
		},
		"after a quiet time a pod is reported within seconds": {
			func(p *pace) {
				p.know()
				_ = p.pods.Replace(nil, "1")
				pass(5 * time.Minute)
				p.addPod("a")
			}, []time.Duration{0, 5*time.Minute + 2*time.Second},
		},
		"events without a change are not reported": {
			func(p *pace) {
				p.know()
				_ = p.pods.Replace(nil, "1")
				pass(time.Second)
				p.addNode("a")
				pass(time.Minute)
				for range 100 {
					p.addNode("a") // a heartbeat of the node
					pass(time.Second)
				}
			}, []time.Duration{0, 1200 * time.Millisecond},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				if got := runPace(t, tc.feed); fmt.Sprint(got) != fmt.Sprint(tc.want) {
					t.Errorf("got reports at %v, want %v", got, tc.want)
				}
			})
		})
	}
}

// BenchmarkTally measures how much memory 5,000 nodes and 20,000 pods cost. Run it with
//
//	go test ./agent/report -run '^$' -bench Tally -benchtime 5x
func BenchmarkTally(b *testing.B) {
	for b.Loop() {
		r := New(Options{SettingsDigest: func() string { return "" }, Log: logr.Discard()})
		before := heap()
		for i := range 5_000 {
			r.addNodeNamed(fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", i/256, i%256))
		}
		for i := range 20_000 {
			_ = r.pods.Add(&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("some-deployment-7f9c4d5b6-%05d", i), Namespace: "some-namespace"},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{"cpu": resource.MustParse("125m"), "memory": resource.MustParse("256Mi")},
				}}}},
			})
		}
		b.ReportMetric(float64(heap()-before)/(1<<20), "MiB-kept")
		if r.build(nil).Nodes == nil && len(r.pods.Values()) != 20_000 {
			b.Fatal("lost some")
		}
	}
}

func (r *Reporter) addNodeNamed(name string) { (&pace{Reporter: r}).addNode(name) }
