// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// A budget warns above its first number and fails above its second.
type budget struct{ warn, fail int }

// The budgets. Tests and generated files have no budget for code, because a long table of cases is not a fault.
func functionLines() budget { return budget{60, 60} }
func fileLines() budget     { return budget{400, 400} }
func structFields() budget  { return budget{12, 16} }
func parameters() budget    { return budget{5, 7} }
func makefileLines() budget { return budget{150, 200} }

// linkedModules limits the number of modules that are linked into each binary, because every linked module adds
// security reports to read and memory to pay for. The number of lines in go.mod has no limit, since tests and tools
// take no resources in a cluster.
func linkedModules() map[string]budget {
	return map[string]budget{
		".": {76, 90}, "./agent": {46, 54}, "./cmd/drover-provisioner": {76, 90},
		"./cmd/drover-host-agent": {46, 54}, "./cmd/kubectl-drover": {64, 90},
	}
}

// maxNolint is the maximum number of nolint comments in the whole tree. A limit that is waived often is no limit.
const maxNolint = 4

// findings are the results of checking the budgets.
type findings struct{ warnings, failures []string }

func (f *findings) measure(b budget, got int, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	switch {
	case got > b.fail:
		f.failures = append(f.failures, fmt.Sprintf("%s: %d, at most %d", text, got, b.fail))
	case got > b.warn:
		f.warnings = append(f.warnings, fmt.Sprintf("%s: %d, aim at %d", text, got, b.warn))
	}
}

func (f *findings) report(t *testing.T) {
	t.Helper()
	for _, w := range f.warnings {
		t.Log("warning: " + w)
	}
	report(t, f.failures)
}

func TestSizesStayWithinTheBudgets(t *testing.T) {
	found := &findings{}
	for _, file := range goFiles(t) {
		found.file(file)
	}
	found.report(t)
}

func (f *findings) file(s source) {
	if s.test() || s.generated {
		return
	}
	f.measure(fileLines(), strings.Count(string(s.text), "\n"), "%s: lines of the file", s.path)
	ast.Inspect(s.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			f.function(s, n)
		case *ast.TypeSpec:
			if structure, ok := n.Type.(*ast.StructType); ok && !strings.HasPrefix(s.path, "api/") {
				f.measure(structFields(), count(structure.Fields), "%s: fields of %s", s.at(n), n.Name)
			}
		}
		return true
	})
}

func (f *findings) function(s source, fn *ast.FuncDecl) {
	lines := s.fset.Position(fn.End()).Line - s.fset.Position(fn.Type.Func).Line + 1
	f.measure(functionLines(), lines, "%s: lines of %s", s.at(fn.Name), fn.Name)
	f.measure(parameters(), count(fn.Type.Params), "%s: parameters of %s", s.at(fn.Name), fn.Name)
}

// count returns the number of names, so "a, b int" counts as two and an embedded field as one.
func count(list *ast.FieldList) int {
	n := 0
	for _, field := range list.List {
		n += max(1, len(field.Names))
	}
	return n
}

func TestNolintStaysRare(t *testing.T) {
	report(t, nolintProblems(goFiles(t)))
}

func nolintProblems(files []source) []string {
	var where []string
	for _, f := range files {
		for _, group := range f.ast.Comments {
			for _, comment := range group.List {
				if strings.HasPrefix(strings.TrimLeft(strings.TrimPrefix(comment.Text, "//"), " "), "nolint") {
					where = append(where, f.at(comment))
				}
			}
		}
	}
	if len(where) <= maxNolint {
		return nil
	}
	return []string{
		fmt.Sprintf("%d nolint comments, at most %d in the whole tree: %s", len(where), maxNolint, strings.Join(where, ", ")),
	}
}

func TestMakefileStaysWithinItsBudget(t *testing.T) {
	found := &findings{}
	found.measure(makefileLines(), strings.Count(readFile(t, "Makefile"), "\n"), "Makefile: lines")
	found.report(t)
}

func TestBinariesLinkFewModules(t *testing.T) {
	found := &findings{}
	for name, limit := range linkedModules() {
		modules := map[string]bool{}
		for _, p := range dependencies(t, name) {
			if p.Module != nil && !p.Module.Main {
				modules[p.Module.Path] = true
			}
		}
		if len(modules) == 0 {
			t.Errorf("%s: go list named no module", name)
		}
		found.measure(limit, len(modules), "%s: modules linked", name)
	}
	found.report(t)
}

