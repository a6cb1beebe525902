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

// singleInterfaces returns the interfaces of the product with at most one implementation in the product, each with the
// reason. Otherwise, use a concrete type or a function instead of such an interface: tests can serve requests with a
// handler, or pass another function.
func singleInterfaces() map[string]string {
	return map[string]string{
		"internal/signin/connector.PostCallback": "a capability for a type such as SAML; a test signs a user in through it",
		"internal/signin/connector.Password":     "a capability that a provider with pages of its own does not have",
		"agent/leader.Leases":                    "tests elect leaders among replicas that lose requests and answers",
	}
}

func TestInterfacesHaveSeveralImplementations(t *testing.T) {
	report(t, interfaceProblems(goFiles(t), singleInterfaces()))
}

func TestInterfaceProblems(t *testing.T) {
	for name, tt := range map[string]struct {
		code    string
		allowed []string
		want    []string
	}{
		"two implementations": {"type I interface{ M(int) }; type a int; func (a) M(int) {}; type b int; func (*b) M(int) {}",
			nil, nil},
		"one": {"type I interface{ M(int) }; type a int; func (a) M(int) {}", nil, []string{"x.I"}},
		"another signature": {"type I interface{ M(int) }; type a int; func (a) M(int) {}; type b int; func (*b) M() {}", nil,
			[]string{"x.I"}},
		"by embedding": {"type I interface{ M() }; type a int; func (a) M() {}; type b struct{ *a }", nil,
			nil},
		"an interface that has others": {
			"type I interface{ J }; type J interface{ M() }; type a int; func (a) M() {}; type b int; func (b) M() {}", nil, nil,
		},
		"a constraint":        {"type I interface{ ~int | ~string }", nil, nil},
		"one that is allowed": {"type I interface{ M() }", []string{"x.I"}, nil},
		"allowed for nothing": {"", []string{"x.I"}, []string{"x.I"}},
	} {
		t.Run(name, func(t *testing.T) {
			file, err := parse("x/x.go", []byte("package x; "+tt.code))
			if err != nil {
				t.Fatal(err)
			}
			allowed := map[string]string{}
			for _, name := range tt.allowed {
				allowed[name] = "a reason"
			}
			got := interfaceProblems([]source{file}, allowed)
			if !slices.EqualFunc(got, tt.want, strings.HasPrefix) {
				t.Errorf("got the problems %q, want problems with %q", got, tt.want)
			}
		})
	}
}

// declared describes a type of the product: its methods with the numbers of their parameters and results, and its
// embedded types.
type declared struct {
	methods    map[string]bool
	embeds     []string
	constraint bool // an interface of types, not of methods
}

// interfaceProblems lists the interfaces of the product that have fewer than two implementations in it and no
// exception, and the unused exceptions. It compares methods by name and by the numbers of their parameters and results.
func interfaceProblems(files []source, allowed map[string]string) []string {
	interfaces, types := map[string]*declared{}, map[string]*declared{}
	for _, file := range files {
		if !file.test() && !file.generated && !testOnlyFolder(file.dir()) {
			declarations(file, interfaces, types)
		}
	}
	var problems []string
	unused, sets := maps.Clone(allowed), []map[string]bool{}
	for name := range types {
		sets = append(sets, methodsOf(name, types, interfaces))
	}
	for _, name := range slices.Sorted(maps.Keys(interfaces)) {
		wanted := methodsOf(name, interfaces, nil)
		if len(wanted) == 0 || interfaces[name].constraint {
			continue
		}
		count := 0
		for _, has := range sets {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(wanted)), func(m string) bool { return !has[m] }) {
				count++
			}
		}
		if _, is := allowed[name]; is && count < 2 {
			delete(unused, name)
		} else if count < 2 {
			problems = append(problems,
				fmt.Sprintf("%s: an interface with %d implementations; take the type itself, or a function", name, count))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(unused)) {
		problems = append(problems,
			name+": it is in the list of interfaces with one implementation and is none; remove it there")
	}
	return problems
}

func testOnlyFolder(dir string) bool {
	return slices.ContainsFunc(testOnly(), func(folder string) bool { return strings.HasPrefix("./"+dir+"/", folder+"/") })
}

// declarations adds the types of a file to the maps. Their names begin with the folder.
func declarations(file source, interfaces, types map[string]*declared) {
	get := func(all map[string]*declared, name string) *declared {
		name = file.dir() + "." + name
		if all[name] == nil {
			all[name] = &declared{methods: map[string]bool{}}
		}
		return all[name]
	}
	for _, d := range file.ast.Decls {
		if f, is := d.(*ast.FuncDecl); is && f.Recv != nil {
			get(types, typeName(f.Recv.List[0].Type)).methods[method(f.Name.Name, f.Type)] = true
		}
	}
	ast.Inspect(file.ast, func(n ast.Node) bool {
		spec, is := n.(*ast.TypeSpec)
		if !is {
			return true
		}
		switch content := spec.Type.(type) {
		case *ast.InterfaceType:
			i := get(interfaces, spec.Name.Name)
			for _, m := range content.Methods.List {
				switch f, isMethod := m.Type.(*ast.FuncType); {
				case isMethod:
					i.methods[method(m.Names[0].Name, f)] = true
				case typeName(m.Type) == "":
					i.constraint = true
				default:
					i.embeds = append(i.embeds, embedded(file, m.Type))
				}
			}
		case *ast.StructType:
			s := get(types, spec.Name.Name)
			for _, f := range content.Fields.List {
				if len(f.Names) == 0 {
					s.embeds = append(s.embeds, embedded(file, f.Type))
				}
			}
		}
		return true
	})
}

func method(name string, f *ast.FuncType) string {
	results := 0
	if f.Results != nil {
		results = count(f.Results)
	}
	return fmt.Sprintf("%s/%d/%d", name, count(f.Params), results)
}

// typeName returns the name of a type without its package, pointer and type parameters, or "" for other expressions.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// embedded returns the name of an embedded type, prefixed with the folder of its own package or with the last part of
// the import path.
func embedded(file source, e ast.Expr) string {
	if star, is := e.(*ast.StarExpr); is {
		e = star.X
	}
	if selector, is := e.(*ast.SelectorExpr); is {
		return "*/" + typeName(selector.X) + "." + selector.Sel.Name
	}
	return file.dir() + "." + typeName(e)
}

// methodsOf returns the methods of a type and of its embedded types, as far as all or more contain their declarations.
func methodsOf(name string, all, more map[string]*declared) map[string]bool {
	methods := map[string]bool{}
	add := func(d *declared) {
		maps.Copy(methods, d.methods)
		for _, e := range d.embeds {
			maps.Copy(methods, methodsOf(e, all, more))
			maps.Copy(methods, methodsOf(e, more, nil))
		}
	}
	pattern, elsewhere := strings.CutPrefix(name, "*/")
	if d := all[name]; d != nil && !elsewhere {
		add(d)
	}
	for other, d := range all {
		if elsewhere && path.Base(other) == pattern {
			add(d)
		}
	}
	return methods
}
