// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/drover-dev/drover/test/testkit"
)

// TestModulesHaveTheirTypes checks the types in comments of the page's modules. It is skipped where npm has not
// installed the compiler in test/page.
func TestModulesHaveTheirTypes(t *testing.T) {
	folder := testkit.Path(t, "test/page")
	compiler := filepath.Join(folder, "node_modules/typescript/bin/tsc")
	if _, err := os.Stat(compiler); err != nil {
		t.Skip(`the TypeScript compiler is not installed: run "npm ci" in test/page`)
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("Node.js is not installed")
	}
	command := exec.CommandContext(t.Context(), node, compiler, "--project", folder)
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v\n%.10000s", err, out)
	}
}
