// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"os"
	"os/exec"
	"testing"
)

func TestCVE2024_22030InAProcessOfItsOwn(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), self, "-test.run=^TestCVE2024_22030$", "-test.v")
	command.Env = append(os.Environ(), "DROVER_TEST_SYSTEM_ROOTS=1")
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
