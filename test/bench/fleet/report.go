// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// row is a line of the table.
type row struct {
	what, goal string
	value      func(result) string
}

const mib = 1 << 20

// rows returns the rows of a run. Some values are not measured for Hosts.
func rows(hosts bool) []row {
	if hosts {
		return slices.Concat(recoveryRows()[:2*startRowCount], footprintRows())
	}
	return slices.Concat(recoveryRows(), footprintRows(), proxyRows(), churnRows())
}

func recoveryRows() []row {
	list := startRows("First start, all agents waiting, no status written yet", "< 90 s at 10,000", func(r result) recovery { return r.cold })
	list = append(list, startRows("Start after an outage of a minute, all agents waiting", "< 45 s at 10,000", func(r result) recovery { return r.outage })...)
	return append(list, startRows("SIGKILL of a manager, and a start if it was the only one", "", func(r result) recovery { return r.killed })...)
}

// startRowCount is the number of rows that startRows returns.
const startRowCount = 7

// startRows returns the rows for one recovery. goal is the goal for the time until every Cluster is Ready.
func startRows(what, goal string, of func(result) recovery) []row {
	return []row{
		{what + ": ports ready", "", func(r result) string { return seconds(of(r).serving) }},
		{"… every tunnel open and report read", "", func(r result) string { return seconds(of(r).tunnels) }},
		{"… every Cluster Ready", goal, func(r result) string { return seconds(of(r).ready) }},
		{"… Clusters that temporarily stopped being Ready", "0", func(r result) string {
			return strconv.Itoa(of(r).left)
		}},
		{"… peak resident memory", "< 1 GiB at 10,000", func(r result) string { return mebibytes(of(r).peak) }},
		{"… hub API writes per member", "", func(r result) string { return perMember(of(r).writes, r) }},
		{"… CPU of the hub's API server per member", "", func(r result) string {
			return fmt.Sprintf("%.1f ms", float64(of(r).server.Microseconds())/1000/float64(r.members))
		}},
	}
}

func perMember(w counts, r result) string {
	return fmt.Sprintf("%.2f", float64(w.total(false))/float64(r.members))
}

func footprintRows() []row {
	return []row{
		{"Idle: resident (anonymous)", "< 700 MiB at 10,000", func(r result) string {
			return fmt.Sprintf("%s (%s)", mebibytes(r.idle.usage.RSS), mebibytes(r.idle.usage.Anonymous))
		}},
		{"… without members", "", func(r result) string {
			return fmt.Sprintf("%s (%s)", mebibytes(r.empty.usage.RSS), mebibytes(r.empty.usage.Anonymous))
		}},
		{"… per member, resident", "≤ 70 KB; ≤ 100 KB with two managers", func(r result) string {
			return fmt.Sprintf("%.1f KB", float64(r.idle.usage.RSS-r.empty.usage.RSS)/1000/float64(r.members))
		}},
		{"… per member, Go heap and stacks", "", func(r result) string {
			return fmt.Sprintf("%.1f KB + %.1f KB", (r.idle.heap-r.empty.heap)/1000/float64(r.members), (r.idle.stacks-r.empty.stacks)/1000/float64(r.members))
		}},
		{"… goroutines: all (without members)", "", func(r result) string { return fmt.Sprintf("%.0f (%.0f)", r.idle.goroutines, r.empty.goroutines) }},
		{"… goroutines per member", "≤ 3; ≤ 4 with two managers", func(r result) string {
			return fmt.Sprintf("%.2f", (r.idle.goroutines-r.empty.goroutines)/float64(r.members))
		}},
		{"… CPU, of one core (without members)", "", func(r result) string { return percent(r.idle.cpu) + " (" + percent(r.empty.cpu) + ")" }},
		{"… hub API writes per minute, without leases (without members)", "0", func(r result) string {
			return fmt.Sprintf("%.1f (%.1f)", perMinute(r.idle, false), perMinute(r.empty, false))
		}},
		{"… hub API lease writes per minute (without members)", "", func(r result) string {
			return fmt.Sprintf("%.1f (%.1f)", perMinute(r.idle, true), perMinute(r.empty, true))
		}},
		{"… resident memory of the simulator", "", func(r result) string { return mebibytes(r.simulator.RSS) }},
	}
}

