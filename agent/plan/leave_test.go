// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/nodesim"
)

func TestObjectsThatPlansNeedAreRemovedAndRestored(t *testing.T) {
	t.Parallel()
	s := newEnv(t)
	t.Run("the hub is notified and the agent leaves", func(t *testing.T) { testLeaving(t, s) })
	t.Run("objects that a user removes are restored", func(t *testing.T) { testPutBack(t, s) })
}

func testLeaving(t *testing.T, s *env) {
	t.Run("with the rights of an older manifest the hub learns what to do, and the agent can leave", func(t *testing.T) {
		r := s.run(t, options{wrap: func(next http.RoundTripper) http.RoundTripper { return older{next} }})
		events := listen(t, r)
		hold := (<-events).Hold
		if hold == nil || !strings.Contains(hold.Reason, "apply the manifest of the Cluster again") {
			t.Errorf("got the hold %+v, want it to ask for the manifest", hold)
		}
		if e := <-events; !e.Synced {
			t.Errorf("got the event %+v, want Synced", e)
		}
		if remaining, err := r.Retire(t.Context()); err != nil || len(remaining) > 0 {
			t.Errorf("got remaining %v and the error %v, want none", remaining, err)
		}
		r.stop()
		awaitEvent(t, events, "that changes are no longer reported", func(e protocol.PlanEvent) bool { return e.Stopped })
	})
	r := s.run(t, options{})
	t.Run("the stream has the hub's plans and the hold", func(t *testing.T) { testStream(t, s, r) })
	t.Run("leaving releases nodes and keeps what a user's plan needs", func(t *testing.T) { testLeaveWithPlan(t, s, r) })
	t.Run("without a user's plan nothing remains", func(t *testing.T) { testLeave(t, s, r) })
	t.Run("the next leader of an agent that is being removed restores nothing",
		func(t *testing.T) { testLeadAfterRemoval(t, s) })
}

// older responds as an API server does to an agent whose manifest did not include plans.
type older struct{ next http.RoundTripper }

func (o older) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet {
		return o.next.RoundTrip(r)
	}
	answer := httptest.NewRecorder()
	answer.Header().Set("Content-Type", "application/json")
	answer.WriteHeader(http.StatusForbidden)
	_ = json.NewEncoder(answer).Encode(apierrors.NewForbidden(v1.GroupVersion.WithResource("plans").GroupResource(), "x",
		errors.New("no")).Status())
	return answer.Result(), nil
}

// listen reads the stream of plans until it ends.
func listen(t *testing.T, r *runner) <-chan protocol.PlanEvent {
	t.Helper()
	server := httptest.NewServer(r.stream)
	t.Cleanup(server.Close)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel) // runs before the server closes, because that waits for streams
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+protocol.StreamPath(protocol.SubjectPlans), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	events := make(chan protocol.PlanEvent)
	go func() { // ends with the stream, which ends with the test
		defer close(events)
		defer func() { _ = resp.Body.Close() }()
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			var line protocol.Line
			if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
				t.Error(err)
				return
			}
			select {
			case events <- *line.Plan:
			case <-ctx.Done():
				return
			}
		}
	}()
	return events
}

// awaitEvent reads events until one is as expected.
func awaitEvent(t *testing.T, events <-chan protocol.PlanEvent, what string, wanted func(protocol.PlanEvent) bool) {
	t.Helper()
	for e := range events {
		if wanted(e) {
			return
		}
	}
	t.Fatalf("the stream ended before it had %s", what)
}

func testStream(t *testing.T, s *env, r *runner) {
	events := listen(t, r)
	free, synced := false, false // holds until the namespace that the previous agent removed exists again
	awaitEvent(t, events, "that nothing holds, and that there are no plans", func(e protocol.PlanEvent) bool {
		free = free || e.Hold != nil && e.Hold.Reason == ""
		synced = synced || e.Synced
		return free && synced
	})
	s.nodes(t, "brought", "brought-a")
	p := newPlan("brought", 0)
	p.Annotations, p.Labels = map[string]string{v1.AnnotationRevision: "r1"},
		map[string]string{v1.LabelSet: "plan-brought"}
	s.create(t, p)
	awaitEvent(t, events, "the plan that is complete", func(e protocol.PlanEvent) bool {
		return e.State != nil && e.State.Name == "brought" && e.State.Status.Revision == "r1" &&
			e.State.Status.Nodes != nil && e.State.Status.Nodes.Complete == 1
	})
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1.PlansNamespace}}
	s.change(t, space, func() { space.Labels[v1.LabelPlansHold] = "true" })
	awaitEvent(t, events, "the hold", func(e protocol.PlanEvent) bool {
		return e.Hold != nil && strings.Contains(e.Hold.Reason, v1.LabelPlansHold)
	})
	s.change(t, space, func() { delete(space.Labels, v1.LabelPlansHold) })
	awaitEvent(t, events, "its end", func(e protocol.PlanEvent) bool { return e.Hold != nil && e.Hold.Reason == "" })
	if err := s.client.Delete(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	awaitEvent(t, events, "the plan that is gone", func(e protocol.PlanEvent) bool { return e.Removed == "brought" })
}

func testLeaveWithPlan(t *testing.T, s *env, r *runner) {
	s.nodes(t, "person", "person-a")
	s.script("person-a", nodesim.Script{Hangs: true})
	p := newPlan("person", 0)
	p.Spec.Cordon = true
	s.create(t, p)
	s.begun(t, "person", "person-a")
	if remaining, err := r.Retire(t.Context()); err != nil || len(remaining) > 0 {
		t.Errorf("remaining %v, %v, want none", remaining, err)
	}
	s.expectNode(t, "person-a", "person", "", false)
	if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
		t.Errorf("read the user's plan: got the error %v, want it kept", err)
	}
	if err := s.client.Delete(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	s.gone(t, p)
}

func testLeave(t *testing.T, s *env, r *runner) {
	if remaining, err := r.Retire(t.Context()); err != nil || len(remaining) > 0 {
		t.Errorf("remaining %v, %v, want none", remaining, err)
	}
	s.gone(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1.PlansNamespace}})
	eventually(t, func(ctx context.Context) error {
		if err := s.client.List(ctx, &v1.PlanList{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("plans can still be listed: %w", err)
		}
		return nil
	})
}

func testLeadAfterRemoval(t *testing.T, s *env) {
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "removed-agent",
		Finalizers: []string{"test.drover.dev/stays"}}}
	s.create(t, space)
	if err := s.client.Delete(t.Context(), space); err != nil {
		t.Fatal(err)
	}
	r := s.run(t, options{namespace: space.Name})
	if hold := (<-listen(t, r)).Hold; hold == nil || !strings.Contains(hold.Reason, "is being removed") {
		t.Errorf("got the hold %+v, want that the agent is being removed", hold)
	}
	if remaining, err := r.Retire(t.Context()); err != nil || len(remaining) > 0 {
		t.Errorf("remaining %v, %v, want none", remaining, err)
	}
	r.stop()
	if err := s.client.List(t.Context(), &v1.PlanList{}); !apierrors.IsNotFound(err) {
		t.Errorf("list plans: got %v, want that the kind does not exist", err)
	}
	s.change(t, space, func() { space.Finalizers = nil })
}
