// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/kinds"
)

// The sets of a kind without owners would be removed from members when a manager becomes the leader, before the kind's
// controller has handed over its sets.
func TestEveryKindOfSetHasOwners(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../internal/set/set.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var sets []string
	for _, declaration := range file.Decls {
		constants, ok := declaration.(*ast.GenDecl)
		if !ok || !strings.HasPrefix(constants.Doc.Text(), "Kinds of sets") {
			continue
		}
		for _, spec := range constants.Specs {
			kind, err := strconv.Unquote(spec.(*ast.ValueSpec).Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			sets = append(sets, kind)
		}
	}
	var owned []string
	for _, kind := range kinds.All() {
		for _, s := range kind.Sets {
			owned = append(owned, s.Kind)
		}
	}
	slices.Sort(sets)
	slices.Sort(owned)
	if len(sets) == 0 || !slices.Equal(sets, owned) {
		t.Errorf("internal/set has the kinds %v, and internal/kinds owners of %v: want the same", sets, owned)
	}
}
