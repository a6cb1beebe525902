// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"go/ast"
	"regexp"
	"strings"
	"testing"
)

// longPrefix is the prefix of the names of long tests.
const longPrefix = "TestLong_"

// "make test" must skip exactly the tests that "make test-long" runs, and "make test-long" must search all folders that
// have such tests.
func TestLongTestsAreRunByTestLong(t *testing.T) {
	makefile := readFile(t, "Makefile")
	for what, want := range map[string]string{
		"the pattern":               `(?m)^long := \^` + longPrefix + `$`,
		"what make test leaves out": `(?m)^mosttests = .* -skip '\$\(long\)'`,
		"what make test-long runs":  `(?m)^\t.* -run '\$\(long\)' \$\(longpackages\)$`,
		"where make test-long looks": `(?m)^longpackages = .*'\^func ` + longPrefix +
			`' agent api cmd controllers internal test \|`,
		"what make test leaves of e2e": `(?m)^\t.* -skip '\$\(long\)' \./test/e2e;`,
	} {
		if !regexp.MustCompile(want).MatchString(makefile) {
			t.Errorf("the Makefile has no line for %s; want one that matches %s", what, want)
		}
	}
	report(t, longProblems(goFiles(t)))
}

// longProblems lists the long tests that "make test-long" does not find. A tree without any long test is a problem too.
func longProblems(files []source) []string {
	var problems []string
	found := false
	for _, f := range files {
		for _, d := range f.ast.Decls {
			fn, is := d.(*ast.FuncDecl)
			if !is || !strings.HasPrefix(fn.Name.Name, longPrefix) {
				continue
			}
			found = true
			if top, _, _ := strings.Cut(f.dir(), "/"); !inProduct(f.dir()) && top != "test" {
				problems = append(problems, fmt.Sprintf("%s: make test-long does not look for %s there", f.at(fn), fn.Name))
			}
		}
	}
	if !found {
		problems = append(problems, "no test name begins with "+longPrefix+": make test-long would run nothing")
	}
	return problems
}

func TestLongRule(t *testing.T) {
	text := "package a\n\nfunc TestLong_X() {}\n"
	expect(t, longProblems([]source{fixture(t, "test/e2e/a_test.go", text)}), "")
	expect(t, longProblems([]source{fixture(t, "hack/a_test.go", text)}), "does not look for TestLong_X there")
	expect(t, longProblems([]source{fixture(t, "test/e2e/a_test.go", "package a\n")}), "no test name begins with")
}
