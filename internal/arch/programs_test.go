// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"path/filepath"
	"slices"
	"testing"
)

// The core must build without the folders for provisioning, and the provisioner without tunnels, users and sets: code
// that is not part of a program cannot be misused in it.
func TestEachProgramIsBuiltWithoutTheOther(t *testing.T) {
	for program, never := range map[string][]string{
		".": provisioning(),
		"./cmd/drover-provisioner": {
			"./controllers/cluster", "./controllers/host", "./internal/delivery", "./internal/members",
			"./internal/peer", "./internal/proxy", "./internal/server", "./internal/tunnel",
		},
	} {
		found := 0
		for _, p := range dependencies(t, program) {
			if p.Module == nil || !p.Module.Main {
				continue
			}
			dir, err := filepath.Rel(root(t), p.Dir)
			if err != nil {
				t.Fatal(err)
			}
			found++
			if slices.ContainsFunc(never, func(folder string) bool { return inside("./"+filepath.ToSlash(dir), folder) }) {
				t.Errorf("%s is built from %s, want it to build without that folder", program, dir)
			}
		}
		if found < 10 {
			t.Errorf("got only %[2]d packages of this module for %[1]s from go list, want all", program, found)
		}
	}
}
