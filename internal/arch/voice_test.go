// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A construction is a clause in place of a noun, which makes text hard to read. Its limit applies per 10,000 words.
type construction struct {
	name    string
	pattern *regexp.Regexp
	limit   int
}

func constructions() []construction {
	return []construction{
		{`"what is", "what has" …`, regexp.MustCompile(`(?i)\bwhat (is|has|it|they|was|are|had)\b`), 5},
		{`"those that", "those of" …`, regexp.MustCompile(`(?i)\bthose (that|of|who|which)\b`), 2},
		{`"one that", "one who" …`, regexp.MustCompile(`(?i)\bone (that|which|who)\b`), 2},
	}
}

// A tally is the number of words in a text and the number of uses of each construction.
type tally struct {
	words int
	uses  [3]int
}

func (a tally) plus(b tally) tally {
	for i := range a.uses {
		a.uses[i] += b.uses[i]
	}
	a.words += b.words
	return a
}

func (a tally) defects() int { return a.uses[0] + a.uses[1] + a.uses[2] }

// within is the number of uses that the limits of all constructions together permit, rounded up.
func (a tally) within() int {
	limit := 0
	for _, c := range constructions() {
		limit += c.limit
	}
	return (a.words*limit + 9999) / 10000
}

// TestVoiceStaysNatural fails for a folder whose comments and documents use clauses in place of nouns more often than
// the limits permit, or more often than its number in the list. "The address that the agent dials" is easier to read
// than "what is dialed". Once the list is empty, the limits apply to the whole tree. "go test -v" prints the totals.
func TestVoiceStaysNatural(t *testing.T) {
	r := ratchet{
		file: "internal/arch/testdata/voice.txt", defect: `clauses in place of nouns, such as "what is" and "those that"`,
		repair: "use a noun in the sentences that you have added",
	}
	folders := comments(goFiles(t))
	for dir, words := range documents(t) {
		folders[dir] = folders[dir].plus(words)
	}
	found, total := map[string]int{}, tally{}
	for dir, words := range folders {
		if total = total.plus(words); words.defects() > 0 {
			found[dir] = words.defects()
		}
	}
	listed := len(r.read(t))
	for i, c := range constructions() {
		rate := float64(total.uses[i]) * 10000 / float64(total.words)
		t.Logf("%s: %d in %d words, %.1f per 10,000 (goal: at most %d)", c.name, total.uses[i], total.words, rate, c.limit)
		if listed == 0 && rate > float64(c.limit) {
			t.Errorf("%s: got %.1f per 10,000 words, want at most %d", c.name, rate, c.limit)
		}
	}
	r.check(t, found, func(dir string) int { return folders[dir].within() })
}

var (
	fencedCode = regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```")
	quotedCode = regexp.MustCompile("`[^`\n]*`")
	question   = regexp.MustCompile(`[^.!?:;|]*\?`)
)

// countVoice counts the words and constructions of a text, except in questions and in code between backquotes.
func countVoice(text string) tally {
	text = quotedCode.ReplaceAllString(fencedCode.ReplaceAllString(text, " "), " code ")
	words := strings.Fields(text)
	if text = strings.Join(words, " "); strings.Contains(text, "?") {
		text = question.ReplaceAllString(text, " ")
	}
	result := tally{words: len(words)}
	for i, c := range constructions() {
		result.uses[i] = len(c.pattern.FindAllString(text, -1))
	}
	return result
}

// comments counts the comments of Go files by folder, without generated files, directives, markers and license headers.
func comments(files []source) map[string]tally {
	folders := map[string]tally{}
	for _, f := range files {
		if f.generated {
			continue
		}
		for _, group := range f.ast.Comments {
			var text strings.Builder
			for line := range strings.Lines(group.Text()) {
				header := strings.HasPrefix(line, "Copyright The ") || strings.HasPrefix(line, "SPDX-")
				if !header && !strings.HasPrefix(line, "+") {
					text.WriteString(line)
				}
			}
			folders[f.dir()] = folders[f.dir()].plus(countVoice(text.String()))
		}
	}
	return folders
}

// documents counts README.md and the documents below docs by folder, without the report that a conformance run writes.
func documents(t *testing.T) map[string]tally {
	t.Helper()
	folders, top := map[string]tally{}, root(t)
	add := func(file string) error {
		text, err := os.ReadFile(filepath.Join(top, filepath.FromSlash(file)))
		folders[path.Dir(file)] = folders[path.Dir(file)].plus(countVoice(string(text)))
		return err
	}
	err := fs.WalkDir(os.DirFS(top), "docs", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path.Ext(file) != ".md" || file == "docs/bench/conformance.md" {
			return err
		}
		return add(file)
	})
	if err == nil {
		err = add("README.md")
	}
	if err != nil {
		t.Fatal(err)
	}
	return folders
}

func TestVoiceRule(t *testing.T) {
	for text, want := range map[string]string{
		"a noun is a noun":                      "0 0 0 of 5",
		"what\n is decided, what they want":     "2 0 0 of 6",
		"What has gone is what was.":            "2 0 0 of 6",
		"what the agent does":                   "0 0 0 of 4",
		"those that run, those of a user":       "0 2 0 of 7",
		"one who waits for one which comes":     "0 0 2 of 7",
		"It says: what is it? The one that is.": "0 0 1 of 9",
		"`what is` reads `one that`":            "0 0 0 of 3",
		"```\nwhat is\n```\nwhat are":           "1 0 0 of 2",
	} {
		got := countVoice(text)
		if got := fmt.Sprintf("%d %d %d of %d", got.uses[0], got.uses[1], got.uses[2], got.words); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
	file := fixture(t, "a/a.go", "// Copyright The Drover Authors.\n\npackage a\n\n// A is what is.\n//\n// +optional\ntype A int\n")
	if got, want := comments([]source{file})["a"], (tally{words: 4, uses: [3]int{1}}); got != want {
		t.Errorf("got %v for a comment, want %v", got, want)
	}
	if got := (tally{words: 1200}).within(); got != 2 {
		t.Errorf("got %d uses within the limits in 1200 words, want 2", got)
	}
}
