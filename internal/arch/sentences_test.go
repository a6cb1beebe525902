// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"go/doc"
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestEveryPackageSaysWhatItDoesInOneSentence(t *testing.T) {
	report(t, sentenceProblems(goFiles(t)))
}

// bannedNames returns names that do not describe the content of a package, and therefore attract unrelated code.
func bannedNames() []string {
	return []string{"util", "utils", "common", "helper", "helpers", "misc", "shared", "types", "manager"}
}

// sentenceProblems lists the folders without exactly one package comment whose first paragraph is a single sentence.
// The sentence must begin with "Package x" or, for a program, with "Command x" or "Package main is x".
func sentenceProblems(files []source) []string {
	folders := map[string][]source{}
	for _, f := range files {
		folders[f.dir()] = append(folders[f.dir()], f)
	}
	var problems []string
	for _, dir := range slices.Sorted(maps.Keys(folders)) {
		if problem := sentenceProblem(folders[dir]); problem != "" {
			problems = append(problems, fmt.Sprintf("%s: %s", dir, problem))
		}
	}
	return problems
}

func sentenceProblem(folder []source) string {
	var comments []string
	for _, f := range folder {
		if f.ast.Doc != nil && f.ast.Doc.Text() != "" {
			comments = append(comments, f.ast.Doc.Text())
		}
	}
	name := strings.TrimSuffix(folder[0].ast.Name.Name, "_test")
	prefixes := []string{"Package " + name + " "}
	if name == "main" {
		prefixes = []string{"Command ", "Package main is "}
	}
	switch {
	case slices.Contains(bannedNames(), name):
		return fmt.Sprintf("%q is no name for a package: name it by the noun that it owns", name)
	case len(comments) == 0:
		return fmt.Sprintf("no package comment; write what it does as one sentence: %q", "// "+prefixes[0]+"…")
	case len(comments) > 1:
		return fmt.Sprintf("%d package comments; keep the one that says it best", len(comments))
	}
	paragraph, _, _ := strings.Cut(comments[0], "\n\n")
	paragraph = strings.Join(strings.Fields(paragraph), " ")
	begins := func(prefix string) bool { return strings.HasPrefix(paragraph, prefix) }
	if !slices.ContainsFunc(prefixes, begins) {
		return fmt.Sprintf("the package comment begins with %.40q, not with %q", paragraph, prefixes[0])
	}
	if sentence := new(doc.Package).Synopsis(paragraph); sentence != paragraph || !strings.HasSuffix(sentence, ".") {
		return fmt.Sprintf("the first paragraph of the package comment is not one sentence with a full stop: %q", paragraph)
	}
	return ""
}

func TestPackageSentenceRule(t *testing.T) {
	tests := map[string]struct{ source, want string }{
		"one sentence passes": {"// Package fleet knows who is connected.\npackage fleet", ""},
		"more paragraphs may follow": {"// Package fleet knows who is connected.\n//\n// It forgets. Always.\npackage fleet",
			""},
		"a sentence over two lines passes":               {"// Package fleet knows\n// who is connected.\npackage fleet", ""},
		"a command passes":                               {"// Command lab runs things.\npackage main", ""},
		"a missing comment fails":                        {"package fleet", "no package comment"},
		"a comment apart from the clause does not count": {"// Package fleet knows.\n\npackage fleet", "no package comment"},
		"another beginning fails":                        {"// The fleet knows.\npackage fleet", "begins with"},
		"the wrong name fails":                           {"// Package fleets knows.\npackage fleet", "begins with"},
		"two sentences in the first paragraph fail": {"// Package fleet knows. It forgets.\npackage fleet",
			"not one sentence"},
		"a sentence without a full stop fails": {"// Package fleet knows\npackage fleet", "not one sentence"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			expect(t, sentenceProblems([]source{fixture(t, "internal/members/a.go", tt.source)}), tt.want)
		})
	}
	t.Run("a name that says nothing fails", func(t *testing.T) {
		text := "// Package util has this and that.\npackage util"
		expect(t, sentenceProblems([]source{fixture(t, "internal/util/a.go", text)}), "no name for a package")
	})
	t.Run("two package comments fail", func(t *testing.T) {
		text := "// Package fleet knows.\npackage fleet"
		expect(t, sentenceProblems([]source{fixture(t, "a/a.go", text), fixture(t, "a/b.go", text)}), "2 package comments")
	})
}
