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
		want   bool
	}{
		"nothing was written":                         {nil, "9", false},
		"the cache is older than the write":           {[]string{"10"}, "9", true},
		"the cache has the write":                     {[]string{"10"}, "10", false},
		"the cache has a later write of another  ":    {[]string{"10"}, "11", false},
		"the newest of two writes counts":             {[]string{"12", "10"}, "11", true},
		"versions that are no numbers say nothing":    {[]string{"b"}, "a", false},
		"a fake API server that has no versions, too": {[]string{""}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			var w Written
			for _, version := range tt.wrote {
				w.Note(at(version))
			}
			if got := w.Missing(at(tt.cached)); got != tt.want {
				t.Errorf("missing: %t", got)
			}
		})
	}
	t.Run("what the cache has caught up with takes no memory", func(t *testing.T) {
		var w Written
		w.Note(at("10"))
		w.Missing(at("10"))
		if len(w.versions) != 0 {
			t.Errorf("%v", w.versions)
		}
	})
	t.Run("a Cluster that was made again is not waited for", func(t *testing.T) {
		var w Written
		w.Note(at("10"))
		w.Forget(types.NamespacedName{Namespace: "team", Name: "prod"})
		if w.Missing(at("9")) {
			t.Error("missing")
		}
	})
}
