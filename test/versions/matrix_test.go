// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/drover-dev/drover/test/framework"
)

// The matrix is between these lines of the page.
const (
	matrixPage  = "docs/versions.md"
	matrixBegin = "<!-- written by make test-versions -->\n"
	matrixEnd   = "<!-- end -->\n"
)

// matrix returns the table of the tested combinations, with the revision of the old version.
func matrix(revision string) string {
	var b strings.Builder
	if revision == formerCommit {
		revision = revision[:12]
	}
	fmt.Fprintf(&b, "\n`old` is `%s`; `new` is the version of this page.\n\n", revision)
	header := "| | hub | agents | plugin |"
	rule := "|---|---|---|---|"
	tested := ""
	for _, s := range steps() {
		header += " " + s.name + " |"
		rule += "---|"
		tested += " ✓ |"
	}
	fmt.Fprintf(&b, "%s\n%s\n", header, rule)
	for _, s := range situations() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |%s\n", s.name, s.hub, s.agent, s.plugin, tested)
	}
	return b.String() + "\n"
}

// parts returns a page before the matrix, the matrix, and the page after it.
func parts(page string) (before, table, after string, err error) {
	before, rest, begins := strings.Cut(page, matrixBegin)
	table, after, ends := strings.Cut(rest, matrixEnd)
	if !begins || !ends {
		return "", "", "", fmt.Errorf("%s has no lines %q and %q", matrixPage, matrixBegin, matrixEnd)
	}
	return before + matrixBegin, table, matrixEnd + after, nil
}

// writeMatrix writes the matrix into the page, after all of it has been tested.
func writeMatrix(t *testing.T, root, revision string) {
	t.Helper()
	file := filepath.Join(root, matrixPage)
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, _, after, err := parts(string(raw))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(before+matrix(revision)+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestThePageHasTheMatrixOfTheTest(t *testing.T) {
	root, err := framework.Sources()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(root, matrixPage))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _, err := parts(string(raw))
	if err != nil {
		t.Fatal(err)
	}
	revision := formerCommit
	if found := regexp.MustCompile("`(v[0-9][^`]*)`").FindStringSubmatch(table); found != nil {
		revision = found[1]
	}
	if want := matrix(revision); table != want {
		t.Errorf("%s has the matrix\n%s\nwant, after \"make test-versions\",\n%s", matrixPage, table, want)
	}
}
