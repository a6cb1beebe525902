// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// results contains the values of all rounds, by contender and name.
type results struct {
	values map[string]map[string][]float64
}

func newResults() *results {
	return &results{values: map[string]map[string][]float64{}}
}

// add adds the values of one round.
func (r *results) add(contender string, values map[string]float64) {
	if r.values[contender] == nil {
		r.values[contender] = map[string][]float64{}
	}
	for name, value := range values {
		r.values[contender][name] = append(r.values[contender][name], value)
	}
}

// get returns the median of the rounds.
func (r *results) get(contender, name string) (float64, bool) {
	return median(r.values[contender][name])
}

// ratio returns the median ratio of Drover to another contender in each round, because the conditions on the machine
// are similar within a round.
func (r *results) ratio(name, to string) (float64, bool) {
	ours, theirs := r.values[drover][name], r.values[to][name]
	var ratios []float64
	for i := range min(len(ours), len(theirs)) {
		if theirs[i] != 0 {
			ratios = append(ratios, ours[i]/theirs[i])
		}
	}
	return median(ratios)
}

func median(of []float64) (float64, bool) {
	values := slices.Sorted(slices.Values(of))
	if len(values) == 0 {
		return 0, false
	}
	middle := len(values) / 2
	if len(values)%2 == 0 {
		return (values[middle-1] + values[middle]) / 2, true
	}
	return values[middle], true
}

// row is a line of the table.
type row struct {
	title, name, format string
	goal                string
	met                 func(*results) bool // nil: there is no goal
}

// below returns a goal for Drover's value alone.
func below(name string, limit float64) func(*results) bool {
	return func(r *results) bool {
		value, ok := r.get(drover, name)
		return ok && value < limit
	}
}

// faster returns a goal for the ratio to remotedialer.
func faster(name string, than float64) func(*results) bool {
	return func(r *results) bool {
		ratio, ok := r.ratio(name, remoteDialer)
		return ok && ratio > than
	}
}

// near returns the goal that a value is less than the direct value plus add.
func near(name string, add float64) func(*results) bool {
	return func(r *results) bool {
		ours, ok := r.get(drover, name)
		floor, known := r.get(direct, name)
		return ok && known && ours < floor+add
	}
}

func rows() []row {
	return []row{
		{"GET one at a time, p50, µs", "get-p50", "%.0f", "< direct + 200", near("get-p50", 200)},
		{"GET one at a time, p99, µs", "get-p99", "%.0f", "", nil},
		{"GET 50 at once, requests/s", "rate-50", "%.0f", "", nil},
		{"bulk, 1 stream, MB/s", "bulk-1", "%.0f", "> 1.3 × remotedialer", faster("bulk-1", 1.3)},
		{"bulk, 8 streams, MB/s", "bulk-8", "%.0f", "> 1.3 × remotedialer", faster("bulk-8", 1.3)},
		{"GET during a bulk transfer, p50, ms", "beside-bulk-p50", "%.2f", "", nil},
		{"GET during a bulk transfer, p99, ms", "beside-bulk-p99", "%.2f", "", nil},
		{"GET with 1 stalled reader, p50, ms", "stalled-1-p50", "%.2f", "", nil},
		{"GET with 1 stalled reader, p99, ms", "stalled-1-p99", "%.2f", "", nil},
		{"GET with 20 stalled readers, p50, ms", "stalled-20-p50", "%.2f", "", nil},
		{"GET with 20 stalled readers, p99, ms", "stalled-20-p99", "%.2f", "", nil},
		{"GET with 300 stalled readers, p50, ms", "stalled-300-p50", "%.2f", "< 5", below("stalled-300-p50", 5)},
		{"GET with 300 stalled readers, p99, ms", "stalled-300-p99", "%.2f", "< 5", below("stalled-300-p99", 5)},
		{"hub's resident memory with 300 stalled readers, MB", "stalled-300-rss", "%.0f", "< 400", below("stalled-300-rss", 400)},
		{"4 MiB upload with a blocked upload in parallel, ms (5,000 = blocked)", "beside-stuck-upload", "%.0f", "not blocked", below("beside-stuck-upload", 5000)},
		{"hub memory per idle tunnel, kB", "idle-rss", "%.1f", "< 100", below("idle-rss", 100)},
		{"hub goroutines per idle tunnel", "idle-goroutines", "%.1f", "≤ 4", below("idle-goroutines", 4.05)},
		{"hub memory per idle watch, kB", "watch-rss", "%.1f", "", nil},
		{"hub goroutines per idle watch", "watch-goroutines", "%.1f", "", nil},
		{"killed agent detected after, ms", "killed", "%.0f", "< 2,000", below("killed", 2000)},
		{"hung agent detected after, s", "hung", "%.1f", "< 30", below("hung", 30)},
		{"exec echo, p50, µs", "echo-p50", "%.0f", "", nil},
		{"exec echo, p99, µs", "echo-p99", "%.0f", "", nil},
		{"50 ms link: GET, no warm connection, p50, ms", "link-cold", "%.1f", "< 60: one round trip", below("link-cold", 60)},
		{"50 ms link: GET, warm, p50, ms", "link-warm", "%.1f", "< direct + 5", near("link-warm", 5)},
		{"50 ms link: bulk, 1 stream, MB/s", "link-bulk", "%.0f", "> remotedialer", faster("link-bulk", 1)},
	}
}

