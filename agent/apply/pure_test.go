// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

func quota(t *testing.T, namespace string, hard map[string]any) item {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": kindQuota,
		"spec": map[string]any{"hard": hard}}}
	o.SetNamespace(namespace)
	o.SetName(set.QuotaName)
	it, err := newItem(ref{kindQuota, namespace, set.QuotaName}, o)
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
		quota(t, "same", map[string]any{"pods": "4", "cpu": "4000m"}),
		{ref: ref{kind: "RoleBinding", namespace: "a", name: "b"}}, {ref: ref{kind: kindNamespace, name: "a"}},
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

func TestReadObject(t *testing.T) {
	t.Parallel()
	r := ref{kind: "ClusterRole", name: "a"}
	meta := func(version, fields string) *metav1.ObjectMeta {
		return &metav1.ObjectMeta{Name: "a", UID: "1", ResourceVersion: version,
			Labels: map[string]string{"cluster.drover.dev/set": "role.a"},
			ManagedFields: []metav1.ManagedFieldsEntry{
				{Manager: fieldManager, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: metav1.NewFieldsV1(fields)},
				{Manager: "quota-controller", Operation: metav1.ManagedFieldsOperationUpdate, Subresource: "status"},
			}}
	}
	first := readObject(r, meta("5", `{"a":{}}`))
	if first.mark == 0 || first.set != "role.a" || first.uid != "1" {
		t.Errorf("got %+v, want a mark, the set role.a and the UID 1", first)
	}
	t.Run("a status is not drift, and its writer is not a rival", func(t *testing.T) {
		if now := readObject(r, meta("6", `{"a":{}}`)); now.mark != first.mark || now.other != "" {
			t.Errorf("got %+v, want the mark %d and no other manager", now, first.mark)
		}
	})
	t.Run("a field that another manager took over is drift", func(t *testing.T) {
		if now := readObject(r, meta("7", `{}`)); now.mark == first.mark {
			t.Errorf("got %+v, want another mark than %d", now, first.mark)
		}
	})
}

func TestMovedBetween(t *testing.T) {
	t.Parallel()
	web, api, none := &object{project: "web", uid: "1"}, &object{project: "api", uid: "1"}, &object{uid: "1"}
	for name, tt := range map[string]struct {
		before, now *object
		want        string
	}{
		"a namespace joins a project": {nil, web, "map[web:true]"},
		"it gets another label":       {web, &object{project: "web", uid: "1", set: "x"}, "map[]"},
		"it changes its project":      {web, api, "map[api:true web:true]"},
		"it leaves its project":       {web, none, "map[web:true]"},
		"it is deleted":               {web, nil, "map[web:true]"},
		"it is being deleted": {web, &object{project: "web", uid: "1", deleting: true},
			"map[web:true]"},
		"it was created again":                      {web, &object{project: "web", uid: "2"}, "map[web:true]"},
		"a namespace of no project changes nothing": {none, nil, "map[]"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := fmt.Sprint(movedBetween(tt.before, tt.now)); got != tt.want {
				t.Errorf("got the projects %s, want %s", got, tt.want)
			}
		})
	}
}

func TestOlderCheckpoint(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		next, was string
		older     bool
	}{
		{"lease/1/a/9", "lease/1/a/10", true},
		{"lease/1/a/10", "lease/1/a/10", false},
		{"lease/1/a/11", "lease/1/a/10", false},
		{"lease/1/b/9", "lease/1/a/10", false}, // another leader: only the hub knows which checkpoint is later
		{"lease/2/a/9", "lease/1/a/10", false},
		{"other/1/a/9", "lease/1/a/10", false},
		{"lease/1/a/9", "", false},
		{"", "lease/1/a/10", false},
		{"9", "10", true},
		{"lease/1/a/x", "lease/1/a/10", false},
		{"lease/1/a/9", "lease/1/a/99999999999999999999", false},
	} {
		if got := protocol.OlderCheckpoint(test.next, test.was); got != test.older {
			t.Errorf("OlderCheckpoint(%q, %q) = %v", test.next, test.was, got)
		}
		c := hubHistory{value: test.was}
		if took := c.set(test.next); took != (!test.older && test.next != test.was) ||
			c.get() == test.next != (took || test.next == test.was) {
			t.Errorf("%q after %q: took it: %v, and has %q", test.next, test.was, took, c.get())
		}
	}
}
