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

// pollInterval is how often a condition is looked at.
const pollInterval = 100 * time.Millisecond

// hopeless says that waiting any longer is of no use.
type hopeless struct{ error }

func (h hopeless) Unwrap() error { return h.error }

// await asks check until it returns nil. At the end of the limit or of ctx it returns what check said last, and at once when that
// is hopeless.
func await(ctx context.Context, limit time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %s", limit))
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	var last error
	for {
		err := check(ctx)
		if err == nil || errors.As(err, new(hopeless)) {
			return err
		}
		if ctx.Err() == nil || last == nil {
			last = err // later ones only say that time is up
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), last)
		case <-ticker.C:
		}
	}
}

// tail is the end of a log, for an error.
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
