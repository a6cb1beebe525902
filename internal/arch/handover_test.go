// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"slices"
	"strings"
	"testing"
)

// returns describes the error returns in a function.
type returns struct {
	number int
	why    string
}

// unhanded lists the functions that can return an error before a reconciler has handed over the sets of its object.
// Each entry has the reason why no tenant's object can cause the error. When a manager becomes the leader, it removes
// nothing from any member until each owner has handed over its sets once. An object that makes its reconciler fail
// again and again would therefore keep deleted sets in force in all workspaces. A reconciler must instead hand over an
// empty set or the previous one, and report the problem in the status.
func unhanded() map[string]returns {
	const (
		cache   = "the cache has all objects, and reading it fails only while the manager stops"
		encodes = "an object that was decoded from JSON can be encoded as JSON again"
		hubs    = "it reads Secrets of the manager's own namespace, where no tenant writes"
		later   = "Reconcile hands over the sets before it returns this error"
		secrets = "a missing, too large or unlabelled Secret is a problem and not an error; otherwise the API server did " +
			"not answer"
		kept  = "Reconcile hands over sets that leave members unchanged before it returns this error"
		parts = "it returns the error of a function that is judged itself"
	)
	return map[string]returns{
		"controllers/baseline.Reconciler.Reconcile":       {2, cache},
		"controllers/baseline.Reconciler.binding":         {2, kept},
		"controllers/baseline.Reconciler.completeContent": {3, kept},
		"controllers/baseline.Reconciler.decide":          {2, kept},
		"controllers/baseline.Reconciler.findSources":     {1, kept},
		"controllers/baseline.Reconciler.pinned":          {2, kept},
		"controllers/baseline.Reconciler.read":            {3, kept},
		"controllers/baseline.Reconciler.readSource":      {2, kept},
		"controllers/baseline.Reconciler.resolve":         {4, kept},
		"controllers/baseline.Reconciler.rollOut":         {2, kept},
		"controllers/baseline.Reconciler.slots":           {1, kept},
		"controllers/baseline.Values.Use":                 {1, kept},
		"controllers/baseline.Values.deliver":             {2, kept},
		"controllers/baseline.build":                      {1, kept},
		"controllers/baseline.decideRollout":              {1, kept},
		"controllers/baseline.pack":                       {2, kept},
		"controllers/baseline.stage.fleet":                {2, kept},
		"controllers/baseline.unpack":                     {3, kept},
		"controllers/binding.Reconciler.Reconcile":        {2, cache},
		"controllers/binding.Reconciler.decide": {
			4, "the members come from the cache, and a binding that cannot be applied is a problem and not an error; " + encodes,
		},
		"controllers/direct.Reconciler.Reconcile": {3, cache + "; " + parts},
		"controllers/direct.Reconciler.access": {
			3, hubs + ", and Reconcile hands over nothing for a server that is no URL",
		},
		"controllers/direct.Reconciler.denied":         {1, hubs},
		"controllers/direct.content":                   {3, encodes + ", and the schema and MaxDenied bound it"},
		"controllers/plan.Reconciler.Reconcile":        {2, cache + "; " + parts},
		"controllers/plan.Reconciler.gather":           {1, parts},
		"controllers/plan.Reconciler.gatherClusters":   {1, cache},
		"controllers/plan.Reconciler.gatherSecrets":    {4, secrets + "; " + encodes},
		"controllers/plan.Reconciler.wait":             {1, cache},
		"controllers/plan.Reconciler.advance":          {1, later},
		"controllers/plan.Reconciler.write":            {1, later},
		"controllers/plan.Reconciler.patch":            {2, later},
		"controllers/plan.Reconciler.releaseAll":       {2, later},
		"controllers/plan.scope.set":                   {3, "the set before is handed over then"},
		"controllers/project.Reconciler.Reconcile":     {2, cache + "; " + parts},
		"controllers/project.Reconciler.decide":        {2, cache + "; " + parts},
		"controllers/project.Reconciler.decideProject": {3, cache + "; " + encodes},
		"controllers/project.Reconciler.decideSecrets": {2, encodes},
		"controllers/project.Reconciler.rivals":        {1, cache},
		"controllers/project.Reconciler.sources":       {2, cache + "; " + secrets},
		"controllers/project.Reconciler.taken":         {1, cache},
		"controllers/project.keep":                     {2, "nothing is handed over then"},
		"controllers/project.Guards.Reconcile":         {1, cache},
		"controllers/role.Reconciler.Reconcile":        {3, cache + "; " + parts},
		"controllers/role.Reconciler.compute": {
			3, cache + "; a template that cannot be resolved is no error; " + encodes,
		},
		"controllers/role.Reconciler.baselines": {2, cache},
		"controllers/role.Reconciler.uses":      {5, cache},
	}
}

func TestNoObjectOfATenantKeepsItsSetsFromBeingHandedOver(t *testing.T) {
	report(t, handoverProblems(goFiles(t), unhanded()))
}

