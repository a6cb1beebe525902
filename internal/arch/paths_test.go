// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// quotedPath matches a file or folder of this repository that a document quotes.
var quotedPath = regexp.MustCompile(
	"`((?:agent|api|cmd|config|controllers|docs|hack|internal|test)/[A-Za-z0-9_./-]*|main\\.go)`",
)

func TestTheMapsNameFilesThatExist(t *testing.T) {
	for _, document := range []string{"docs/architecture.md", "docs/contributing.md"} {
		report(t, pathProblems(root(t), document, readFile(t, document)))
	}
}

func pathProblems(top, document, text string) []string {
	var problems []string
	for n, line := range strings.Split(text, "\n") {
		for _, found := range quotedPath.FindAllStringSubmatch(line, -1) {
			if _, err := os.Stat(filepath.Join(top, found[1])); err != nil {
				problems = append(
					problems, fmt.Sprintf("%s:%d: %s does not exist: name the present file or folder", document, n+1, found[1]),
				)
			}
		}
	}
	return problems
}

func TestPathRule(t *testing.T) {
	tests := map[string]struct{ line, want string }{
		"a file passes":                     {"see `internal/arch/doc.go`", ""},
		"a folder passes":                   {"`docs/design/` and `internal/arch`", ""},
		"a path that is gone fails":         {"see `internal/fleet`", "internal/fleet does not exist"},
		"a name that is no path passes":     {"`Settings` and `get/list`", ""},
		"a path that is not quoted passes":  {"internal/fleet is gone", ""},
		"a path with an ellipsis is passed": {"`agent/…`", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			expect(t, pathProblems(root(t), "a.md", tt.line), tt.want)
		})
	}
}

var (
	// makeCommand matches the targets of a quoted or shown "make" command.
	makeCommand = regexp.MustCompile("(?m)(?:^|`)make ([a-z][a-z0-9-]*(?: [a-z][a-z0-9-]*)*)")
	makeTargets = regexp.MustCompile(`(?m)^([a-z][a-z0-9 -]*):(?:[^=]|$)`)
)

// TestTheGuidesNameTargetsThatExist reads the README too, whose build and test commands .ci/run and newcomers rely on.
func TestTheGuidesNameTargetsThatExist(t *testing.T) {
	targets := map[string]bool{}
	for _, line := range makeTargets.FindAllStringSubmatch(readFile(t, "Makefile"), -1) {
		for _, target := range strings.Fields(line[1]) {
			targets[target] = true
		}
	}
	readme := readFile(t, "README.md")
	for _, want := range []string{"\nmake build ", "\nmake test "} {
		if !strings.Contains(readme, want) {
			t.Errorf("README.md has no line %q, want the commands for building and testing", strings.TrimSpace(want))
		}
	}
	for _, document := range []string{"README.md", "CONTRIBUTING.md", "docs/contributing.md", "docs/lab/README.md"} {
		for _, found := range makeCommand.FindAllStringSubmatch(readFile(t, document), -1) {
			for _, target := range strings.Fields(found[1]) {
				if !targets[target] {
					t.Errorf("%s names make %s, want a target of the Makefile", document, target)
				}
			}
		}
	}
}
