// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/drover-dev/drover/test/testkit"
)

// managersNames are names, and beginnings of names, of Secrets in the manager's own namespace. Users who may write
// Secrets there administer the hub.
var managersNames = []string{"drover-ca", "drover-sign-in", "drover-session-", "drover-token-", "drover-user-"}

// membersNames are names of Secrets in members. The administrators of the members protect them.
var membersNames = []string{
	"drover-agent-deployment", "drover-agent-env", "drover-agent-identity", "drover-agent-registration", "drover-direct-access", "hub.checkpoint",
}

// secretConstant matches the identifiers of constants with the name of a Secret, or with the end or beginning of a
// name. Constants for kinds and keys have other identifiers.
var (
	secretConstant = regexp.MustCompile(`^[sS]ecret(Suffix|Prefix|Name)$|Secret(Suffix|Prefix|Name)?$`)
	otherConstant  = regexp.MustCompile(`^(kind|key)Secret$`)
)

// TestEverySecretThatIsFoundByNameIsGuarded checks that each name by which code finds a Secret is a constant, and that
// each of these constants is in guardedNames. testSecretsByName tries to write Secrets with these names as an editor.
// Names that are built from literals are not allowed, because the test would miss them.
func TestEverySecretThatIsFoundByNameIsGuarded(t *testing.T) {
	used := map[string]bool{}
	for _, folder := range []string{"api", "agent", "cmd", "controllers", "internal"} {
		root := testkit.Path(t, folder)
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			at := func(n ast.Node) string { return files.Position(n.Pos()).String() }
			ast.Inspect(file, func(n ast.Node) bool {
				for name, value := range constants(n) {
					used[value] = true
					if _, guarded := guardedNames[value]; !guarded && !slices.Contains(managersNames, value) && !slices.Contains(membersNames, value) {
						t.Errorf("%s: the constant %s is %q, which no policy guards: add it to config/policy/secrets.yaml and to guardedNames", at(n), name, value)
					}
				}
				if ending := concatenated(n); ending != "" {
					if _, guarded := guardedNames[ending]; guarded {
						t.Errorf("%s: the name of a Secret ends in the literal %q: use the constant", at(n), ending)
					}
				}
				if ending := namedBy(n); ending != "" {
					t.Errorf("%s: the name of an object ends in the literal %q: make it a constant, and if it is the name of a Secret, one that is called ...SecretSuffix", at(n), ending)
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for ending := range guardedNames {
		if !used[ending] {
			t.Errorf("no constant is %q: take it out of guardedNames and of config/policy/secrets.yaml", ending)
		}
	}
}

// constants returns the constants of a declaration whose identifiers match those with names of Secrets.
func constants(n ast.Node) map[string]string {
	spec, ok := n.(*ast.ValueSpec)
	if !ok {
		return nil
	}
	found := map[string]string{}
	for i, name := range spec.Names {
		if i < len(spec.Values) && secretConstant.MatchString(name.Name) && !otherConstant.MatchString(name.Name) {
			if value := literal(spec.Values[i]); value != "" {
				found[name.Name] = value
			}
		}
	}
	return found
}

// concatenated returns the literal at the end of a concatenation.
func concatenated(n ast.Node) string {
	if sum, ok := n.(*ast.BinaryExpr); ok && sum.Op == token.ADD {
		return literal(sum.Y)
	}
	return ""
}

// namedBy returns the literal at the end of the name in an object key, if the name is a concatenation.
func namedBy(n ast.Node) string {
	object, ok := n.(*ast.CompositeLit)
	if !ok {
		return ""
	}
	if kind, ok := object.Type.(*ast.SelectorExpr); !ok || !slices.Contains([]string{"NamespacedName", "ObjectKey", "ObjectMeta"}, kind.Sel.Name) {
		return ""
	}
	for _, field := range object.Elts {
		if pair, ok := field.(*ast.KeyValueExpr); ok {
			if key, ok := pair.Key.(*ast.Ident); ok && key.Name == "Name" {
				return concatenated(pair.Value)
			}
		}
	}
	return ""
}

func literal(n ast.Expr) string {
	if basic, ok := n.(*ast.BasicLit); ok && basic.Kind == token.STRING {
		value, _ := strconv.Unquote(basic.Value)
		return value
	}
	return ""
}