// handoverProblems lists the errors that a reconciler can return before it calls Replace on the delivery store, and
// unused exceptions. It only sees the functions of the reconciler's own package.
func handoverProblems(files []source, allowed map[string]returns) []string {
	var problems []string
	packages := map[string]map[string][]inFile{}
	for _, f := range files {
		if f.test() || !inside(f.dir(), "controllers") {
			continue
		}
		if packages[f.dir()] == nil {
			packages[f.dir()] = map[string][]inFile{}
		}
		for _, d := range f.ast.Decls {
			if function, ok := d.(*ast.FuncDecl); ok && function.Body != nil {
				packages[f.dir()][function.Name.Name] = append(packages[f.dir()][function.Name.Name], inFile{f, function})
			}
		}
	}
	found := map[string][]string{}
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		for _, f := range failures(packages[dir]) {
			found[dir+"."+f.function] = append(found[dir+"."+f.function], f.at)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if at := found[name]; len(at) != allowed[name].number || allowed[name].why == "" {
			problems = append(problems, fmt.Sprintf("%s ends a reconcile with an error before its sets are handed over at %s, "+
				"want %d such returns: hand over an empty set or the previous one, "+
				"or give the reason why no tenant can cause the error",
				name, strings.Join(at, ", "), allowed[name].number))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(allowed)) {
		if found[name] == nil {
			problems = append(problems, name+": the exception matches no return: remove it")
		}
	}
	return problems
}

// inFile is a function and the file that contains it.
type inFile struct {
	source
	function *ast.FuncDecl
}

// failure is a return statement with an error.
type failure struct{ function, at string }

// failures returns the error returns in the functions that Reconcile calls before the last Replace.
func failures(functions map[string][]inFile) (found []failure) {
	seen := map[*ast.FuncDecl]bool{}
	var look func(d inFile)
	look = func(d inFile) {
		if seen[d.function] {
			return
		}
		seen[d.function] = true
		for _, statement := range d.function.Body.List {
			if d.function.Name.Name == "Reconcile" && statement.Pos() > lastHandover(d.function, functions) {
				return
			}
			ast.Inspect(statement, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncLit:
					return false
				case *ast.ReturnStmt:
					if failing(d, n, functions) {
						found = append(found, failure{ofType(d.function) + d.function.Name.Name, d.at(n)})
					}
				case *ast.CallExpr:
					for _, callee := range functions[calledName(n)] {
						look(callee)
					}
				}
				return true
			})
		}
	}
	for _, d := range functions["Reconcile"] {
		if lastHandover(d.function, functions).IsValid() {
			look(d)
		}
	}
	return found
}

// lastHandover returns the start of the last statement of a function that calls Replace on a store, directly or through
// a function of the package.
func lastHandover(function *ast.FuncDecl, functions map[string][]inFile) (last token.Pos) {
	for _, statement := range function.Body.List {
		if hands(statement, functions, map[*ast.FuncDecl]bool{function: true}) {
			last = statement.Pos()
		}
	}
	return last
}

func hands(n ast.Node, functions map[string][]inFile, seen map[*ast.FuncDecl]bool) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || found {
			return !found
		}
		if selector, ok := call.Fun.(*ast.SelectorExpr); ok && selector.Sel.Name == "Replace" && strings.EqualFold(receiver(selector), "deliveries") {
			found = true
		}
		for _, callee := range functions[calledName(call)] {
			if !found && !seen[callee.function] {
				seen[callee.function] = true
				found = hands(callee.function.Body, functions, seen)
			}
		}
		return !found
	})
	return found
}

// calledName returns the name of the called function or method.
func calledName(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// failing reports whether a statement returns an error. Errors from functions of the same package are judged in those
// functions.
func failing(d inFile, r *ast.ReturnStmt, functions map[string][]inFile) bool {
	results := d.function.Type.Results
	if results == nil || len(r.Results) == 0 {
		return false
	}
	kind, ok := results.List[len(results.List)-1].Type.(*ast.Ident)
	if !ok || kind.Name != "error" {
		return false
	}
	switch last := r.Results[len(r.Results)-1].(type) {
	case *ast.Ident:
		return last.Name != "nil"
	case *ast.CallExpr:
		return len(functions[calledName(last)]) == 0
	}
	return true
}

func TestHandoverRule(t *testing.T) {
	reconcile := func(before, after string) string {
		return "package a\n\nfunc (r *R) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {\n" + before + "\nr.Deliveries.Replace(key, sets)\n" + after + "\n}\n"
	}
	const part = "\nfunc (r *R) part() (int, error) {\nreturn 0, errA\n}\n"
	for name, tt := range map[string]struct{ text, want string }{
		"an error before the sets are handed over fails": {
			reconcile("if bad { return ctrl.Result{}, errA }", "return ctrl.Result{}, nil"), "controllers/x.R.Reconcile ends",
		},
		"one of a part fails once, at its origin": {
			reconcile("sets := r.part()", "return ctrl.Result{}, nil") + part, "controllers/x.R.part ends",
		},
		"one afterwards passes": {reconcile("", "return ctrl.Result{}, errA"), ""},
		"no error passes": {
			reconcile("if gone { return ctrl.Result{}, nil }", "return ctrl.Result{}, nil"), "",
		},
		"a reconciler without sets passes": {
			"package a\n\nfunc (r *R) Reconcile() (ctrl.Result, error) {\nreturn ctrl.Result{}, errA\n}\n", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, handoverProblems([]source{fixture(t, "controllers/x/a.go", tt.text)}, nil), tt.want)
		})
	}
	t.Run("an exception for nothing fails", func(t *testing.T) {
		expect(
			t, handoverProblems(nil, map[string]returns{"controllers/x.R.part": {1, "a reason"}}),
			"the exception matches no return",
		)
	})
}
