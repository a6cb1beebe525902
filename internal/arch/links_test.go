// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

var (
	// codeInMarkdown matches blocks and spans of code, in which brackets are no links.
	codeInMarkdown = regexp.MustCompile("(?ms)^ *```.*?^ *```|`[^`\n]+`")
	// link matches the target of a link or an image, in Markdown and in HTML.
	link    = regexp.MustCompile(`\]\(([^()\s]*)\)|(?:href|src|srcset)="([^"]*)"`)
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	// codeBlocks matches fenced blocks, in which a line with # is no heading.
	codeBlocks = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	// markup matches the parts of a heading that its anchor leaves out.
	markup = regexp.MustCompile("`|\\*\\*?|\\]\\([^)]*\\)|!?\\[")
)

func TestLinksOfMarkdownFilesResolve(t *testing.T) {
	top := root(t)
	for _, page := range markdownFiles(t, top) {
		report(t, linkProblems(top, page, readFile(t, page)))
	}
}

// TestTheMapLinksEveryPageOnce keeps docs/README.md complete. Folders with an index of their own are linked as such.
func TestTheMapLinksEveryPageOnce(t *testing.T) {
	text := readFile(t, "docs/README.md")
	for _, page := range markdownFiles(t, root(t)) {
		rel, inside := strings.CutPrefix(page, "docs/")
		folder := strings.Split(rel, "/")[0]
		if !inside || rel == "README.md" || slices.Contains([]string{"bench", "design", "lab"}, folder) {
			continue
		}
		if n := strings.Count(text, "]("+rel+")"); n != 1 {
			t.Errorf("docs/README.md links %s %d times, want once: the map has every page", page, n)
		}
	}
}

var (
	nameOfTest = regexp.MustCompile(`\bTest[A-Z]\w*`)
	testDecl   = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
)

// TestDocumentsNameTestsThatExist fails for a page that names a test which was renamed or removed. The changelog names
// tests of its time.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	top, tests := root(t), map[string]bool{"TestLong_": true}
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && entry.Name() == "node_modules" {
			return filepath.SkipDir
		}
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, name := range testDecl.FindAllStringSubmatch(string(text), -1) {
			tests[name[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range markdownFiles(t, top) {
		if page == "CHANGELOG.md" {
			continue
		}
		for _, name := range nameOfTest.FindAllString(readFile(t, page), -1) {
			if !tests[name] {
				t.Errorf("%s names %s, want a test that exists", page, name)
			}
		}
	}
}

// markdownFiles returns the Markdown files of the tree, except files that commands write.
func markdownFiles(t *testing.T, top string) []string {
	t.Helper()
	var pages []string
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == "dist":
			return filepath.SkipDir
		case entry.IsDir():
			return skipFolder(entry.Name(), path == top)
		case filepath.Ext(path) != ".md":
			return nil
		}
		rel, err := filepath.Rel(top, path)
		pages = append(pages, filepath.ToSlash(rel))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

// linkProblems lists the relative links of a page that lead to no file, or to no heading of a Markdown file.
func linkProblems(top, page, text string) []string {
	var problems []string
	for _, found := range link.FindAllStringSubmatch(codeInMarkdown.ReplaceAllString(text, ""), -1) {
		target, err := url.Parse(found[1] + found[2])
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s: the link %s is malformed", page, found[1]+found[2]))
			continue
		}
		if target.IsAbs() {
			continue
		}
		file := page
		if target.Path != "" {
			file = filepath.Join(filepath.Dir(page), target.Path)
		}
		linked := text
		if file != page {
			if _, err := os.Stat(filepath.Join(top, file)); err != nil {
				problems = append(problems, fmt.Sprintf("%s: %s does not exist", page, file))
				continue
			}
			content, _ := os.ReadFile(filepath.Join(top, file)) // a folder has no text and no headings
			linked = string(content)
		}
		if target.Fragment != "" && filepath.Ext(file) == ".md" && !slices.Contains(anchors(linked), target.Fragment) {
			problems = append(problems, fmt.Sprintf("%s: %s has no heading #%s", page, file, target.Fragment))
		}
	}
	return problems
}

// anchors returns the anchors of a page's headings, as GitHub makes them.
func anchors(text string) []string {
	var found []string
	for _, title := range heading.FindAllStringSubmatch(codeBlocks.ReplaceAllString(text, ""), -1) {
		anchor := strings.Map(func(r rune) rune {
			switch {
			case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
				return unicode.ToLower(r)
			case r == ' ':
				return '-'
			}
			return -1
		}, markup.ReplaceAllString(strings.TrimSpace(title[1]), ""))
		unique := anchor
		for n := 1; slices.Contains(found, unique); n++ {
			unique = fmt.Sprintf("%s-%d", anchor, n)
		}
		found = append(found, unique)
	}
	return found
}

func TestLinkRule(t *testing.T) {
	tests := map[string]struct{ line, want string }{
		"a file passes":                    {"[map](docs/README.md)", ""},
		"a folder passes":                  {"[reasons](docs/)", ""},
		"another site passes":              {"[site](https://example.com/a)", ""},
		"a heading passes":                 {"# One thing, `x`\n[there](#one-thing-x)", ""},
		"a heading elsewhere passes":       {"[glossary](docs/README.md#glossary)", ""},
		"a second heading of a name":       {"# A\n# A\n[b](#a-1)", ""},
		"a file that is gone fails":        {"[map](docs/gone.md)", "docs/gone.md does not exist"},
		"an image that is gone fails":      {`<img src="docs/gone.svg">`, "docs/gone.svg does not exist"},
		"a heading that is gone fails":     {"# A\n[b](#b)", "a.md has no heading #b"},
		"a heading gone elsewhere fails":   {"[b](docs/README.md#b)", "docs/README.md has no heading #b"},
		"a link in code passes":            {"`[b](gone.md)`\n```\n[b](gone.md)\n```", ""},
		"a heading in a block does not do": {"```\n# b\n```\n[b](#b)", "a.md has no heading #b"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			expect(t, linkProblems(root(t), "a.md", tt.line), tt.want)
		})
	}
}
