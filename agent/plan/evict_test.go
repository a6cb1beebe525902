// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/drover-dev/drover/test/agenttest"
)

// TestPodCannotChooseThePathOfARequest checks names of owners. The creator of a pod chooses the name of its owner,
// and the API server accepts any text.
func TestPodCannotChooseThePathOfARequest(t *testing.T) {
	t.Parallel()
	for _, owner := range []string{"../../../../../../api/v1/namespaces/web/pods/large/log", "..", "a/status",
		"a?watch=true", "%2e%2e"} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "p",
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "apps/v1", Kind: "DaemonSet", Name: owner, UID: "u", Controller: new(true)},
			}}}
		var paths []string
		d := &drainer{objects: agenttest.Client(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			paths = append(paths, r.URL.Path)
			agenttest.Answer(w, apierrors.NewNotFound(schema.GroupResource{Resource: "daemonsets"}, r.URL.Path))
		})).Objects()}
		if goes, hinders, err := d.classify(t.Context(), pod); len(paths) > 0 || goes || hinders == "" && err == nil {
			t.Errorf("owner %q: asked for %q; goes: %v, hinders: %q, %v", owner, paths, goes, hinders, err)
		}
		d.spec.Force = true
		if goes, _, err := d.classify(t.Context(), pod); len(paths) > 0 || !goes || err != nil {
			t.Errorf("owner %q with force: asked for %q; goes: %v, %v", owner, paths, goes, err)
		}
	}
}
