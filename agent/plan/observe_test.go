// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"
)

func TestAClaimThatDroverCannotHaveWrittenIsNone(t *testing.T) {
	const since = `"since":"2026-11-21T00:00:00Z"`
	for text, want := range map[string]bool{
		`{"uid":"u",` + since + `}`: true,
		`{"uid":"u",` + since + `,"failure":{"at":"2026-11-21T00:00:00Z","reason":"x"}}`: true,
		`{` + since + `}`:                        false,
		`{"uid":"u"}`:                            false,
		`{"uid":"u",` + since + `,"failure":{}}`: false,
		`{"uid":"u","since":"yesterday"}`:        false,
		`["u"]`:                                  false,
	} {
		if _, ours := readClaim(text); ours != want {
			t.Errorf("%s: %t, want %t", text, ours, want)
		}
	}
	long := strings.Repeat("é", 4000)
	c, ours := readClaim(`{"uid":"u",` + since + `,"failure":{"at":"2026-11-21T00:00:00Z","reason":"` + long + `","message":"` + long + `"}}`)
	if !ours || len(c.Failure.Reason) > maxReason || len(c.Failure.Message) > maxCause {
		t.Errorf("a failure of %d and %d bytes", len(c.Failure.Reason), len(c.Failure.Message))
	}
}
