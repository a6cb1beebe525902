// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/signin/oauth"
)

func TestProves(t *testing.T) {
	verifier := strings.Repeat("aZ0-._~", 8)
	for text, want := range map[string]bool{verifier: true, verifier + "x": false, "": false,
		strings.Repeat("a", 42): false, strings.Repeat("a", 129): false} {
		if got := proves(text, oauth.Digest(verifier)); got != want {
			t.Errorf("proves of %q returned %t, want %t", text, got, want)
		}
	}
	for _, text := range []string{strings.Repeat("a", 42), strings.Repeat("a", 129), strings.Repeat("ä", 30),
		strings.Repeat(" ", 50)} {
		if proves(text, oauth.Digest(text)) {
			t.Errorf("%q is no verifier of RFC 7636 and proves its challenge", text)
		}
	}
}
