// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/checkpoint"
	"github.com/drover-dev/drover/test/testkit"
)

// The history in this test has forgotten nothing, like a history whose oldest term is younger than the checkpoint.
func TestMemberWaitsAsLongAsItsStatusSaysSo(t *testing.T) {
	t.Parallel()
	const has = "lease/1/a/2"
	waiting := func(name, confirmed string) client.Object {
		return &v1.Cluster{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "a", Name: name, Annotations: map[string]string{v1.AnnotationRestored: confirmed},
			},
			Status: v1.ClusterStatus{Restore: &v1.RestoreStatus{Checkpoint: has}},
		}
	}
	other := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "other"}}
	hub := fake.NewClientBuilder().WithScheme(testkit.Scheme(t)).
		WithObjects(waiting("waits", "lease/1/a/1"), waiting("confirmed", has), other).Build()
	holds := checkpoint.NewRecorder(nil).Policy(hub, nil).Lost
	for name, want := range map[string]string{"waits": has, "confirmed": "", "other": "", "missing": ""} {
		for _, reported := range []string{has, ""} { // an agent that has lost its checkpoint waits as well
			if got := holds(t.Context(), types.NamespacedName{Namespace: "a", Name: name}, reported); got != want {
				t.Errorf("%s, whose agent reports %q, waits for %q, want %q", name, reported, got, want)
			}
		}
	}
	if holds(t.Context(), types.NamespacedName{Namespace: "a", Name: "waits"}, "lease/9/b/1") != "" {
		t.Error("a member whose agent has received another checkpoint since waits, want it not to wait")
	}
}
