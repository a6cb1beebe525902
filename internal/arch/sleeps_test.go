// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"go/ast"
	"slices"
	"testing"
)

func TestTestsWaitForConditionsNotForTime(t *testing.T) {
	report(t, sleepProblems(goFiles(t)))
}

// sleepProblems lists the calls of Sleep in tests outside of a synctest bubble, where the clock is real. The linter
// forbidigo covers other code.
func sleepProblems(files []source) []string {
	var problems []string
	for _, f := range files {
		if !f.test() {
			continue
		}
		bubbles := calls(f, "synctest", "Test")
		for _, sleep := range calls(f, "time", "Sleep") {
			within := func(bubble *ast.CallExpr) bool { return bubble.Pos() < sleep.Pos() && sleep.End() <= bubble.End() }
			if !slices.ContainsFunc(bubbles, within) {
				problems = append(problems,
					fmt.Sprintf("%s: time.Sleep outside of synctest.Test: wait for a condition or a channel", f.at(sleep)))
			}
		}
	}
	return problems
}

// calls returns the calls of pkg.name in the file.
func calls(f source, pkg, name string) []*ast.CallExpr {
	var found []*ast.CallExpr
	ast.Inspect(f.ast, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if sel, ok := call.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == name {
			if ident, ok := sel.X.(*ast.Ident); ok && ident.Name == pkg {
				found = append(found, call)
			}
		}
		return true
	})
	return found
}

func TestSleepRule(t *testing.T) {
	tests := map[string]struct{ path, body, want string }{
		"a sleep in a test fails": {"a_test.go", "time.Sleep(1)", "outside of synctest"},
		"a sleep in a bubble passes": {"a_test.go", "synctest.Test(t, func(t *testing.T) { go func() { time.Sleep(1) }() })",
			""},
		"a sleep beside a bubble fails": {"a_test.go", "synctest.Test(t, func(t *testing.T) {}); time.Sleep(1)",
			"outside of synctest"},
		"a sleep that is no test is not judged": {"a.go", "time.Sleep(1)", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			expect(t, sleepProblems([]source{fixture(t, tt.path, "package a\n\nfunc f() {\n"+tt.body+"\n}\n")}), tt.want)
		})
	}
}
