// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// pollInterval is the time between two checks of a condition.
const pollInterval = 100 * time.Millisecond

// permanentError is an error that ends a wait immediately.
type permanentError struct{ error }

func (h permanentError) Unwrap() error { return h.error }

// await calls check until check returns nil. When the limit is reached or ctx ends, await returns the last error from
// check. If check returns a permanentError, await returns it immediately.
func await(ctx context.Context, limit time.Duration, check func(context.Context) error) error {
	return awaitEvery(ctx, pollInterval, limit, check)
}

// awaitEvery is like await, but waits for the given interval between two calls.
func awaitEvery(ctx context.Context, interval, limit time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %s", limit))
	defer cancel()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var last error
	for {
		err := check(ctx)
		if err == nil || errors.As(err, new(permanentError)) {
			return err
		}
		if ctx.Err() == nil || last == nil {
			last = err // later errors only say that the time is up
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), last)
		case <-ticker.C:
		}
	}
}

// tail returns the end of a log, for use in an error.
func tail(path string) string {
	const lines, limit = 12, 16 << 10
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	content = content[max(0, len(content)-limit):]
	all := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
