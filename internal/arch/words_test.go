// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// plainWords returns patterns for words that always have a better alternative in this tree, by that alternative.
// docs/contributing.md explains the rules.
func plainWords() map[string]*regexp.Regexp {
	return map[string]*regexp.Regexp{
		"name what is absent, or the user": regexp.MustCompile(`\b([Nn]o|[Ss]ome|[Aa]ny)body\b`),
		`"reports whether"`:                regexp.MustCompile(`(?i)\b(is|are|says) whether\b`),
		`"outcome" or "result"`:            regexp.MustCompile(`(?i)\bwhat (came|becomes) of\b`),
		`"calls f"`:                        regexp.MustCompile(`\b(has|have) \w+ called\b`),
		`"does not matter"`:                regexp.MustCompile(`(?i)\bof no matter\b`),
		`"they" or "the user"`:             regexp.MustCompile(`(?i)\b(he|him|himself|his)\b`),
		"the standard noun for the mechanism (queue, store, cache, stream, orphan, fixture)": regexp.MustCompile(
			`(?i:\b(shelf|shelves|furniture|hardship|bury|buried)\b)|(^|[^A-Za-z])([Dd]esk|[Aa]genda|[Ss]tray|[Ll]oosen)s?([^a-z]|$)|[a-z](Desk|Agenda|Stray|Loosen)`),
	}
}

func TestPlainWords(t *testing.T) {
	top, words := root(t), plainWords()
	exempt := []string{"docs/contributing.md", "internal/arch/words_test.go", "LICENSE"} // they quote the words
	extensions := []string{".go", ".md", ".yaml", ".yml", ".sh", ".mod", ".js", ".html", ""}
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return skipFolder(entry.Name(), path == top)
		}
		rel, err := filepath.Rel(top, path)
		if err != nil || slices.Contains(exempt, filepath.ToSlash(rel)) || !slices.Contains(extensions, filepath.Ext(path)) ||
			!entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil {
			report(t, wordProblems(words, filepath.ToSlash(rel), text))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// wordProblems lists the lines of a text that match a pattern. Binary files have no lines.
func wordProblems(words map[string]*regexp.Regexp, path string, text []byte) []string {
	var problems []string
	if bytes.IndexByte(text, 0) >= 0 {
		return nil
	}
	for better, word := range words {
		for _, found := range word.FindAllIndex(text, -1) {
			line := 1 + bytes.Count(text[:found[1]-1], []byte("\n"))
			problems = append(problems, fmt.Sprintf("%s:%d: %q: better: %s", path, line, text[found[0]:found[1]], better))
		}
	}
	return problems
}

func TestPlainWordsRule(t *testing.T) {
	tests := map[string]struct{ line, want string }{
		"Go's idiom passes":                  {"// open reports whether it is open.", ""},
		"is whether fails":                   {"// open is whether it is open.", "reports whether"},
		"an absent person fails":             {"// nobody waits", "absent"},
		"a metaphor fails":                   {"the Desk knows", "standard noun"},
		"a metaphor within a name fails":     {"func releaseStrays() {}", "standard noun"},
		"a word that holds another passes":   {"a desktop helps", ""},
		"a word that only ends alike passes": {"// the sheet is this", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			expect(t, wordProblems(plainWords(), "a.go", []byte(tt.line)), tt.want)
		})
	}
}
