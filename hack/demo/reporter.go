// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// reporter prints one line for each step. The line includes the time that the step took. It prints the output of the
// step below this line.
type reporter struct {
	mu   sync.Mutex // guards the following fields; build output comes from other goroutines
	out  io.Writer
	open bool // set while the line of a step has not been ended
}

func newReporter(out io.Writer) *reporter { return &reporter{out: out} }

// step runs do and reports the outcome. do returns a remark, such as "runs already".
func (r *reporter) step(ctx context.Context, what string, do func(context.Context) (string, error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	start := time.Now()
	r.begin(what)
	remark, err := do(ctx)
	outcome := time.Since(start).Round(100 * time.Millisecond).String()
	if remark != "" {
		outcome = remark + ", " + outcome
	}
	if err != nil {
		r.end("failed", outcome)
		return err
	}
	r.end("done", outcome)
	return nil
}

func (r *reporter) begin(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, "%s ... ", what)
	r.open = true
}

func (r *reporter) end(state, outcome string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	indent := "  "
	if r.open {
		indent = ""
	}
	fmt.Fprintf(r.out, "%s%s (%s)\n", indent, state, outcome)
	r.open = false
}

// Write prints the output of a step below the step's line.
func (r *reporter) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open {
		fmt.Fprintln(r.out)
		r.open = false
	}
	return r.out.Write(p)
}

// note prints a line below the line of the step.
func (r *reporter) note(format string, args ...any) {
	fmt.Fprintf(r, "  %s\n", strings.TrimRight(fmt.Sprintf(format, args...), "\n"))
}
