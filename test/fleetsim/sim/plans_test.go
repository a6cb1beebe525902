// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

func TestAPlanOfASetIsCompleteWhenItsTimeIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Sim{}
		a := newAgent(s, Member{})
		begins := func(paused bool) int {
			t.Helper()
			put, err := set.New("plan/p", nil, set.Content{Objects: []*unstructured.Unstructured{{Object: map[string]any{
				"apiVersion": v1.GroupVersion.String(), "kind": "Plan", "spec": map[string]any{"version": "v2", "paused": paused},
				"metadata": map[string]any{"name": "p", "annotations": map[string]any{v1.AnnotationRevision: "r"}},
			}}}})
			if err != nil {
				t.Fatal(err)
			}
			answer := httptest.NewRecorder()
			a.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPut, protocol.SetPath("plan/p"), bytes.NewReader(put.JSON())))
			if answer.Code != http.StatusOK {
				t.Fatalf("got %v, %v, want 200", answer.Code, answer.Body)
			}
			return len(s.Runs())
		}
		if begun := begins(true); begun != 0 {
			t.Errorf("a plan that is paused has begun %d times", begun)
		}
		for range 2 { // the same again changes nothing
			if begun := begins(false); begun != 1 || s.Runs()[0].Plan != "p" || s.Runs()[0].Version != "v2" {
				t.Errorf("begun are %+v, want the plan, once", s.Runs())
			}
		}
		stream := newPlanReader(t, a)
		for second, want := range []int32{0, PlanNodes / 2, PlanNodes} {
			status := stream.next(t)
			if status.Revision != "r" || status.Nodes.Complete != want {
				t.Errorf("after %d s: %+v, want %d nodes", second, status, want)
			}
			if complete := meta.IsStatusConditionTrue(status.Conditions, v1.ConditionComplete); complete != (want == PlanNodes) {
				t.Errorf("after %d s: complete is %t", second, complete)
			}
		}
		if a.plans.remove("plan/p"); a.plans.topic.Get("p") != nil {
			t.Error("a plan that was taken away is still reported")
		}
	})
}

// planReader reads an agent's reports about plans.
type planReader struct{ events chan protocol.PlanEvent }

func newPlanReader(t *testing.T, a *agent) *planReader {
	t.Helper()
	read, write := io.Pipe()
	r := &planReader{events: make(chan protocol.PlanEvent)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.ServeHTTP(&pipeWriter{ResponseRecorder: httptest.NewRecorder(), pipe: write}, httptest.NewRequestWithContext(ctx, http.MethodGet, protocol.StreamPath(protocol.SubjectPlans), nil))
		_ = write.Close()
	}()
	go func() {
		defer close(r.events)
		for decoder := json.NewDecoder(read); ; {
			var line protocol.Line
			if decoder.Decode(&line) != nil {
				return
			}
			select {
			case r.events <- *line.Plan:
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return r
}

// next returns the next status.
func (r *planReader) next(t *testing.T) v1.PlanStatus {
	t.Helper()
	for e := range r.events {
		if e.State != nil {
			return e.State.Status
		}
	}
	t.Fatal("the stream ended")
	return v1.PlanStatus{}
}

// pipeWriter writes responses into a pipe.
type pipeWriter struct {
	*httptest.ResponseRecorder
	pipe *io.PipeWriter
}

func (w *pipeWriter) Write(b []byte) (int, error) { return w.pipe.Write(b) }
