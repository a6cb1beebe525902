// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"strings"
	"testing"
)

func TestManifestsWithDuplicateKeysAreRefused(t *testing.T) {
	t.Parallel()
	const namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n"
	for name, tt := range map[string]struct {
		manifests string
		objects   int
		refused   string
	}{
		"two objects, and comments": {"# a\n---\n" + namespace + "---\n" + namespace, 2, ""},
		"JSON":                      {`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"a"}}`, 1, ""},
		"a key twice":               {namespace + "metadata: {name: b}\n", 0, `"metadata" already set`},
		"a nested key twice":        {"kind: Namespace\nmetadata: {name: a, name: b}\n", 0, `"name" already set`},
		"something without a kind":  {"a: b\n", 0, "Kind"},
		"text that is not YAML":     {"a: b: c", 0, "read manifests"},
		"nothing":                   {"", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			objects, err := objectsIn([]byte(tt.manifests))
			refused := err != nil && tt.refused != "" && strings.Contains(err.Error(), tt.refused)
			if len(objects) != tt.objects || (err != nil || tt.refused != "") && !refused {
				t.Errorf("got %d objects and the error %v, want %d and %q", len(objects), err, tt.objects, tt.refused)
			}
		})
	}
}
