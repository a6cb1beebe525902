// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// accepted has a line for each test that may pass directly and fail on other ways: the test's name, these ways
// separated by commas, and the reason. These three fields are separated by tabs.
//
//go:embed accepted.txt
var accepted string

// conformanceTag is part of the names of the tests that determine whether a cluster conforms.
const conformanceTag = "[Conformance]"

// An outcome contains the results of the tests on one way.
type outcome struct {
	way           string
	took          time.Duration
	results       results
	before, after []footprint
}

// outcomes contains the outcomes of all ways. The others are compared with the first.
type outcomes []outcome

// A difference is a test that passed on the first way but not on another.
type difference struct {
	way string
	result
	// reason is the reason why the difference is accepted, or empty.
	reason string
}

// A place is a test on a way.
type place struct{ way, test string }

// reasons reads the reasons why differences are accepted. It ignores lines that do not have the format of accepted.txt.
func reasons(accepted string) map[place]string {
	why := map[place]string{}
	for line := range strings.Lines(accepted) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if len(fields) != 3 {
			continue
		}
		for way := range strings.SplitSeq(fields[1], ",") {
			why[place{way, fields[0]}] = fields[2]
		}
	}
	return why
}

// differences returns the tests that passed on the first way but not on the others.
func (all outcomes) differences() []difference {
	var found []difference
	why := reasons(accepted)
	for _, o := range all[1:] {
		for _, r := range o.results {
			if r.state != passed {
				found = append(found, difference{o.way, r, why[place{o.way, r.name}]})
			}
		}
	}
	return found
}

// verdict returns an error if a test passed on the first way and failed on another, unless that is accepted. It also
// returns an error if not all tests were run on a way.
func (all outcomes) verdict() error {
	var wrong []string
	for _, d := range all.differences() {
		if d.reason == "" {
			wrong = append(wrong, fmt.Sprintf("%s: %s: %s", d.way, d.state, d.name))
		}
	}
	want := len(all[0].results.passed())
	for _, o := range all[1:] {
		if len(o.results) != want {
			wrong = append(wrong, fmt.Sprintf("%s: %d tests ran, want the %d that passed on the way %q", o.way, len(o.results), want, all[0].way))
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%d differences:\n%s", len(wrong), strings.Join(wrong, "\n"))
	}
	return nil
}

// count returns the number of tests that ran and the number that passed, for all names or only for names with the tag.
func (r results) count(tag string) (ran, good int) {
	for _, one := range r {
		if strings.Contains(one.name, tag) {
			ran++
			if one.state == passed {
				good++
			}
		}
	}
	return ran, good
}

// later returns the number of tests that passed only when they were run again, alone.
func (r results) later() int {
	n := 0
	for _, one := range r {
		if one.again && one.state == passed {
			n++
		}
	}
	return n
}

// median returns the median time of the tests that passed.
func (r results) median() time.Duration {
	var times []time.Duration
	for _, one := range r {
		if one.state == passed {
			times = append(times, one.took)
		}
	}
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[len(times)/2].Round(100 * time.Millisecond)
}

// report writes the outcome as Markdown tables.
func report(w io.Writer, all outcomes) {
	fmt.Fprint(w, "| way | ran | passed | of these when run again alone | `[Conformance]` | median time of a test | all |\n|---|---|---|---|---|---|---|\n")
	for _, o := range all {
		ran, good := o.results.count("")
		tagged, taggedGood := o.results.count(conformanceTag)
		fmt.Fprintf(w, "| %s | %d | %d | %d | %d of %d | %s | %s |\n", o.way, ran, good, o.results.later(), taggedGood, tagged, o.results.median(), o.took.Round(time.Second))
	}
	fmt.Fprint(w, "\n| way | manager | file descriptors before, after | resident MiB before, after |\n|---|---|---|---|\n")
	for _, o := range all {
		for i, b := range o.before {
			a := o.after[i]
			fmt.Fprintf(w, "| %s | %s | %d, %d | %d, %d |\n", o.way, b.name, b.descriptors, a.descriptors, b.resident>>20, a.resident>>20)
		}
	}
	reportDifferences(w, all)
	fmt.Fprint(w, "\nThese tests did not pass directly, and therefore did not run on the other ways:\n\n")
	for _, r := range all[0].results {
		if r.state != passed {
			fmt.Fprintf(w, "- %s: %s\n", r.state, r.name)
		}
	}
}

// reportDifferences writes a table with one row for each test, state and reason.
func reportDifferences(w io.Writer, all outcomes) {
	fmt.Fprint(w, "\n| way | test | state | reason for accepting it |\n|---|---|---|---|\n")
	ways, rows := map[string][]string{}, []string{}
	for _, d := range all.differences() {
		why := d.reason
		if why == "" {
			why = "**not accepted**: " + strings.ReplaceAll(d.failure, "|", `\|`)
		}
		row := fmt.Sprintf("%s | %s | %s", strings.ReplaceAll(d.name, "|", `\|`), d.state, why)
		if ways[row] = append(ways[row], d.way); len(ways[row]) == 1 {
			rows = append(rows, row)
		}
	}
	for _, row := range rows {
		fmt.Fprintf(w, "| %s | %s |\n", strings.Join(ways[row], ", "), row)
	}
}

const head = `# Kubernetes' own end-to-end tests

` + "`make conformance`" + ` writes this page; do not edit it. The tests of Kubernetes %s ran against a member with
two real nodes, directly at its API server (*direct*). Each test that passed then ran on the other ways, as a user who
is bound to all rights:

- *hub*: through the hub;
- *replica*: through a manager to which no agent of the member is connected;
- *agent*: without the hub, at the agent's own address ([direct access](../spec/cluster.md#direct-access)), with the
  tokens that ` + "`kubectl drover get-token --direct`" + ` gets for a user who has signed in.

If a test passes directly but fails on another way, it runs there again, alone, because a busy machine exceeds the time
limits of many tests. In ` + "`test/conformance`, `tests.txt` lists the tests, and `accepted.txt`" + ` lists the accepted
differences for each way.

Drover %s, %s, %d tests at a time: %s.

`

// writePage writes the outcome to a page.
func writePage(file, version string, o options, all outcomes) error {
	which := fmt.Sprintf("all %d", len(o.tests))
	if o.focus != "" {
		which = fmt.Sprintf("the %d whose name contains %q, of %d", len(o.tests), o.focus, strings.Count(chosen, "\n"))
	}
	var page bytes.Buffer
	fmt.Fprintf(&page, head, version, revision(), time.Now().UTC().Format(time.DateOnly), o.procs, which)
	report(&page, all)
	return os.WriteFile(file, page.Bytes(), 0o644)
}

// revision returns the commit that this program was built from.
func revision() string {
	info, _ := debug.ReadBuildInfo()
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 7 {
			return s.Value[:7]
		}
	}
	return "of an unknown commit"
}
