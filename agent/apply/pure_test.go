// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/drover-dev/drover/internal/expansion"
)

func TestBudget(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	// fight repairs whenever it may, for a while, against another client that is always faster.
	fight := func(during time.Duration) (b budget, repairs int, end time.Time) {
		now := start
		for now.Sub(start) < during {
			if wait := b.wait(now); wait > 0 {
				now = now.Add(wait)
				continue
			}
			b.spend(now)
			repairs++
			now = now.Add(100 * time.Millisecond)
		}
		return b, repairs, now
	}
	t.Run("a few repairs wait for nothing and are no fight", func(t *testing.T) {
		var b budget
		for range fightRepairs - 1 {
			b.spend(start)
		}
		if b.wait(start) != 0 || b.fighting(start) {
			t.Error(b)
		}
	})
	t.Run("three in a minute are a fight, for as long as it is not calm", func(t *testing.T) {
		var b budget
		for i := range fightRepairs {
			b.spend(start.Add(time.Duration(i) * time.Second))
		}
		if !b.fighting(start.Add(3*time.Second)) || b.fighting(start.Add(2*time.Minute)) {
			t.Error(b)
		}
	})
	t.Run("a fight of an hour costs few repairs, five minutes apart in the end", func(t *testing.T) {
		b, repairs, end := fight(time.Hour)
		if repairs < 15 || repairs > 30 || b.penalty != maxPenalty || !b.fighting(end) {
			t.Errorf("%d repairs, penalty %s", repairs, b.penalty)
		}
	})
	t.Run("after the calm all is forgotten", func(t *testing.T) {
		b, _, end := fight(time.Hour)
		later := end.Add(b.cooldown(end))
		if b.fighting(later) || b.wait(later) != 0 {
			t.Error(b)
		}
		if b.spend(later); len(b.repairs) != 1 || b.penalty != 0 {
			t.Error(b)
		}
	})
}

func quota(t *testing.T, namespace string, hard map[string]any) item {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": kindQuota, "spec": map[string]any{"hard": hard}}}
	o.SetNamespace(namespace)
	o.SetName(expansion.QuotaName)
	it, err := newItem(ref{kindQuota, namespace, expansion.QuotaName}, o)
	if err != nil {
		t.Fatal(err)
	}
	return it
}

func TestPhases(t *testing.T) {
	t.Parallel()
	held := map[string]corev1.ResourceList{}
	for _, namespace := range []string{"grows", "shrinks", "both", "same"} {
		held[namespace] = corev1.ResourceList{"pods": resource.MustParse("4"), "cpu": resource.MustParse("4")}
	}
	items := []item{
		quota(t, "grows", map[string]any{"pods": "5", "cpu": "4"}), quota(t, "both", map[string]any{"pods": "5", "cpu": "3"}),
		quota(t, "new", map[string]any{"pods": "1"}), quota(t, "shrinks", map[string]any{"pods": "3", "cpu": "4"}),
		quota(t, "same", map[string]any{"pods": "4", "cpu": "4000m"}), {ref: ref{kind: "RoleBinding", namespace: "a", name: "b"}}, {ref: ref{kind: kindNamespace, name: "a"}},
	}
	got, err := phases(items, held)
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, phase := range got {
		var names []string
		for _, it := range phase {
			pods := it.hard["pods"]
			names = append(names, strings.TrimSpace(it.ref.kind[:4]+" "+it.ref.namespace+" "+pods.String()))
		}
		text = append(text, strings.Join(names, ", "))
	}
	want := "Name  0 | Role a 0 | Reso both 4, Reso shrinks 3, Reso same 4 | Reso grows 5, Reso both 5, Reso new 1"
	if strings.Join(text, " | ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(text, " | "), want)
	}
}

func TestObjectCache(t *testing.T) {
	t.Parallel()
	r := ref{kind: "ClusterRole", name: "a"}
	meta := func(version, fields string) *metav1.ObjectMeta {
		return &metav1.ObjectMeta{Name: "a", UID: "1", ResourceVersion: version, Labels: map[string]string{"cluster.drover.dev/set": "role.a"},
			ManagedFields: []metav1.ManagedFieldsEntry{
				{Manager: fieldManager, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: metav1.NewFieldsV1(fields)},
				{Manager: "quota-controller", Operation: metav1.ManagedFieldsOperationUpdate, Subresource: "status"},
			}}
	}
	w := newObjectCache()
	first := w.observe(r, meta("5", `{"a":{}}`))
	t.Run("what is older changes nothing", func(t *testing.T) {
		if w.observe(r, meta("4", `{}`)); w.objects[r].mark != first.mark {
			t.Error("it did")
		}
		if w.vanish(r, 4); w.objects[r].gone {
			t.Error("it is gone")
		}
	})
	t.Run("a status is no drift, and its writer no rival", func(t *testing.T) {
		if now := w.observe(r, meta("6", `{"a":{}}`)); now.mark != first.mark || now.other != "" {
			t.Errorf("%+v", now)
		}
	})
	t.Run("a field that was taken away is", func(t *testing.T) {
		if now := w.observe(r, meta("7", `{}`)); now.mark == first.mark {
			t.Errorf("%+v", now)
		}
	})
	t.Run("what a list does not have and is older than it is gone; what is newer is not", func(t *testing.T) {
		other := ref{kind: "ClusterRole", name: "b"}
		w.observe(other, meta("20", `{"a":{}}`))
		w.replace("ClusterRole", nil, 10)
		if !w.objects[r].gone || w.objects[other].gone {
			t.Errorf("%+v %+v", w.objects[r], w.objects[other])
		}
	})
}
