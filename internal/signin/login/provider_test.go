// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/drover-dev/drover/test/testkit"
)

func TestSlowProviderLeavesRoomForLoginsAtOthers(t *testing.T) {
	u := newUpstreams()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ask := func(ctx context.Context, provider, source string) error {
		_, _, err := u.enter(ctx, source, provider)
		return err
	}
	for i := range 32 {
		go func() { _ = ask(ctx, "slow", fmt.Sprintf("192.0.2.%d", i)) }()
	}
	testkit.Eventually(t, 10*time.Second, func(context.Context) error {
		if taken, waiting := u.gate.Load(); taken+waiting < 32 {
			return fmt.Errorf("%d logins are under way, and %d wait; want 32 in all", taken, waiting)
		}
		return nil
	})
	if err := ask(t.Context(), "other", "198.51.100.1"); err != nil {
		t.Errorf("while one provider is slow, a login at another is refused: %v", err)
	}
}
