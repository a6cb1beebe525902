// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// circumstances contains the information that is needed to interpret the figures.
type circumstances struct {
	at                            time.Time
	commit, cpu, kernel, loadThen string
	took                          time.Duration
}

// describe describes the machine before the run.
func describe(ctx context.Context) circumstances {
	return circumstances{at: time.Now(), commit: commit(ctx), cpu: cpuModel(), kernel: firstFields("/proc/sys/kernel/osrelease", 1), loadThen: firstFields("/proc/loadavg", 2)}
}

// writeReport writes the table.
func writeReport(w io.Writer, c circumstances, r *results, e extent) {
	fmt.Fprintf(w, "# Hub benchmark\n\n")
	if e.quick {
		fmt.Fprintf(w, "**A -quick run: it shows that everything works, and the figures mean nothing.**\n\n")
	}
	fmt.Fprintf(w, "%s, commit %s, %s, %s, %d CPUs (%s), Linux %s, load before the run %s, %.0f s.\n\n",
		c.at.UTC().Format("2006-01-02 15:04 UTC"), c.commit, runtime.Version(), runtime.GOARCH, runtime.NumCPU(), c.cpu, c.kernel, c.loadThen, c.took.Seconds())
	fmt.Fprint(w, "Two control planes, the manager, the agents and the client are processes on one machine and\n"+
		"communicate over loopback. etcd does not sync to disk. Direct requests alternate with requests through the\n"+
		"hub. \"Floor\" is the same measurement without Drover, with the member's API server itself or with a control\n"+
		"plane without a manager. Percentiles use the nearest rank.\n"+
		"Resident memory is VmRSS, which counts the pages of the binary for each process. The peers were measured on a\n"+
		"similar machine (two cores, Kubernetes 1.36.3), not in this run.\n\n")
	fmt.Fprint(w, "| what | floor | measured | ratio | peers | goal | |\n|---|--:|--:|--:|---|---|---|\n")
	for _, row := range rows(r, e) {
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s | %s |\n", row.what,
			cmp.Or(row.floor, "–"), cmp.Or(row.measured, "–"), cmp.Or(row.ratio, "–"), cmp.Or(row.peers, "–"), cmp.Or(row.goal, "–"), row.outcome())
	}
	for _, note := range r.notes {
		fmt.Fprintf(w, "\n%s\n", note)
	}
}

// commit returns the commit of the working tree, with a mark if the tree has been modified.
func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--exclude=*").Output()
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
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// firstFields returns the first n words of a file.
func firstFields(file string, n int) string {
	text, err := os.ReadFile(file)
	if fields := strings.Fields(string(text)); err == nil && len(fields) >= n {
		return strings.Join(fields[:n], " ")
	}
	return "unknown"
}
