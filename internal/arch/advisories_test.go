// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	advisory = regexp.MustCompile(`CVE-\d{4}-\d{4,}|GHSA(-[0-9a-z]{4}){3}`)
	testFile = regexp.MustCompile("`([^`]+_test\\.go)`")
)

// TestAdvisoriesHaveTheTestsThatTheDocsSay fails if docs/security.md lists an advisory that no test names, or the other
// way round.
func TestAdvisoriesHaveTheTestsThatTheDocsSay(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root(t), "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	report(t, advisoryProblems(string(page), advisoriesInTests(t)))

	named := map[string][]string{"a_test.go": {"CVE-2020-0001"}}
	for name, tt := range map[string]struct{ page, want string }{
		"an advisory that no test of its line names fails": {"| CVE-2020-0001, CVE-2020-0002 | x | `a_test.go` |", "no test in the line of CVE-2020-0002 of docs/security.md names it"},
		"a test that names none of its line fails":         {"| CVE-2020-0001 | x | `a_test.go`, `b_test.go` |", "b_test.go names none of the advisories in its line"},
		"an advisory that is not listed fails":             {"| CVE-2020-0002 | there is nothing of the kind |", "a_test.go names CVE-2020-0001"},
		"what agrees passes":                               {"| CVE-2020-0001 | x | `a_test.go` |", ""},
	} {
		t.Run(name, func(t *testing.T) { expect(t, advisoryProblems(tt.page, named), tt.want) })
	}
}

// advisoriesInTests returns the advisories that each test file names.
func advisoriesInTests(t *testing.T) map[string][]string {
	t.Helper()
	named := map[string][]string{}
	for _, f := range goFiles(t) {
		if found := advisory.FindAllString(string(f.text), -1); f.test() && len(found) > 0 && f.dir() != "internal/arch" {
			named[f.path] = found
		}
	}
	return named
}

// advisoryProblems lists the differences between a page and the tests.
func advisoryProblems(page string, named map[string][]string) []string {
	var problems []string
	for line := range strings.Lines(page) {
		files, ids := testFile.FindAllString(line, -1), advisory.FindAllString(line, -1)
		if len(files) == 0 {
			continue
		}
		var there []string
		for _, file := range files {
			file = strings.Trim(file, "`")
			there = append(there, named[file]...)
			if !slices.ContainsFunc(named[file], func(id string) bool { return slices.Contains(ids, id) }) {
				problems = append(problems, file+" names none of the advisories in its line of docs/security.md")
			}
		}
		for _, id := range ids {
			if !slices.Contains(there, id) {
				problems = append(problems, "no test in the line of "+id+" of docs/security.md names it")
			}
		}
	}
	for _, file := range slices.Sorted(maps.Keys(named)) {
		for _, id := range slices.Compact(slices.Sorted(slices.Values(named[file]))) {
			if !strings.Contains(page, id) {
				problems = append(problems, fmt.Sprintf("%s names %s, which docs/security.md does not list", file, id))
			}
		}
	}
	return problems
}
