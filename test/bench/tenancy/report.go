// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"
)

// report prints the rows as a table.
func report(out io.Writer, n int, rows []row, sizes []size) error {
	text := &strings.Builder{}
	fmt.Fprintf(text, "# A binding from the hub to the member\n\n`make bench-tenancy` wrote these tables on a machine with %d cores, which the hub, the member, the manager, the agent and the benchmark share. Each row has %d samples.\n"+
		"Time is measured from the write on the hub until the member's API server sends the change to a watch, or until a SubjectAccessReview in the member shows the change.\n"+
		"The rows \"in turns\" are compared with direct writes that alternate with the bindings. The other rows are compared with the first row, whose direct writes ran on an otherwise idle machine.\n\n", runtime.NumCPU(), n)
	text.WriteString("| what | p50 ms | p99 ms | last ms | relative to a direct write's p50 | goal | hub writes | member writes | manager CPU ms |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		slices.Sort(r.took)
	}
	for _, r := range rows {
		direct := rows[0].took // written one after the other, while nothing else runs
		if r.inTurns != nil {
			direct = r.inTurns
		}
		times, outcome := r.ratio(at(direct, 50))
		fmt.Fprintf(text, "| %s | %.1f | %.1f | %.1f | %s | %s | %s | %s | %s |\n", r.what, ms(at(r.took, 50)), ms(at(r.took, 99)), ms(r.took[len(r.took)-1]),
			times, outcome, figure(r.hub), figure(r.member), figure(ms(r.cpu)))
	}
	text.WriteString("\nThe API servers count the writes for each binding, without leases. On the hub, these are the benchmark's own write, the status and the events. In the member, they are the stored set and the object.\n" +
		"Each row with many members measures one write until every member has received the set. In these rows, the benchmark's process simulates the agents, which apply nothing. Writes and CPU are the hub's totals for all members.\n")
	writeCosts(text, rows)
	for _, s := range sizes {
		fmt.Fprintf(text, "\nResident memory %s, after %s of rest: the agent %.1f MiB (anonymous %.1f), the manager %.1f MiB (anonymous %.1f).\n", s.when, restTime,
			mib(s.agent.RSS), mib(s.agent.Anonymous), mib(s.manager.RSS), mib(s.manager.Anonymous))
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// ratio returns the ratio to a direct write, and whether the goal was met.
func (r row) ratio(direct time.Duration) (times, outcome string) {
	of, is := "p50", at(r.took, 50)
	if r.ofLast {
		of, is = "last", r.took[len(r.took)-1]
	}
	ratio := float64(is) / float64(direct)
	switch {
	case r.goal == 0:
	case ratio <= r.goal:
		outcome = fmt.Sprintf("≤ %.0f ×: met", r.goal)
	default:
		outcome = fmt.Sprintf("≤ %.0f ×: missed", r.goal)
	}
	return fmt.Sprintf("%.1f × (%s)", ratio, of), outcome
}

func at(sorted []time.Duration, percent int) time.Duration {
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func figure(n float64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", n)
}

// writeCount counts writes on the hub and in the member.
type writeCount struct {
	processes   *processes
	hub, member float64
}

func (p *processes) countWrites(ctx context.Context) (*writeCount, error) {
	hub, err := p.hub.Writes(ctx)
	if err != nil {
		return nil, err
	}
	member, err := p.member.Writes(ctx)
	return &writeCount{processes: p, hub: hub, member: member}, err
}

// settleTime is how long to wait after the last binding for the writes that it causes.
const settleTime = 2 * time.Second

func settle(ctx context.Context) error {
	select {
	case <-time.After(settleTime):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// each returns the number of writes since then for each of n.
func (c *writeCount) each(ctx context.Context, n int) (hub, member float64, err error) {
	if err := settle(ctx); err != nil {
		return 0, 0, err
	}
	now, err := c.processes.countWrites(ctx)
	if err != nil {
		return 0, 0, err
	}
	return (now.hub - c.hub) / float64(n), (now.member - c.member) / float64(n), nil
}
