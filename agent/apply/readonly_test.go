// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"context"
	"slices"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/agent/apply"
	v1 "github.com/drover-dev/drover/api/v1"
)

// stored are Secrets that can only be listed: anything else panics.
type stored struct {
	apply.Secrets
	list []corev1.Secret
}

func (s stored) List(context.Context, corev1.SecretType) ([]corev1.Secret, error) { return s.list, nil }

func TestAnAgentThatOnlyReadsNamesWhatIsLeft(t *testing.T) {
	t.Parallel()
	secret := func(name, kind string) corev1.Secret {
		return corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretType(kind)}
	}
	changed := make(chan struct{}, 1)
	a := apply.New(apply.Options{
		ReadOnly: true, LeftChanged: func() { changed <- struct{}{} }, Log: logr.Discard(),
		Secrets: stored{list: []corev1.Secret{
			secret("set.project.web", v1.Group+"/set"), secret("set.crtb.alice", v1.Group+"/set"), secret("set-1-abc.project.web", v1.Group+"/set"),
			secret("set.mine", "Opaque"), secret("drover-agent-identity", "Opaque"),
		}},
	})
	if left := a.Left(); len(left) > 0 {
		t.Errorf("before it leads it names %v", left)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); a.Lead(ctx) }()
	<-changed
	if left := a.Left(); !slices.Equal(left, []string{"crtb.alice", "project.web"}) {
		t.Errorf("it names %v", left)
	}
	cancel()
	<-ended
}
