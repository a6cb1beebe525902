// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A name that no test has would leave the test out of no target, and one of another package would leave it out of all.
func TestLongTestsAreRunByTestLong(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root(t), "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?m)^long := (.+)$`).FindSubmatch(makefile)
	command := regexp.MustCompile(`(?m)^\t.*-run '\^\(\$\(long\)\)\$\$' (.+)$`).FindSubmatch(makefile)
	if list == nil || command == nil {
		t.Fatalf("the Makefile has the long tests as %q, and runs them in %q; want a list of names, and folders", list,
			command)
	}
	declared := map[string]bool{}
	for _, folder := range strings.Fields(string(command[1])) {
		files, err := filepath.Glob(filepath.Join(root(t), folder, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("find tests in %s: %v, %v", folder, files, err)
		}
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`).FindAllSubmatch(source, -1) {
				declared[string(name[1])] = true
			}
		}
	}
	for _, name := range strings.Split(string(list[1]), "|") {
		if !declared[name] {
			t.Errorf("the long test %s is in none of %s: name the folder in the target test-long, or mend the name", name,
				command[1])
		}
	}
}