func TestBudgetRules(t *testing.T) {
	body := func(lines int) string { return strings.Repeat("\tprintln()\n", lines) }
	fields := func(n int) string { return "package a\n\ntype s struct {\n" + strings.Repeat("\t_ int\n", n) + "}\n" }
	tests := map[string]struct{ path, source, warning, failure string }{
		"a function of 60 lines passes": {"a.go", "package a\n\nfunc f() {\n" + body(58) + "}\n", "", ""},
		"a function of 61 lines fails": {
			"a.go", "package a\n\nfunc f() {\n" + body(59) + "}\n", "", "a.go:3: lines of f: 61, at most 60",
		},
		"its comment does not count": {
			"a.go", "package a\n\n" + strings.Repeat("// Word.\n", 90) + "func f() {\n" + body(50) + "}\n", "", "",
		},
		"a Reconcile of 61 lines fails": {
			"a.go", "package a\n\nfunc (r *R) Reconcile() {\n" + body(59) + "}\n", "", "lines of Reconcile: 61, at most 60",
		},
		"a file of 400 lines passes": {"a.go", "package a\n" + strings.Repeat("\n", 399), "", ""},
		"a file of 401 lines fails": {
			"a.go", "package a\n" + strings.Repeat("\n", 400), "", "a.go: lines of the file: 401",
		},
		"a test may be long": {"a_test.go", "package a\n" + strings.Repeat("\n", 600), "", ""},
		"a generated file may be long": {
			"a.go", "// Code generated by x. DO NOT EDIT.\n\npackage a\n" + strings.Repeat("\n", 600), "", "",
		},
		"a struct of 13 fields warns": {"a.go", fields(13), "fields of s: 13", ""},
		"a struct of 17 fields fails": {"a.go", fields(17), "", "fields of s: 17"},
		"an API type may have them":   {"api/v1/a.go", fields(17), "", ""},
		"names in one field count apart": {
			"a.go", "package a\n\nfunc f(a, b, c, d, e, f int) {}\n", "parameters of f: 6", "",
		},
		"a function of 8 parameters fails": {
			"a.go", "package a\n\nfunc f(a, b, c, d, e, f, g, h int) {}\n", "", "parameters of f: 8",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			found := &findings{}
			found.file(fixture(t, tt.path, tt.source))
			expect(t, found.warnings, tt.warning)
			expect(t, found.failures, tt.failure)
		})
	}
	t.Run("more nolint comments than allowed fail, however they are written", func(t *testing.T) {
		text := "package a\n" + strings.Repeat("//nolint:errcheck // why\n", maxNolint)
		expect(t, nolintProblems([]source{fixture(t, "a.go", text)}), "")
		expect(t, nolintProblems([]source{fixture(t, "a.go", text+"// nolint\n")}), "5 nolint comments")
	})
}

// The linker removes the methods that the agent does not call, unless some linked code calls a method by a name that is
// unknown at link time, as templates do. The agent's binary and its memory are then a fifth larger.
func TestTheAgentCallsNoMethodByName(t *testing.T) {
	report(t, methodProblems(goFiles(t)))

	text := "package a\n\nfunc f() { root.SetVersionTemplate(\"\") }\n"
	expect(t, methodProblems([]source{fixture(t, "agent/a.go", text)}), "agent/a.go:3: SetVersionTemplate")
	expect(t, methodProblems([]source{fixture(t, "agent/a_test.go", text)}), "")
	expect(t, methodProblems([]source{fixture(t, "cmd/a.go", text)}), "")
}

func methodProblems(files []source) []string {
	names := []string{"SetVersionTemplate", "SetHelpTemplate", "SetUsageTemplate", "MethodByName"}
	var problems []string
	for _, f := range files {
		if f.test() || !inside(f.dir(), "agent") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && slices.Contains(names, sel.Sel.Name) {
				problems = append(
					problems, fmt.Sprintf("%s: %s makes the linker keep every method of the agent", f.at(sel), sel.Sel.Name),
				)
			}
			return true
		})
	}
	return problems
}
