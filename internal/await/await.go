// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package await waits for a time or a wake-up until a context ends.
package await

import (
	"context"
	"time"
)

// Time waits until d has passed. It returns false if ctx ends first.
func Time(ctx context.Context, d time.Duration) bool { return Wake(ctx, nil, d) }

// Wake waits until d has passed or wake receives a value. It returns false if ctx ends first.
func Wake(ctx context.Context, wake <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-wake:
	case <-timer.C:
	}
	return ctx.Err() == nil
}

// Loop calls pass immediately, whenever wake receives a value, and when the time that pass returned has passed, until
// ctx ends. If pass returns 0, Loop waits for wake only.
func Loop(ctx context.Context, wake <-chan struct{}, pass func(context.Context) time.Duration) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-timer.C:
		}
		if again := pass(ctx); again > 0 {
			timer.Reset(again)
		} else {
			timer.Stop()
		}
	}
}
