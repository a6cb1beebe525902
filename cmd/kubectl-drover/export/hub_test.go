// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

func TestAnExportRefusesAHub(t *testing.T) {
	var out strings.Builder
	commands := func(o *cli.Options) []*cobra.Command { return []*cobra.Command{New(o)} }
	args := []string{"rancher", "export", t.TempDir(), "-w", "team", "--hub", "x"}
	if code := cli.Run(t.Context(), "test", commands, args, &out, &out); code != cli.ExitError ||
		!strings.Contains(out.String(), "does not support --hub") {
		t.Errorf("exit code %d: %s, want an error, because the hub is not exported", code, &out)
	}
}
