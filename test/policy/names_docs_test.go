// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/drover-dev/drover/test/testkit"
)

// ofPage matches the end of a Secret's name in an object that the page requests.
var ofPage = regexp.MustCompile("resource: \"secrets\"[^`\"]*(?:`\\$\\{[^}]*\\}|name: name \\+ \")([a-z-]*)[`\"]")

// TestThePageFindsSecretsByGuardedNames checks the page in the same way as TestEverySecretThatIsFoundByNameIsGuarded
// checks the Go code.
func TestThePageFindsSecretsByGuardedNames(t *testing.T) {
	found := 0
	eachFile(t, "internal/portal/page/static", ".js", func(path, text string) {
		for _, ending := range ofPage.FindAllStringSubmatch(text, -1) {
			found++
			if _, guarded := guardedNames[ending[1]]; !guarded {
				t.Errorf("%s reads a Secret whose name ends in %q, which no policy guards", path, ending[1])
			}
		}
	})
	if found == 0 {
		t.Error("the page reads no Secret, want this test to find the registration that it reads")
	}
}

// TestTheDocumentationFindsSecretsByTheirLabels checks the commands in the documentation, because users run them and
// pass on their output. A Secret that only has the right name may be older than the policy.
func TestTheDocumentationFindsSecretsByTheirLabels(t *testing.T) {
	check := func(path, text string) {
		for line := range strings.Lines(text) {
			_, command, is := strings.Cut(line, "get secret ")
			for ending := range guardedNames {
				if is && slices.ContainsFunc(strings.Fields(command), func(word string) bool { return strings.HasSuffix(word, ending) }) {
					t.Errorf("%s has a command that reads a Secret by its name, want one by labels (-l cluster.drover.dev/secret=…): %s", path, line)
				}
			}
		}
	}
	for _, folder := range []string{"docs", "config/samples", "test/e2e/nodes"} {
		for _, kind := range []string{".md", ".yaml", ".go"} {
			eachFile(t, folder, kind, check)
		}
	}
	text, err := os.ReadFile(testkit.Path(t, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	check("README.md", string(text))
}

// eachFile calls see with each file with an extension below a folder.
func eachFile(t *testing.T, folder, kind string, see func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(testkit.Path(t, folder), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != kind {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil {
			see(path, string(text))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
