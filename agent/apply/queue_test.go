// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/drover-dev/drover/agent/stream"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/test/agenttest"
)

func TestSetIsDueWhenTheClockIsSetToItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64 // how far the clock was set ahead
		q := newQueue(func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })
		defer q.ShutDown()
		q.AddAfter("crtb/a", time.Hour)
		begun := time.Now()
		ahead.Store(int64(2 * time.Hour))
		if id, _ := q.Get(); id != "crtb/a" || time.Since(begun) > time.Minute {
			t.Errorf("got %q after %s, want crtb/a within a minute", id, time.Since(begun))
		}
	})
}

func TestTheWaitAfterProblemsDoubles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(time.Now)
		defer q.ShutDown()
		for failures, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
			begun := time.Now()
			q.AddRateLimited("a")
			id, _ := q.Get()
			q.Done(id)
			if got := time.Since(begun).Round(time.Millisecond); got != want || q.NumRequeues("a") != failures+1 {
				t.Errorf("after %d failures: got a wait of %s, want %s", failures+1, got, want)
			}
		}
		begun := time.Now()
		for q.NumRequeues("a") < 20 {
			begun = time.Now()
			q.AddRateLimited("a")
			id, _ := q.Get()
			q.Done(id)
		}
		if got := time.Since(begun).Round(time.Second); got != maxRetry {
			t.Errorf("after 20 failures: got a wait of %s, want %s", got, maxRetry)
		}
	})
}

func TestLatestRequestForASetWinsAndAllCallersGetItsResult(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		noSecrets := agenttest.Client(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodDelete {
				t.Errorf("got a request %s %s, want a DELETE", r.Method, r.URL)
			}
			agenttest.Answer(w, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, r.URL.Path))
		})).Secrets("drover-agent")
		l := newLeadership(t.Context(),
			Options{Secrets: noSecrets, Topic: stream.New().Topic(protocol.SubjectSets), Now: time.Now, Log: logr.Discard()})
		results := make(chan protocol.SetState, 2)
		ask := func(wanted *set.Set) {
			state, err := l.ask(t.Context(), "role/a", request{wanted: wanted})
			if err != nil {
				t.Error(err)
			}
			results <- state
		}
		go ask(&set.Set{ID: "role/a", Digest: "1"})
		synctest.Wait()
		go ask(nil)
		synctest.Wait()
		id, _ := l.queue.Get()
		l.reconcile(t.Context(), id)
		l.queue.Done(id)
		for range 2 {
			if state := <-results; state.Phase != protocol.SetDeleted {
				t.Errorf("got the result %+v, want the result of the removal", state)
			}
		}
		if l.queue.Len() > 0 || len(l.state.asked) > 0 || len(l.state.sets) > 0 {
			t.Errorf("got %d sets queued, %d requested and %d known, want none", l.queue.Len(), len(l.state.asked),
				len(l.state.sets))
		}
	})
}

func TestRequestEndsWithItsCallerOrTheLeadership(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	l := newLeadership(ended, Options{Now: time.Now, Log: logr.Discard()})
	caller, leave := context.WithCancel(t.Context())
	leave()
	if _, err := l.remove(caller, "role/a"); !errors.Is(err, context.Canceled) {
		t.Errorf("the caller that canceled got the error %v, want %v", err, context.Canceled)
	}
	if len(l.state.asked) != 1 {
		t.Errorf("got %d requests, want one: the request of the caller that canceled", len(l.state.asked))
	}
	cancel()
	if _, err := l.remove(t.Context(), "role/a"); !errors.Is(err, errEnded) {
		t.Errorf("after the leadership: got the error %v, want %v", err, errEnded)
	}
}

// clusterRoles is an API server that has one ClusterRole or none. It counts the requests for the role.
type clusterRoles struct {
	missing  bool
	requests int
}

func (c *clusterRoles) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	c.requests++
	if c.missing {
		agenttest.Answer(w, apierrors.NewNotFound(schema.GroupResource{Resource: "clusterroles"}, "view"))
		return
	}
	agenttest.Answer(w,
		&metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}})
}

func TestClusterRoleIsReadOnceInABurst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		roles := &clusterRoles{}
		l := newLeadership(t.Context(),
			Options{Objects: agenttest.Client(t, roles).Objects(), Now: time.Now, Log: logr.Discard()})
		look := func(what string, times, requests int, missing bool) {
			t.Helper()
			roles.requests = 0
			for range times {
				if err := l.lookForRole(t.Context(), "view"); notFound(err) != missing {
					t.Errorf("%s: got the error %v, want not found: %v", what, err, missing)
				}
			}
			if roles.requests != requests {
				t.Errorf("%s: got %d requests, want %d", what, roles.requests, requests)
			}
		}
		look("a burst", 200, 1, false)
		roles.missing = true
		time.Sleep(roleTime)
		look("a role that was deleted", 3, 3, true)
		roles.missing = false
		look("a role that exists again", 3, 1, false)
	})
}
