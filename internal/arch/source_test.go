// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A source is one parsed Go file.
type source struct {
	path      string // relative to the module's root, with slashes
	text      []byte
	fset      *token.FileSet
	ast       *ast.File
	generated bool
}

func parse(path string, text []byte) (source, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return source{}, fmt.Errorf("parse %s: %w", path, err)
	}
	return source{path: path, text: text, fset: fset, ast: file, generated: ast.IsGenerated(file)}, nil
}

func (s source) test() bool { return strings.HasSuffix(s.path, "_test.go") }

func (s source) dir() string { return filepath.ToSlash(filepath.Dir(s.path)) }

func (s source) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", s.path, s.fset.Position(n.Pos()).Line)
}

// root returns the folder of the module's go.mod.
func root(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod above the test's folder")
		}
		dir = parent
	}
}

// goFiles returns every Go file of the tree, including nested modules such as the benchmarks. The tests of this package
// share the result.
func goFiles(t *testing.T) []source {
	t.Helper()
	top := root(t)
	parsed.Do(func() { parsed.files, parsed.err = parseTree(top) })
	if parsed.err != nil {
		t.Fatal(parsed.err)
	}
	if len(parsed.files) == 0 {
		t.Fatal("no Go file found")
	}
	return parsed.files
}

// parsed caches the files of the tree.
var parsed struct {
	sync.Once
	files []source
	err   error
}

// parseTree parses every Go file below a folder.
func parseTree(top string) ([]source, error) {
	var all []source
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return skipFolder(entry.Name(), path == top)
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		file, err := parse(filepath.ToSlash(rel), text)
		all = append(all, file)
		return err
	})
	return all, err
}

// skipFolder returns fs.SkipDir for folders that the go command ignores, and for folders with built or installed files.
func skipFolder(name string, top bool) error {
	hidden := strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")
	if !top && (hidden || slices.Contains([]string{"bin", "node_modules", "testdata", "vendor"}, name)) {
		return filepath.SkipDir
	}
	return nil
}

// fixture parses text as a file with the given path, for tests of the rules themselves.
func fixture(t *testing.T, path, text string) source {
	t.Helper()
	s, err := parse(path, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// report fails the test for each problem.
func report(t *testing.T, problems []string) {
	t.Helper()
	for _, p := range problems {
		t.Error(p)
	}
}

// expect fails the test unless there is exactly one problem and it contains want, or no problem if want is empty.
func expect(t *testing.T, problems []string, want string) {
	t.Helper()
	if want == "" && len(problems) == 0 {
		return
	}
	if want == "" || len(problems) != 1 || !strings.Contains(problems[0], want) {
		t.Errorf("got %q, want one problem with %q", problems, want)
	}
}
