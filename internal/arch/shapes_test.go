// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"go/ast"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

// The budgets of a type. A type with more methods should be several types, and embedding must not hide fields from the
// budget of a struct. API types and generated code have no budget for fields.
const (
	maxMethods = 40
	maxFields  = 24 // with the fields of embedded structs
)

func TestTypesStayWithinTheirBudgets(t *testing.T) {
	report(t, shapeProblems(goFiles(t)))
}

// TestTypesEmbedFewMethods fails for a type that has more than maxMethods methods, including the methods of embedded
// types, and more than its number in the list.
func TestTypesEmbedFewMethods(t *testing.T) {
	r := ratchet{
		file: "internal/arch/testdata/methods.txt", defect: "methods with those of embedded types",
		repair: "hold a type in a named field instead of embedding it",
	}
	r.check(t, embeddedMethods(shapesOf(goFiles(t))), func(string) int { return maxMethods })
}

// embeddedMethods returns the number of methods of each type that embeds another type, including the methods of
// embedded structs of the product.
func embeddedMethods(shapes map[string]*shape) map[string]int {
	counts := map[string]int{}
	for name, s := range shapes {
		if len(s.embeds) > 0 {
			counts[name] = allMethods(name, shapes, nil)
		}
	}
	return counts
}

// allMethods returns the number of methods of a type, including the methods of embedded structs of the product. If the
// name fits types in several folders, it returns the highest of their numbers.
func allMethods(name string, shapes map[string]*shape, within []string) int {
	if pattern, elsewhere := strings.CutPrefix(name, "*/"); elsewhere {
		most := 0
		for other := range shapes {
			if path.Base(other) == pattern {
				most = max(most, allMethods(other, shapes, within))
			}
		}
		return most
	}
	s := shapes[name]
	if s == nil || slices.Contains(within, name) {
		return 0
	}
	n := s.methods
	for _, e := range s.embeds {
		n += allMethods(e, shapes, append(within, name))
	}
	return n
}

// A shape holds the counts of a type.
type shape struct {
	methods int
	fields  int
	embeds  []string // as embedded names them
}

// shapesOf returns the types of the product by name.
func shapesOf(files []source) map[string]*shape {
	shapes := map[string]*shape{}
	for _, f := range files {
		if !f.test() && !f.generated && !testOnlyFolder(f.dir()) {
			addShapes(f, shapes)
		}
	}
	return shapes
}

// shapeProblems lists the types of the product above a budget.
func shapeProblems(files []source) []string {
	shapes := shapesOf(files)
	var problems []string
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		if n := shapes[name].methods; n > maxMethods {
			problems = append(problems,
				fmt.Sprintf("%s: %d methods, at most %d: make several types of it", name, n, maxMethods))
		}
		if n := flattened(name, shapes, nil); n > maxFields && !strings.HasPrefix(name, "api/") {
			problems = append(problems,
				fmt.Sprintf("%s: %d fields with those of embedded structs, at most %d", name, n, maxFields))
		}
	}
	return problems
}

// addShapes adds the types of a file to the map. Their names begin with the folder.
func addShapes(f source, shapes map[string]*shape) {
	get := func(name string) *shape {
		name = f.dir() + "." + name
		if shapes[name] == nil {
			shapes[name] = &shape{}
		}
		return shapes[name]
	}
	for _, d := range f.ast.Decls {
		if fn, is := d.(*ast.FuncDecl); is && fn.Recv != nil {
			get(typeName(fn.Recv.List[0].Type)).methods++
		}
		general, is := d.(*ast.GenDecl)
		if !is {
			continue
		}
		for _, spec := range general.Specs {
			named, is := spec.(*ast.TypeSpec)
			if !is {
				continue
			}
			if structure, is := named.Type.(*ast.StructType); is {
				s := get(named.Name.Name)
				for _, field := range structure.Fields.List {
					if s.fields += len(field.Names); len(field.Names) == 0 {
						s.embeds = append(s.embeds, embedded(f, field.Type))
					}
				}
			}
		}
	}
}

// flattened returns the number of fields of a struct, including the fields of embedded structs of the product. Any
// other embedded type counts as one field.
func flattened(name string, shapes map[string]*shape, within []string) int {
	s := shapes[name]
	if pattern, elsewhere := strings.CutPrefix(name, "*/"); elsewhere {
		for other := range shapes {
			if path.Base(other) == pattern {
				s, name = shapes[other], other
			}
		}
	}
	if s == nil || slices.Contains(within, name) || s.fields+len(s.embeds) == 0 {
		return 1
	}
	n := s.fields
	for _, e := range s.embeds {
		n += flattened(e, shapes, append(within, name))
	}
	return n
}

func TestShapeRules(t *testing.T) {
	methods := func(n int) string { return strings.Repeat("\nfunc (*s) m() {}\n", n) }
	fields := func(name string, n int) string {
		return "type " + name + " struct {\n" + strings.Repeat("\t_ int\n", n) + "}\n"
	}
	for name, tt := range map[string]struct {
		text, want string
	}{
		"as many methods as allowed pass": {methods(maxMethods), ""},
		"a method more fails":             {methods(maxMethods + 1), "x.s: 41 methods, at most 40"},
		"as many fields as allowed pass":  {fields("s", maxFields), ""},
		"a field more fails": {fields("s", maxFields+1),
			"x.s: 25 fields with those of embedded structs"},
		"fields of embedded structs count": {
			fields("a", maxFields-1) + "type s struct { a; *b; sync.Mutex; c int }\ntype b int\n", "x.s: 26 fields",
		},
		"a struct that embeds itself ends": {"type s struct { *s; a int }\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, shapeProblems([]source{fixture(t, "x/x.go", "package x\n\n"+tt.text)}), tt.want)
		})
	}
}

func TestMethodsOfEmbeddedTypesCount(t *testing.T) {
	a := fixture(t, "a/x/x.go", "package x\n\ntype Outer struct { *Inner; y.Store; Named Inner; sync.Mutex }\n\n"+
		"type Inner struct { *Outer }\n\nfunc (*Inner) a() {}\n\nfunc (*Inner) b() {}\n\nfunc (Outer) c() {}\n")
	b := fixture(t, "a/y/y.go", "package y\n\ntype Store struct{}\n\nfunc (*Store) d() {}\n")
	got := embeddedMethods(shapesOf([]source{a, b}))
	if want := map[string]int{"a/x.Outer": 4, "a/x.Inner": 4}; !maps.Equal(got, want) {
		t.Errorf("got the numbers of methods %v, want %v", got, want)
	}
}
