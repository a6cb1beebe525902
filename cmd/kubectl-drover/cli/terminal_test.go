// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import "testing"

func TestVisibleEscapesUnprintableCharactersAsInJSON(t *testing.T) {
	for text, want := range map[string]string{
		"käse → └─ 😀\tx\n": "käse → └─ 😀\tx\n",
		"\x1b[31m":         `\u001b[31m`,
		"\u202e\u009b\x9b": `\u202e\u009b\u009b`,
		"\U000e0041":       `\udb40\udc41`,
	} {
		if got := Visible(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
