// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

// awaitUnclaimed waits until the agent reports these objects as unclaimed, and no others.
func (a *agent) awaitUnclaimed(t *testing.T, want ...string) {
	t.Helper()
	testkit.Eventually(t, patience, func(context.Context) error {
		if got := a.Unclaimed(); !slices.Equal(got, want) {
			return fmt.Errorf("the unclaimed objects are %q, want %q", got, want)
		}
		return nil
	})
}

// TestBackupBringsBackObjectsOfRemovedSets restores objects, as a backup of a member's namespaces does, of sets that
// the hub has removed in the meantime.
func TestBackupBringsBackObjectsOfRemovedSets(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	a := m.lead(t)
	const known, ghost, other = "prtb/known", "prtb/ghost", "prtb/other"
	inNamespace := func(name string) map[string]any {
		o := binding(name, "view", "mallory")
		o["kind"], o["metadata"] = "RoleBinding", map[string]any{"name": name, "namespace": "restored"}
		return o
	}
	restored := func(name string) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{ObjectMeta: namespaced("restored", name)}
	}
	m.Apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "restored"}})
	a.applied(t, newSet(t, known, objectsOf(known, inNamespace("drover:wanted"))))
	a.awaitUnclaimed(t)

	m.applyAs(t, protocol.FieldManager, objectsOf(ghost, inNamespace("drover:ghost")).Objects[0].Object)
	m.applyAs(t, protocol.FieldManager, objectsOf(known, inNamespace("drover:former")).Objects[0].Object)
	m.applyAs(t, "velero", objectsOf(other, inNamespace("drover:other")).Objects[0].Object)
	m.applyAs(t, "velero", objectsOf(known, inNamespace("drover:copy")).Objects[0].Object)

	a.await(t, ghost, protocol.SetPending) // the hub does not know the set, and makes the agent remove it
	a.remove(t, ghost)
	m.gone(t, restored("drover:ghost"))
	// The set of this object is known, so the agent removes the object without the hub.
	testkit.Eventually(t, patience, func(ctx context.Context) error {
		if err := m.Client.Get(ctx, client.ObjectKeyFromObject(restored("drover:former")),
			&rbacv1.RoleBinding{}); err == nil {
			return fmt.Errorf("an object that is no longer in the set exists, want it removed")
		}
		return nil
	})
	a.awaitUnclaimed(t, "RoleBinding restored/drover:copy", "RoleBinding restored/drover:other")
	m.there(t, restored("drover:copy"))
	m.there(t, restored("drover:wanted"))
	for _, name := range []string{"drover:copy", "drover:other"} {
		if err := m.Client.Delete(t.Context(), restored(name)); err != nil {
			t.Fatal(err)
		}
	}
	a.awaitUnclaimed(t)
}
