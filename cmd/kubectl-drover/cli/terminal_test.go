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

func TestAQuotedWordIsOneWordOfAShell(t *testing.T) {
	for word, want := range map[string]string{
		"kubernetes-admin@prod": "kubernetes-admin@prod",
		"arn:aws:eks:eu/prod.1": "arn:aws:eks:eu/prod.1",
		"":                      "''",
		"a b":                   "'a b'",
		"x;$(id)`id`\nid":       "'x;$(id)`id` id'",
		"it's":                  `'it'\''s'`,
	} {
		if got := Quoted(word); got != want {
			t.Errorf("%q: got %s, want %s", word, got, want)
		}
	}
}
