// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"context"
	"net/http"
	"path"
	"slices"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/agent/apply"
	"github.com/drover-dev/drover/agent/stream"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/agenttest"
)

func TestReadOnlyAgentNamesTheRemainingSets(t *testing.T) {
	t.Parallel()
	secret := func(name, kind string) corev1.Secret {
		return corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretType(kind)}
	}
	secrets := agenttest.Client(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || path.Base(r.URL.Path) != "secrets" {
			t.Errorf("got a request %s %s, want a list of Secrets", r.Method, r.URL)
		}
		agenttest.Answer(w, &corev1.SecretList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "SecretList"},
			Items: []corev1.Secret{
				secret("set.project.web", v1.Group+"/set"), secret("set.crtb.alice", v1.Group+"/set"),
				secret("set-1-abc.project.web", v1.Group+"/set"),
				secret("set.mine", "Opaque"), secret("drover-agent-identity", "Opaque"),
			}})
	})).Secrets(protocol.AgentNamespace)
	changed := make(chan struct{}, 1)
	a := apply.New(apply.Options{
		Topic: stream.New().Topic(protocol.SubjectSets), ReadOnly: true, LeftChanged: func() { changed <- struct{}{} },
		Log:     logr.Discard(),
		Secrets: secrets,
	})
	if left := a.Left(); len(left) > 0 {
		t.Errorf("before it leads: got %v, want nothing", left)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); a.Lead(ctx) }()
	<-changed
	if left := a.Left(); !slices.Equal(left, []string{"crtb.alice", "project.web"}) {
		t.Errorf("got %v, want crtb.alice and project.web", left)
	}
	cancel()
	<-ended
}
