// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// revertingServer is a fake API server that accepts each write, changes nothing, and sends an event for it.
type revertingServer struct {
	deployment *appsv1.Deployment
	secret     *corev1.Secret
	refusal    error
	patches    int
	events     chan watch.Event
}

func (s *revertingServer) Get(context.Context) (*appsv1.Deployment, error) { return s.deployment, nil }
func (s *revertingServer) Pods(context.Context) ([]corev1.Pod, error)      { return nil, nil }

func (s *revertingServer) Patch(ctx context.Context, _ []byte) error {
	s.patches++
	select {
	case s.events <- watch.Event{}:
	case <-ctx.Done():
	}
	return s.refusal
}

// Watch ends with ctx, as those of an API server do.
func (s *revertingServer) Watch(ctx context.Context) (watch.Interface, error) {
	shown := make(chan watch.Event)
	go func() {
		defer close(shown)
		for {
			select {
			case <-ctx.Done():
				return
			case e := <-s.events:
				shown <- e
			}
		}
	}()
	return watch.NewProxyWatcher(shown), nil
}

// revertingSecrets holds the record and does not change it either.
type revertingSecrets struct{ *revertingServer }

func (v revertingSecrets) Get(context.Context, string) (*corev1.Secret, error) {
	return v.secret, nil
}
func (v revertingSecrets) Create(_ context.Context, s *corev1.Secret) (*corev1.Secret, error) {
	return s, nil
}
func (v revertingSecrets) Update(_ context.Context, s *corev1.Secret) (*corev1.Secret, error) {
	return s, nil
}
func (v revertingSecrets) Watch(context.Context, string) (watch.Interface, error) {
	return nil, errors.New("not watched")
}

// TestNoLoopIsWithoutBackOff runs a Keeper for an hour against an API server that undoes what it writes.
func TestNoLoopIsWithoutBackOff(t *testing.T) {
	t.Parallel()
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "deployments"}, "drover-agent", errors.New("changed"))
	for name, tc := range map[string]struct {
		refusal error
		most    int // writes in an hour
	}{
		"a write that changes nothing": {nil, writesAtOnce + int(time.Hour/writeEvery)},
		"a write that meets conflicts": {conflict, writesAtOnce + int(time.Hour/writeEvery)},
		"a write that is refused":      {errors.New("refused"), writesAtOnce + int(time.Hour/writeEvery)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &revertingServer{deployment: live("new", unready), secret: &corev1.Secret{}, refusal: tc.refusal, events: make(chan watch.Event)}
				s.secret.Data = map[string][]byte{keyPhase: []byte(failed), keyDigest: []byte("new"), keyPrevious: snapshot(live("old"))}
				k := New(Options{
					Deployments: s, Secrets: revertingSecrets{s}, Changed: func() {}, Log: logr.Discard(),
					Nodes: func() (int32, bool) { return 0, false },
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				k.Lead(ctx)
				if s.patches == 0 || s.patches > tc.most {
					t.Errorf("%d writes in an hour, want 1 to %d", s.patches, tc.most)
				}
			})
		})
	}
}
