// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
)

func at(version string) *v1.Cluster {
	return &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "prod", ResourceVersion: version}}
}

func TestWritten(t *testing.T) {
	for name, tt := range map[string]struct {
		wrote  []string
		cached string
		want   string // empty for the cached version
	}{
		"without a write":                                 {nil, "9", ""},
		"the cache is older than the write":               {[]string{"10"}, "9", "10"},
		"the cache has the write":                         {[]string{"10"}, "10", ""},
		"the cache has a later write by someone else ":    {[]string{"10"}, "11", ""},
		"the newest of two writes counts":                 {[]string{"12", "10"}, "11", "12"},
		"versions that are not numbers are ignored":       {[]string{"b"}, "a", ""},
		"empty versions of a fake API server are ignored": {[]string{""}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var w Written[*v1.Cluster]
			for _, version := range tt.wrote {
				w.Note(at(version))
			}
			want := tt.cached
			if tt.want != "" {
				want = tt.want
			}
			if got := w.Newest(at(tt.cached)).ResourceVersion; got != want {
				t.Errorf("got version %q, want %q", got, want)
			}
		})
	}
	t.Run("an object that the cache has is forgotten", func(t *testing.T) {
		var w Written[*v1.Cluster]
		w.Note(at("10"))
		w.Newest(at("10"))
		if len(w.objects) != 0 {
			t.Errorf("got the objects %v in memory, want none", w.objects)
		}
	})
	t.Run("an older version of a Cluster that was created again is not kept", func(t *testing.T) {
		var w Written[*v1.Cluster]
		w.Note(at("10"))
		w.Forget(types.NamespacedName{Namespace: "team", Name: "prod"})
		if got := w.Newest(at("9")).ResourceVersion; got != "9" {
			t.Errorf("got version %q, want the cached one", got)
		}
	})
	t.Run("an object with another UID is not kept", func(t *testing.T) {
		var w Written[*v1.Cluster]
		w.Note(at("10"))
		again := at("9")
		again.UID = "another"
		if got := w.Newest(again); got != again || len(w.objects) != 0 {
			t.Errorf("got %v and %v in memory, want the cached object and none", got, w.objects)
		}
	})
	t.Run("a caller may change the result", func(t *testing.T) {
		var w Written[*v1.Cluster]
		w.Note(at("10"))
		w.Newest(at("9")).Status.Version = "changed"
		if got := w.Newest(at("9")).Status.Version; got != "" {
			t.Errorf("got version %q, want none", got)
		}
	})
}
