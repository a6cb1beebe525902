// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// secret returns a Secret whose content is its stored value. A Secret without content is not stored.
func secret(name, version, content string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, ResourceVersion: version},
		Type: corev1.SecretType(content)}
}

func newSecrets(changes *[]string, seen *int) *Store[*corev1.Secret, string] {
	show := func(s *string) string {
		if s == nil {
			return "-"
		}
		return *s
	}
	return NewStore(Options[*corev1.Secret, string]{
		Read:    func(o *corev1.Secret) (string, bool) { return string(o.Type), o.Type != "" },
		Index:   func(s string) string { return s[:1] },
		Changed: func(n Name, before, now *string) { *changes = append(*changes, n.Name+" "+show(before)+">"+show(now)) },
		Seen:    func() { *seen++ },
	})
}

func TestStore(t *testing.T) {
	t.Parallel()
	type secrets = Store[*corev1.Secret, string]
	must := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	a := Name{Namespace: "n", Name: "a"}
	for name, tt := range map[string]struct {
		do      func(*secrets) // runs after a list at version 10 that has "a" at version 5 with the content x1
		changes string         // changes that do causes
		stored  string
		seen    int
	}{
		"an event replaces": {func(s *secrets) { must(s.Update(secret("a", "11", "x2"))) }, "a x1>x2", "x2", 1},
		"an older event changes nothing": {func(s *secrets) {
			must(s.Update(secret("a", "4", "x0")))
		}, "", "x1", 1},
		"the end of an older object changes nothing": {func(s *secrets) {
			s.Wrote(secret("a", "12", "x2"))
			must(s.Delete(secret("a", "11", "x1")))
		}, "a x1>x2", "x2", 1},
		"a deleted object is gone": {func(s *secrets) { must(s.Delete(secret("a", "11", "x1"))) }, "a x1>-", "", 1},
		"an object that is no longer read is gone": {func(s *secrets) {
			must(s.Update(secret("a", "11", "")))
		}, "a x1>-", "", 1},
		"an own write counts before its event, which then changes nothing": {func(s *secrets) {
			s.Wrote(secret("a", "12", "x2"))
			must(s.Update(secret("a", "11", "x0")))
			must(s.Update(secret("a", "12", "x2")))
		}, "a x1>x2", "x2", 2},
		"the response to a write that the watch has passed is not stored": {func(s *secrets) {
			must(s.Delete(secret("a", "13", "x1")))
			s.Wrote(secret("a", "12", "x2"))
		}, "a x1>-", "", 1},
		"a list removes what it does not have and stores what it has": {func(s *secrets) {
			must(s.Replace([]any{secret("b", "14", "y1")}, "15"))
		}, "a x1>- b ->y1", "y1", 1},
		"a list that is older than an own write leaves it": {func(s *secrets) {
			s.Wrote(secret("a", "16", "x2"))
			s.Wrote(secret("b", "17", "y1"))
			must(s.Replace([]any{secret("a", "5", "x1")}, "15"))
		}, "a x1>x2 b ->y1", "x2 y1", 1},
		"only the list of a restored API server counts": {func(s *secrets) {
			must(s.Update(secret("a", "20", "x2")))
			must(s.Update(secret("b", "21", "y1")))
			must(s.Replace([]any{secret("a", "5", "x1")}, "15"))
			must(s.Update(secret("a", "16", "x3")))
		}, "a x1>x2 a x1>x3 a x2>x1 b ->y1 b y1>-", "x3", 4},
		"only the list of a restored API server counts, even if versions moved forward": {func(s *secrets) {
			must(s.Update(secret("a", "20", "x2")))
			s.Wrote(secret("b", "21", "y1"))
			must(s.Replace([]any{secret("a", "5", "x1")}, "1000"))
		}, "a x1>x2 a x2>x1 b ->y1 b y1>-", "x1", 2},
		"an object that was found gone is removed": {func(s *secrets) {
			s.Drop(a, func(v string) bool { return v == "x1" })
		}, "a x1>-", "", 0},
		"an object that was found gone stays if another one has its name": {func(s *secrets) {
			s.Drop(a, func(v string) bool { return v == "x0" })
		}, "", "x1", 0},
		"an altered value lasts until the next event": {func(s *secrets) {
			s.Alter(a, func(v *string) { *v = "x9" })
			must(s.Update(secret("a", "5", "x1"))) // the version that was altered
		}, "", "x9", 1},
		"no longer": {func(s *secrets) {
			s.Alter(a, func(v *string) { *v = "x9" })
			must(s.Update(secret("a", "11", "x2")))
		}, "a x9>x2", "x2", 1},
		"a cleared store holds nothing, and is filled again from any version": {func(s *secrets) {
			s.Clear()
			must(s.Replace([]any{secret("a", "5", "x1")}, "6"))
			s.Wrote(secret("a", "7", "x2"))
		}, "a ->x1 a x1>- a x1>x2", "x2", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var changes []string
			var seen int
			s := newSecrets(&changes, &seen)
			select {
			case <-s.Known():
				t.Error("the store is known before the first list, want it unknown")
			default:
			}
			if err := s.Replace([]any{secret("a", "5", "x1")}, "10"); err != nil {
				t.Fatal(err)
			}
			<-s.Known()
			changes, seen = nil, 0
			tt.do(s)
			slices.Sort(changes) // a list changes objects in no particular order
			if got := strings.Join(changes, " "); got != tt.changes || seen != tt.seen {
				t.Errorf("got the changes %q and %d calls of Seen, want %q and %d", got, seen, tt.changes, tt.seen)
			}
			values := s.Values()
			if got := strings.Join(values, " "); got != tt.stored {
				t.Errorf("got %q stored, want %q", got, tt.stored)
			}
			for _, v := range values {
				if len(s.Of(v[:1])) != 1 {
					t.Errorf("got %v for %q in the index, want the object", s.Of(v[:1]), v)
				}
			}
			if len(s.index) != len(values) {
				t.Errorf("got the index %v, want the keys of %q", s.index, values)
			}
		})
	}
}

func TestStoreIsStaleWhileTheKindIsUnknown(t *testing.T) {
	t.Parallel()
	var changes []string
	var seen int
	s := newSecrets(&changes, &seen)
	s.invalidate()
	if !s.Stale() {
		t.Error("the store is not stale, want it stale")
	}
	if err := s.Replace(nil, "1"); err != nil || s.Stale() {
		t.Errorf("after a list: got stale %t and the error %v, want neither", s.Stale(), err)
	}
}

func TestStoreRefusesObjectsOfOtherTypes(t *testing.T) {
	t.Parallel()
	var changes []string
	var seen int
	s := newSecrets(&changes, &seen)
	for name, err := range map[string]error{
		"update": s.Update(&corev1.Pod{}), "delete": s.Delete(&corev1.Pod{}), "replace": s.Replace([]any{&corev1.Pod{}}, "1"),
	} {
		if err == nil || !strings.Contains(err.Error(), "Pod") {
			t.Errorf("%s: got %v, want an error that names the type", name, err)
		}
	}
	if got := fmt.Sprint(changes, seen); got != "[] 0" {
		t.Errorf("got the changes and events %s, want none", got)
	}
}
