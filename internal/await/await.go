// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package await waits for a duration or a wake-up, or until a context ends.
package await

import (
	"context"
	"time"
)

// Time waits for d. It returns false if ctx is done first.
func Time(ctx context.Context, d time.Duration) bool { return Wake(ctx, nil, d) }

// Wake waits for d or until wake receives a value. It returns false if ctx is done first.
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

// Signal sends a value to a channel with a buffer, unless the buffer is full, because one pending signal is enough.
func Signal(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// Loop calls pass repeatedly until ctx is done. After each call, it waits until wake receives a value, or for the
// duration that pass returned. If that duration is 0, Loop waits only for wake.
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
