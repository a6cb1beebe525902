// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEveryGoFileHasTheLicenceHeader(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(root(t), "hack", "boilerplate.go.txt"))
	if err != nil {
		t.Fatal(err)
	}
	report(t, licenceProblems(goFiles(t), strings.TrimSpace(string(raw))))
}

// licenceProblems lists the files that do not begin with the header. Generated files can have a build constraint above
// it.
func licenceProblems(files []source, header string) []string {
	var problems []string
	for _, f := range files {
		above, _, found := bytes.Cut(f.text, []byte(header+"\n"))
		if !found || len(bytes.TrimSpace(above)) > 0 && !onlyConstraint(above) {
			problems = append(problems,
				fmt.Sprintf("%s: does not begin with the licence header of hack/boilerplate.go.txt", f.path))
		}
	}
	return problems
}

func onlyConstraint(above []byte) bool {
	line := bytes.TrimSpace(above)
	return bytes.HasPrefix(line, []byte("//go:build ")) && !bytes.Contains(line, []byte("\n"))
}

func TestLicenceRule(t *testing.T) {
	const header = "// Copyright Someone.\n// SPDX-License-Identifier: X"
	tests := map[string]struct{ source, want string }{
		"the header at the top passes":            {header + "\n\npackage a", ""},
		"a build constraint above passes":         {"//go:build linux\n\n" + header + "\n\npackage a", ""},
		"no header fails":                         {"package a", "licence header"},
		"a header below the package clause fails": {"package a\n\n" + header + "\n", "licence header"},
		"another comment above fails":             {"// Hello.\n" + header + "\n\npackage a", "licence header"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			expect(t, licenceProblems([]source{fixture(t, "a.go", tt.source)}, header), tt.want)
		})
	}
}
