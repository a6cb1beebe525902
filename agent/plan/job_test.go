// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"
)

func TestSafeName(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("0123456789abcdef", 4)[:56]
	tests := map[string]struct {
		words []string
		want  string
	}{
		"a short name stays": {[]string{"secret", "a"}, "secret-a"},
		"a long one is cut as system-upgrade-controller does": {[]string{"apply", "k3s", "on", "n1", "with", hash}, "apply-k3s-on-n1-with-0123456789abcdef0123456789abcdef0123-7939b"},
		"a dot is written as a dash, and told apart":          {[]string{"secret", "a.b"}, "secret-a-b-4e23a"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := safeName(tt.words...); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestTagged(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]string{
		"rancher/k3s-upgrade": "rancher/k3s-upgrade:v1", "a.example:5000/x": "a.example:5000/x:v1", "x:v0": "x:v0", "x@sha256:00": "x@sha256:00",
	} {
		if got := tagged(image, "v1"); got != want {
			t.Errorf("%s: got %s, want %s", image, got, want)
		}
	}
}
