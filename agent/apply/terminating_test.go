// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/agent/apply"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tenancy"
	"github.com/drover-dev/drover/test/testkit"
)

// TestTerminatingNamespaceOfASetIsReported runs without a controller that ends the deletion of a namespace, so
// the namespace stays.
func TestTerminatingNamespaceOfASetIsReported(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	clock := testkit.NewClock()
	a := m.lead(t, func(o *apply.Options) { o.Now = clock.Now })
	content, err := tenancy.Content(&v1.Project{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1.ProjectSpec{
		Namespaces: []string{"stays", "works"}, NamespaceDefaultResourceQuota: list("pods", "4"),
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	const id = "project/web"
	a.applied(t, newSet(t, id, content))
	stays := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "stays"}}
	if err := m.Client.Delete(t.Context(), stays); err != nil {
		t.Fatal(err)
	}
	if state := a.await(t, id, protocol.SetPending); state.Namespaces != 1 ||
		!strings.Contains(state.Objects[0].Message, "being deleted") {
		t.Errorf("got the state %+v, want the namespace that is being deleted, and one other", state)
	}
	testkit.Update(t, m.Client, stays, func(*corev1.Namespace) {})
	stays.Status.Conditions = []corev1.NamespaceCondition{
		{Type: corev1.NamespaceDeletionDiscoveryFailure, Status: corev1.ConditionTrue, Reason: "x",
			Message: "stale GroupVersion discovery: x.example.com/v1"},
		{Type: corev1.NamespaceContentRemaining, Status: corev1.ConditionFalse, Message: "all is removed"},
	}
	if err := m.Client.Status().Update(t.Context(), stays); err != nil {
		t.Fatal(err)
	}
	clock.Advance(2 * time.Minute)
	state := a.await(t, id, protocol.SetFailed)
	const want = "NamespaceDeletionDiscoveryFailure: stale GroupVersion discovery: x.example.com/v1"
	if state.Objects[0].Object != "Namespace stays" || !strings.Contains(state.Objects[0].Message, want) ||
		strings.Contains(state.Objects[0].Message, "all is removed") {
		t.Errorf("got the state %+v, want the namespace with the reason why it stays", state)
	}
}
