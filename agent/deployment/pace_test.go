// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"path"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/drover-dev/drover/test/agenttest"
)

// revertingServer is a fake API server that accepts each write, changes nothing, and sends an event for the write.
type revertingServer struct {
	deployment *appsv1.Deployment
	secret     *corev1.Secret
	refusal    error
	patches    int
	most       int // number of patches after which enough is called, because a loop without a pause would never end
	enough     func()
	events     chan struct{}
}

// ServeHTTP serves requests for the Deployment, its pods, and the Secret of the record.
func (s *revertingServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch resource := path.Base(path.Dir(r.URL.Path)); {
	case r.URL.Query().Get("watch") != "" && path.Base(r.URL.Path) == "secrets":
		agenttest.Answer(w, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "secrets"}, "watch"))
	case r.URL.Query().Get("watch") != "":
		s.watch(w, r)
	case r.Method == http.MethodPatch:
		s.patch(w, r)
	case resource == "deployments":
		agenttest.Answer(w, s.deployment)
	case path.Base(r.URL.Path) == "pods":
		agenttest.Answer(w, &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}})
	default:
		agenttest.Answer(w, s.secret)
	}
}

func (s *revertingServer) patch(w http.ResponseWriter, r *http.Request) {
	if s.patches++; s.patches > s.most {
		s.enough()
	}
	select {
	case s.events <- struct{}{}:
	case <-r.Context().Done():
	}
	if s.refusal != nil {
		agenttest.Answer(w, s.refusal)
		return
	}
	agenttest.Answer(w, s.deployment)
}

// watch ends with the request, as watches of an API server do.
func (s *revertingServer) watch(w http.ResponseWriter, r *http.Request) {
	encoder := json.NewEncoder(w)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	for {
		select {
		case <-r.Context().Done():
			return
		case <-s.events:
			if err := encoder.Encode(map[string]any{"type": watch.Modified, "object": s.deployment}); err != nil {
				return
			}
		}
	}
}

// TestKeeperBacksOffWhenItsWritesHaveNoEffect runs a Keeper for an hour against an API server that reverts its writes.
func TestKeeperBacksOffWhenItsWritesHaveNoEffect(t *testing.T) {
	t.Parallel()
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "deployments"}, "drover-agent", errors.New("changed"))
	for name, tc := range map[string]struct {
		refusal error
		most    int // number of writes in an hour
	}{
		"a write that changes nothing": {nil, writesAtOnce + int(time.Hour/writeEvery)},
		"a write that meets conflicts": {conflict, writesAtOnce + int(time.Hour/writeEvery)},
		"a write that is refused": {apierrors.NewForbidden(schema.GroupResource{Resource: "deployments"}, "drover-agent",
			errors.New("refused")), writesAtOnce + int(time.Hour/writeEvery)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &revertingServer{deployment: live("new", unready), secret: &corev1.Secret{}, refusal: tc.refusal,
					most: tc.most, events: make(chan struct{})}
				s.secret.Data = map[string][]byte{keyPhase: []byte(failed), keyDigest: []byte("new"),
					keyPrevious: snapshot(live("old"))}
				s.deployment.TypeMeta = metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}
				s.secret.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}
				client := agenttest.Client(t, s)
				k := New(Options{
					Deployment: client.Deployment("drover-agent", "drover-agent"), Secrets: client.Secrets("drover-agent"),
					Changed: func() {}, Log: logr.Discard(),
					Nodes: func() (int32, bool) { return 0, false },
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				s.enough = cancel
				k.Lead(ctx)
				if s.patches == 0 || s.patches > tc.most {
					t.Errorf("got %d writes in an hour, want 1 to %d", s.patches, tc.most)
				}
			})
		})
	}
}
