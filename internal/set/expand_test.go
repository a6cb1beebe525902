// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package set_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/drover-dev/drover/internal/set"
)

func at(minute int) metav1.Time {
	return metav1.NewTime(time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC))
}

func amounts(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

// pods returns the shares of "pods" in a readable form.
func pods(shares map[string]set.Share) map[string]string {
	out := map[string]string{}
	for name, share := range shares {
		amount := share.Hard["pods"]
		out[name] = amount.String()
		if share.Short {
			out[name] += " short"
		}
		if share.Spent != (out[name] == "0 short") {
			out[name] += " spent wrongly"
		}
	}
	return out
}

func TestDivide(t *testing.T) {
	quota := &set.Quota{Total: amounts("pods", "10"), Default: amounts("pods", "4")}
	held := func(name string, created int, pods string) set.Namespace {
		return set.Namespace{Name: name, Created: at(created), Held: amounts("pods", pods)}
	}
	fresh := func(name string, created int) set.Namespace {
		return set.Namespace{Name: name, Created: at(created)}
	}
	tests := map[string]struct {
		quota      *set.Quota
		namespaces []set.Namespace
		want       map[string]string
	}{
		"no namespace":   {quota, nil, map[string]string{}},
		"no quota":       {nil, []set.Namespace{fresh("a", 1)}, map[string]string{}},
		"an empty quota": {&set.Quota{}, []set.Namespace{fresh("a", 1)}, map[string]string{}},
		"each namespace gets the default as long as there is enough": {quota, []set.Namespace{fresh("b", 2), fresh("a", 1)},
			map[string]string{"a": "4", "b": "4"}},
		"the youngest get the rest or nothing": {quota,
			[]set.Namespace{fresh("d", 4), fresh("c", 3), fresh("b", 2), fresh("a", 1)},
			map[string]string{"a": "4", "b": "4", "c": "2 short", "d": "0 short"}},
		"names decide between namespaces of the same age": {
			quota, []set.Namespace{fresh("c", 1), fresh("b", 1), fresh("a", 1)},
			map[string]string{"a": "4", "b": "4", "c": "2 short"}},
		"an older namespace that joins takes nothing from a holder": {quota,
			[]set.Namespace{fresh("old", 0), held("a", 1, "4"), held("b", 2, "4")},
			map[string]string{"old": "2 short", "a": "4", "b": "4"}},
		"a holder of less than the default grows before a new namespace gets a share": {quota,
			[]set.Namespace{held("a", 1, "4"), held("b", 2, "2"), fresh("c", 3)},
			map[string]string{"a": "4", "b": "4", "c": "2 short"}},
		"a smaller total takes from the youngest": {&set.Quota{Total: amounts("pods", "6"), Default: amounts("pods", "4")},
			[]set.Namespace{held("a", 1, "4"), held("b", 2, "4"), held("c", 3, "2")},
			map[string]string{"a": "4", "b": "2 short", "c": "0 short"}},
		"a smaller default takes from all": {&set.Quota{Total: amounts("pods", "10"), Default: amounts("pods", "1")},
			[]set.Namespace{held("a", 1, "4"), held("b", 2, "4")}, map[string]string{"a": "1", "b": "1"}},
		"a share that was raised by hand is not kept": {quota, []set.Namespace{held("a", 1, "400")},
			map[string]string{"a": "4"}},
		"a terminating namespace keeps what it holds until it is gone": {quota,
			[]set.Namespace{{Name: "a", Created: at(1), Terminating: true, Held: amounts("pods", "4")}, held("b", 2, "4"),
				fresh("c", 3)},
			map[string]string{"a": "4", "b": "4", "c": "2 short"}},
		"a terminating namespace gets no more than it holds": {quota,
			[]set.Namespace{{Name: "a", Created: at(1), Terminating: true, Held: amounts("pods", "1")}, fresh("b", 2)},
			map[string]string{"a": "1 short", "b": "4"}},
		"a resource without a total goes to all in full": {&set.Quota{Default: amounts("pods", "4")},
			[]set.Namespace{fresh("a", 1), fresh("b", 2), fresh("c", 3)}, map[string]string{"a": "4", "b": "4", "c": "4"}},
		"a total without a default is not granted to any namespace": {&set.Quota{Total: amounts("pods", "4")},
			[]set.Namespace{fresh("a", 1)}, map[string]string{"a": "0"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := pods(tt.quota.Divide(tt.namespaces)); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// TestDivideKeepsItsPromisesOverRandomHistories simulates random projects, in which namespaces come and go and the
// quota changes. After each step it checks the promises of Divide.
func TestDivideKeepsItsPromisesOverRandomHistories(t *testing.T) {
	for seed := range uint64(300) {
		simulate(t, rand.New(rand.NewPCG(seed, 7)))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func simulate(t *testing.T, r *rand.Rand) {
	quota := &set.Quota{Total: amounts("limits.cpu", "10"), Default: amounts("limits.cpu", "3500m")}
	var namespaces []set.Namespace
	for step := range 40 {
		before := map[string]corev1.ResourceList{}
		for _, ns := range namespaces {
			before[ns.Name] = ns.Held
		}
		grew := true
		switch {
		case r.IntN(8) == 0:
			quota = &set.Quota{
				Total:   amounts("limits.cpu", fmt.Sprintf("%dm", r.IntN(20000))),
				Default: amounts("limits.cpu", fmt.Sprintf("%dm", r.IntN(6000))),
			}
			grew = false
		case len(namespaces) > 0 && r.IntN(4) == 0:
			i := r.IntN(len(namespaces))
			namespaces = append(namespaces[:i:i], namespaces[i+1:]...)
		case len(namespaces) > 0 && r.IntN(6) == 0:
			namespaces[r.IntN(len(namespaces))].Terminating = true
		default:
			namespaces = append(namespaces, set.Namespace{Name: fmt.Sprintf("n%02d", step), Created: at(r.IntN(40))})
		}
		r.Shuffle(len(namespaces), func(i, j int) { namespaces[i], namespaces[j] = namespaces[j], namespaces[i] })
		shares := quota.Divide(namespaces)
		check(t, quota, shares)
		for i, ns := range namespaces {
			now := shares[ns.Name].Hard
			if was, held := before[ns.Name]["limits.cpu"]; held && grew &&
				now.Name("limits.cpu", resource.DecimalSI).Cmp(was) < 0 {
				t.Errorf("%s had %s and has %s, want no less, because the quota did not change", ns.Name, was.String(),
					now.Name("limits.cpu", resource.DecimalSI))
			}
			namespaces[i].Held = now
		}
		if again := quota.Divide(namespaces); !reflect.DeepEqual(pairs(again), pairs(shares)) {
			t.Errorf("dividing again gave %v, want %v as before", again, shares)
		}
	}
}

func check(t *testing.T, quota *set.Quota, shares map[string]set.Share) {
	t.Helper()
	sum, total, full := resource.Quantity{}, quota.Total["limits.cpu"], quota.Default["limits.cpu"]
	for name, share := range shares {
		amount := share.Hard["limits.cpu"]
		if amount.Sign() < 0 || amount.Cmp(full) > 0 || share.Short != (amount.Cmp(full) < 0) {
			t.Errorf("%s has %s (short: %t), want at most the default %s", name, amount.String(), share.Short, full.String())
		}
		sum.Add(amount)
	}
	if sum.Cmp(total) > 0 {
		t.Errorf("the shares add up to %s, want at most %s", sum.String(), total.String())
	}
}

func pairs(shares map[string]set.Share) map[string]int64 {
	out := map[string]int64{}
	for name, share := range shares {
		amount := share.Hard["limits.cpu"]
		out[name] = amount.MilliValue()
	}
	return out
}

func template(kind, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": kind,
		"data": map[string]any{"namespace": "{{namespace}} $(namespace)"}}}
	o.SetName(name)
	o.SetLabels(map[string]string{"app": "web", "cluster.drover.dev/set": "forged"})
	return o
}

func TestExpand(t *testing.T) {
	per := &set.PerNamespace{
		Project: "web", NamespaceLabels: map[string]string{"pod-security.kubernetes.io/enforce": "baseline"},
		Templates: []set.Template{{Object: template("Secret", "registry"), Except: []string{"b"}},
			{Object: template("ConfigMap", "x")}},
		Quota: &set.Quota{Total: amounts("pods", "5"), Default: amounts("pods", "4")},
	}
	namespaces := []set.Namespace{{Name: "b", Created: at(2)}, {Name: "gone", Created: at(3), Terminating: true},
		{Name: "a", Created: at(1)}}
	got, err := set.Content{PerNamespace: per}.Expand(namespaces, set.Labels("project/web"))
	if err != nil {
		t.Fatal(err)
	}
	t.Run("objects are sorted by namespace, without excepted and terminating namespaces", func(t *testing.T) {
		var names []string
		for _, o := range got.Objects {
			names = append(names, o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName())
		}
		want := []string{"Namespace /a", "ResourceQuota a/drover-project", "Secret a/registry", "ConfigMap a/x",
			"Namespace /b", "ResourceQuota b/drover-project", "ConfigMap b/x"}
		if !reflect.DeepEqual(names, want) {
			t.Errorf("got %v, want %v", names, want)
		}
	})
	t.Run("namespaces with less than the default are reported", func(t *testing.T) {
		if !reflect.DeepEqual(got.Short, []string{"b"}) {
			t.Errorf("the short namespaces are %v, want only b", got.Short)
		}
	})
	t.Run("text is not expanded, and the set's labels override the template's", func(t *testing.T) {
		secret := got.Objects[2]
		if text, _, _ := unstructured.NestedString(secret.Object, "data", "namespace"); text != "{{namespace}} $(namespace)" {
			t.Errorf("the data is %v, want it unchanged", text)
		}
		want := map[string]string{"app": "web", "app.kubernetes.io/managed-by": "drover",
			"cluster.drover.dev/set": "project.web"}
		if !reflect.DeepEqual(secret.GetLabels(), want) {
			t.Errorf("the copy's labels are %v, want the labels of the set added to its own", secret.GetLabels())
		}
	})
	t.Run("a namespace gets only the project's labels", func(t *testing.T) {
		if want := map[string]string{"pod-security.kubernetes.io/enforce": "baseline"}; !reflect.DeepEqual(
			got.Objects[0].GetLabels(), want) {
			t.Errorf("the namespace's labels are %v, want only the pod security label", got.Objects[0].GetLabels())
		}
	})
	t.Run("the templates themselves do not change", func(t *testing.T) {
		if per.Templates[0].Object.GetNamespace() != "" ||
			per.Templates[0].Object.GetLabels()["cluster.drover.dev/set"] != "forged" {
			t.Errorf("the template is %v, want it unchanged", per.Templates[0].Object)
		}
	})
	t.Run("a template that names a namespace is refused", func(t *testing.T) {
		o := template("Secret", "x")
		o.SetNamespace("kube-system")
		if _, err := (set.Content{PerNamespace: &set.PerNamespace{Project: "web",
			Templates: []set.Template{{Object: o}}}}).Expand(nil, nil); err == nil {
			t.Error("a template with a namespace was accepted, want an error")
		}
	})
	t.Run("no templates give no objects", func(t *testing.T) {
		if got, err := (set.Content{}).Expand(namespaces, nil); err != nil || len(got.Objects) != 0 {
			t.Errorf("an empty set has %v, %v, want no objects", got, err)
		}
	})
	t.Run("a Namespace in the set appears only once, with its own labels", func(t *testing.T) {
		listed := template("Namespace", "a")
		got, err := (set.Content{Objects: []*unstructured.Unstructured{listed},
			PerNamespace: &set.PerNamespace{Project: "web", NamespaceLabels: per.NamespaceLabels}}).
			Expand(namespaces, nil)
		if err != nil || len(got.Objects) != 2 || got.Objects[0] != listed || got.Objects[1].GetName() != "b" {
			t.Errorf("got %v, %v, want the namespace of the set unchanged, and b", got, err)
		}
	})
	t.Run("namespaces of the cluster are never part of a project and get none of its quota", func(t *testing.T) {
		var reserved []set.Namespace
		for _, name := range []string{"default", "kube-system", "kube-public", "drover-agent", "drover-system"} {
			reserved = append(reserved, set.Namespace{Name: name})
		}
		got, err := (set.Content{PerNamespace: per}).Expand(append(reserved, namespaces...), nil)
		if err != nil || len(got.Objects) != 7 || !reflect.DeepEqual(got.Short, []string{"b"}) {
			t.Errorf("got %v, %v, %v, want seven objects, and b short", len(got.Objects), got.Short, err)
		}
	})
}

func TestSetLabelIsValidAndDiffersBetweenIDs(t *testing.T) {
	long := strings.Repeat("a", 62)
	seen := map[string]string{}
	for _, id := range []string{"crtb/alice", "role/a.b", "project/" + long + "a", "project/" + long + "b",
		"secrets/" + strings.Repeat("a.", 30) + "z", "prtb/alice"} {
		label := set.Label(id)
		if problems := validation.IsValidLabelValue(label); len(problems) > 0 {
			t.Errorf("the label %s of %s is invalid: %v, want a valid one", label, id, problems)
		}
		if other, taken := seen[label]; taken {
			t.Errorf("%s and %s have the same label %s, want different ones", id, other, label)
		}
		seen[label] = id
	}
	if got := set.Label("crtb/alice"); got != "crtb.alice" {
		t.Errorf("the label is %v, want crtb.alice", got)
	}
}

func TestUserCannotChooseAnIDWithTheLabelOfAnother(t *testing.T) {
	victim := set.Label("crtb/" + strings.Repeat("v", 63))
	kind, name, found := strings.Cut(victim, ".")
	if found && set.Label(kind+"/"+name) == victim {
		t.Errorf("a binding called %s has the label of another one, want a different one", name)
	}
}