func proxyRows() []row {
	return []row{
		{"Proxy, GET from random members, idle: p50 / p99 (n; failed)", "", func(r result) string { return quantiles(r.proxyIdle) }},
		{"Storm, 9 of 10 tunnels cut at the same time: all reconnected after", "", func(r result) string {
			return seconds(r.storm.took)
		}},
		{"… peak resident memory", "< 1 GiB at 10,000", func(r result) string { return mebibytes(r.storm.peak) }},
		{"… proxy: p50 / p99 (n; failed), 503 for disconnected members", "p99 < 2 s, 0 failed", func(r result) string {
			return fmt.Sprintf("%s, %d", quantiles(r.storm.proxy), r.storm.proxy.away)
		}},
	}
}

func churnRows() []row {
	return []row{
		{"Churn, tunnels that end and states that change: tunnels ended per minute", "", func(r result) string {
			return fmt.Sprintf("%.0f", perMinuteOf(float64(r.churn.ended), r.churn.footprint))
		}},
		{"… CPU, of one core", "", func(r result) string { return percent(r.churn.cpu) }},
		{"… hub API writes per minute, without leases", "", func(r result) string {
			return fmt.Sprintf("%.0f", perMinute(r.churn.footprint, false))
		}},
		{"… Clusters that were temporarily shown as not Ready", "", func(r result) string {
			return strconv.Itoa(r.churn.left)
		}},
		{"… proxy: p50 / p99 (n; failed), 503 for disconnected members", "", func(r result) string {
			return fmt.Sprintf("%s, %d", quantiles(r.churn.proxy), r.churn.proxy.away)
		}},
	}
}

// write prints the table.
func write(ctx context.Context, out io.Writer, results []result, hosts bool) error {
	var text bytes.Buffer
	fmt.Fprintf(&text, "Machine: %s\n\nCommit: %s. Date: %s.\n\n", machine(), commit(ctx), time.Now().UTC().Format(time.DateOnly))
	fmt.Fprintf(&text, "| what | goal |%s\n|---|---|%s\n", cells(results, result.String),
		strings.Repeat("---|", len(results)))
	for _, row := range rows(hosts) {
		fmt.Fprintf(&text, "| %s | %s |%s\n", row.what, row.goal, cells(results, row.value))
	}
	for _, r := range results {
		fmt.Fprintf(&text, "\nWrites with %s: first start: %s; after the outage: %s; after the SIGKILL: %s; idle for %.0f s: %s; churn for %.0f s: %s.\n",
			r.size, none(r.cold.writes.String()), none(r.outage.writes.String()), none(r.killed.writes.String()),
			r.idle.window.Seconds(), none(r.idle.writes.String()), r.churn.window.Seconds(), none(r.churn.writes.String()))
		fmt.Fprintf(&text, "\nReads and reviews with %s: first start: %s; after the outage: %s; after the SIGKILL: %s.\n",
			r.size, none(r.cold.reads.String()), none(r.outage.reads.String()), none(r.killed.reads.String()))
	}
	_, err := text.WriteTo(out)
	return err
}

func cells(results []result, value func(result) string) string {
	var line strings.Builder
	for _, r := range results {
		line.WriteString(" " + value(r) + " |")
	}
	return line.String()
}

func none(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// seconds formats a measured time. It returns an empty cell for a step that was interrupted.
func seconds(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

func mebibytes(bytes int64) string { return fmt.Sprintf("%.0f MiB", float64(bytes)/mib) }

func percent(share float64) string { return fmt.Sprintf("%.2f %%", 100*share) }

func perMinute(f footprint, leases bool) float64 {
	return perMinuteOf(float64(f.writes.total(leases)), f)
}

func perMinuteOf(n float64, f footprint) float64 {
	if f.window == 0 {
		return 0
	}
	return n / f.window.Minutes()
}

func quantiles(l latencies) string {
	if len(l.answered) == 0 {
		return "–"
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return fmt.Sprintf("%.1f / %.1f ms (%d; %d)", ms(l.at(0.5)), ms(l.at(0.99)), len(l.answered), l.failed)
}

// machine describes the machine on which the benchmark runs.
func machine() string {
	cpu := "unknown CPU"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				cpu = strings.TrimSpace(strings.TrimLeft(name, "\t :"))
				break
			}
		}
	}
	kernel := "unknown"
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		kernel = strings.TrimSpace(string(release))
	}
	load := "unknown"
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		load = strings.Join(strings.Fields(string(text))[:3], " ")
	}
	return fmt.Sprintf("%s, %d cores for everything, kernel %s, %s, load at the end %s", cpu, runtime.NumCPU(), kernel, runtime.Version(), load)
}

func commit(ctx context.Context) string {
	head, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	text := strings.TrimSpace(string(head))
	if changed, err := exec.CommandContext(ctx, "git", "status", "--porcelain").Output(); err == nil && len(changed) > 0 {
		text += ", with changes"
	}
	return text
}
