// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

func TestAPlanOfASetIsCompleteWhenItsTimeIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAgent(&Sim{}, Member{})
		body := `{"id":"plan/p","digest":"1","content":{"objects":[{"apiVersion":"` + v1.GroupVersion.String() + `","kind":"Plan",` +
			`"metadata":{"name":"p","annotations":{"` + v1.AnnotationRevision + `":"r"}}}]}}`
		for range 2 { // the same again changes nothing
			answer := httptest.NewRecorder()
			a.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPut, protocol.SetPath("plan/p"), strings.NewReader(body)))
			if answer.Code != http.StatusOK {
				t.Fatal(answer.Code, answer.Body)
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
	})
}

// planReader reads protocol.PathPlans of an agent.
type planReader struct{ events chan protocol.PlanEvent }

func newPlanReader(t *testing.T, a *agent) *planReader {
	t.Helper()
	read, write := io.Pipe()
	r := &planReader{events: make(chan protocol.PlanEvent)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.ServeHTTP(&pipeWriter{ResponseRecorder: httptest.NewRecorder(), pipe: write}, httptest.NewRequestWithContext(ctx, http.MethodGet, protocol.PathPlans, nil))
		_ = write.Close()
	}()
	go func() {
		defer close(r.events)
		for decoder := json.NewDecoder(read); ; {
			var e protocol.PlanEvent
			if decoder.Decode(&e) != nil {
				return
			}
			select {
			case r.events <- e:
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

// pipeWriter answers into a pipe.
type pipeWriter struct {
	*httptest.ResponseRecorder
	pipe *io.PipeWriter
}

func (w *pipeWriter) Write(b []byte) (int, error) { return w.pipe.Write(b) }
