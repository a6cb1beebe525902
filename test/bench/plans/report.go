// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/drover-dev/drover/test/lab"
)

const (
	// goalNode is the time that the runner may add for a node at p50. system-upgrade-controller adds sucJob + sucLabel.
	goalNode = 50 * time.Millisecond
	sucJob   = 52 * time.Millisecond
	sucLabel = 16 * time.Millisecond
	// goalResident is the maximum resident memory of an idle agent, and goalWorked the maximum after Plans.
	goalResident, goalWorked = 22 << 20, 24 << 20
)

// results contains all measured values.
type results struct {
	commit, machine, planner string
	rows                     []row
	idle                     []idle
	fleet                    *fleetResult
}

// row is one kind of Plan in one member.
type row struct {
	what   string
	took   []moments
	writes float64 // in the member, for each Plan
	goal   bool    // whether goalNode is for this kind
}

// idle is the resource usage of an idle agent.
type idle struct {
	when  string
	usage lab.Usage
	cpu   time.Duration
}

// machine describes the machine, and the other load during the benchmark.
func machine() string {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		load = []byte("unknown")
	}
	return fmt.Sprintf("%d cores and, before the run, a load of %.14s", runtime.NumCPU(), load)
}

// write writes the page.
func (r *results) write(out io.Writer) error {
	text := &strings.Builder{}
	fmt.Fprintf(text, "# The cost of Plans\n\n`make bench-plans` wrote this page at commit %s, on a machine with %s. All processes share the cores. All times are measured with a watch.\n", r.commit, r.machine)
	r.writeMember(text)
	if r.fleet != nil {
		r.fleet.write(text)
	}
	fmt.Fprintf(text, "\n## The planner\n\nEach iteration computes one step for a fleet of which half is complete, and one step for a member that has completed five of its ten nodes. The command is "+
		"`go test ./internal/rollout -run '^$' -bench '^BenchmarkNext' -count 3`.\n\n```\n%s\n```\n", r.planner)
	_, err := io.WriteString(out, text.String())
	return err
}

func (r *results) writeMember(text *strings.Builder) {
	text.WriteString("\n## One member\n\nThe benchmark uses a real control plane with its Job controller, a real agent, and one simulated node whose containers succeed immediately. " +
		"Each Plan is created as soon as the status of the previous Plan reports that it is complete.\n\n" +
		"| Plans, ms p50 / max | Plan created → Job | the same pods evicted directly | Job complete → label | added by the runner | goal | label → status complete | writes for each |\n|---|---|---|---|---|---|---|---|\n")
	for _, w := range r.rows {
		job, label, runner := w.column(func(m moments) time.Duration { return m.job }), w.column(func(m moments) time.Duration { return m.label - m.jobDone }), w.column(moments.runner)
		goal := ""
		if w.goal {
			goal = fmt.Sprintf("p50 < %d: %s", goalNode.Milliseconds(), outcome(runner[len(runner)/2] < goalNode))
		}
		fmt.Fprintf(text, "| %s, n=%d | %s | %s | %s | %s | %s | %s | %s |\n", w.what, len(w.took), span(job),
			span(w.column(func(m moments) time.Duration { return m.pods })), span(label), span(runner), goal,
			span(w.column(func(m moments) time.Duration { return m.status - m.label })), figure(w.writes))
	}
	fmt.Fprintf(text, "| system-upgrade-controller, a real node, n=20 | %.0f / 90 | | %.0f | %.0f | | | |\n", ms(sucJob), ms(sucLabel), ms(sucJob+sucLabel))
	text.WriteString("\nThe last column counts all writes to the member's API server, including writes by the Job controller, the simulated kubelet and the benchmark. " +
		"Just before each Plan with a drain, the same number of pods is evicted directly and in parallel. This time is not attributed to the runner. The figures for system-upgrade-controller were measured on this machine at another time, and the first one includes about 20 ms for starting `curl`.\n\n" +
		"| agent at rest | resident MiB | anonymous MiB | goal | CPU, % of a core |\n|---|---|---|---|---|\n")
	for n, i := range r.idle {
		goal := int64(goalResident)
		if n > 0 {
			goal = goalWorked
		}
		fmt.Fprintf(text, "| %s | %.1f | %.1f | ≤ %d: %s | %.2f |\n", i.when, mib(i.usage.RSS), mib(i.usage.Anonymous), goal>>20,
			outcome(i.usage.RSS <= goal), 100*i.cpu.Seconds()/restTime.Seconds())
	}
}

// column returns the sorted values of one figure in all samples.
func (w *row) column(of func(moments) time.Duration) []time.Duration {
	var all []time.Duration
	for _, m := range w.took {
		all = append(all, of(m))
	}
	slices.Sort(all)
	return all
}

func span(sorted []time.Duration) string {
	return fmt.Sprintf("%.1f / %.1f", ms(sorted[len(sorted)/2]), ms(sorted[len(sorted)-1]))
}

func outcome(met bool) string {
	if met {
		return "ok"
	}
	return "missed"
}

func figure(n float64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f", n)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }
