// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestAScriptIsPlayedToItsEnd(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := run("testdata/waves.yaml", &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"2026-11-28T01:00:00Z  +5h0m0s     canary                      begin", // 02:00 in Berlin, a Saturday
		"c-2            retry     attempt 2",
		"2026-11-28T02:15:30Z  +6h15m30s   east                        begin", // the canary was complete at 01:15:30
		"Complete: 4 clusters complete",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("there is no %q in\n%s", want, out.String())
		}
	}
}

func TestAScriptThatCannotBeReadIsNamed(t *testing.T) {
	t.Parallel()
	if err := run("testdata/none.yaml", &strings.Builder{}); err == nil || !strings.Contains(err.Error(), "none.yaml") {
		t.Errorf("it says %v", err)
	}
}
