// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"path/filepath"
	"slices"
	"testing"
)

// The core builds without the folders of provisioning, and the provisioner without tunnels, users and sets: what a
// program does not contain, it cannot do.
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
			t.Errorf("%s is built from %d packages of this module: go list has not named all", program, found)
		}
	}
}