// writeReport writes the table, and the information that is needed to interpret it.
func writeReport(w io.Writer, r *results, quick bool, took time.Duration) {
	fmt.Fprintf(w, "# Tunnel benchmark\n\n")
	if quick {
		fmt.Fprintf(w, "**A -quick run: it shows that everything works, and the figures mean nothing.**\n\n")
	}
	fmt.Fprintf(w, "%s, commit %s, %s, %s, %d CPUs (%s), Linux %s, load %s, %.0f s.\n\n",
		time.Now().UTC().Format("2006-01-02 15:04 UTC"), commit(), runtime.Version(), runtime.GOARCH, runtime.NumCPU(),
		cpuModel(), firstField("/proc/sys/kernel/osrelease"), load(), took.Seconds())
	fmt.Fprintf(w, "The backend, the agent and the hub are processes on one machine and communicate over loopback with TLS 1.3.\n"+
		"The candidates take turns. Each value is the median of its rounds, and each ratio is the median of the\n"+
		"ratios of all rounds. Other work on the machine changes absolute values, so compare figures only within a row.\n\n")
	fmt.Fprintf(w, "| measure | direct | remotedialer | drover | drover / direct | drover / remotedialer | goal | |\n|---|--:|--:|--:|--:|--:|---|---|\n")
	for _, row := range rows() {
		result := ""
		if _, measured := r.get(drover, row.name); measured && row.met != nil {
			result = "FAIL"
			if row.met(r) {
				result = "pass"
			}
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", row.title,
			row.cell(r, direct), row.cell(r, remoteDialer), row.cell(r, drover),
			ratio(r, row.name, direct), ratio(r, row.name, remoteDialer), row.goal, result)
	}
}

func (row row) cell(r *results, contender string) string {
	value, ok := r.get(contender, row.name)
	if !ok {
		return "–"
	}
	return fmt.Sprintf(row.format, value)
}

func ratio(r *results, name, to string) string {
	value, ok := r.ratio(name, to)
	if !ok {
		return "–"
	}
	return fmt.Sprintf("%.2f", value)
}

// commit returns the commit of the working tree, with a mark if the tree has been modified.
func commit() string {
	out, err := exec.Command("git", "describe", "--always", "--dirty", "--exclude=*").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func cpuModel() string {
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	defer func() { _ = file.Close() }()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func load() string {
	return firstField("/proc/loadavg")
}

func firstField(file string) string {
	text, err := os.ReadFile(file)
	if fields := strings.Fields(string(text)); err == nil && len(fields) > 0 {
		return fields[0]
	}
	return "unknown"
}
