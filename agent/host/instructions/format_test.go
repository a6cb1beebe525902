// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instructions

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/internal/protocol"
)

// TestStoredInstructionsAreReadByOtherVersions pins the format of the file that an agent of the previous release has
// left, or will read after a downgrade.
func TestStoredInstructionsAreReadByOtherVersions(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile("testdata/plan.json")
	if err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	path := filepath.Join(state, "plan.json")
	if err := os.WriteFile(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := New(Options{State: state, Log: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	if p := r.Progress(); p.Version != "u1.7" || p.Phase != protocol.HostCleaning || p.Total != 1 || *p.Owner != "Cluster/prod" {
		t.Errorf("it goes on with %+v, want the instructions of version u1.7, which were taken away", p)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := r.store(r.current()); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != string(want) {
		t.Errorf("it stores (%v)\n%s\nwant\n%s", err, got, want)
	}
}
