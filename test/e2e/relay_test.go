// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/drover-dev/drover/test/relay"
)

// startRelay starts a relay to a server. The relay ends with the test.
func startRelay(t *testing.T, server string) *relay.Relay {
	t.Helper()
	r, err := relay.Start(t.Context(), server, relay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}
