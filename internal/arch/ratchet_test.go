// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A ratchet limits the number of defects of one sort in each folder or type. A file lists the folders or types that
// have too many defects from the past, with their number, which can only fall.
type ratchet struct {
	file   string // relative to the module's root
	defect string // the counted defect, for messages
	repair string // what to do about a new one
}

// check fails the test for each folder that has more defects than it is allowed. A folder is allowed the number in the
// file, or the number that within returns if that is higher. With DROVER_RATCHET=write, check writes the file instead,
// if no number rises.
func (r ratchet) check(t *testing.T, found map[string]int, within func(dir string) int) {
	t.Helper()
	if os.Getenv("DROVER_RATCHET") == "write" {
		if raised := r.raised(found, r.read(t), within); len(raised) > 0 {
			report(t, raised)
			return
		}
		r.write(t, found, within)
		return
	}
	report(t, r.problems(found, r.read(t), within))
}

func (r ratchet) problems(found, listed map[string]int, within func(dir string) int) []string {
	var problems []string
	for _, dir := range slices.Sorted(maps.Keys(found)) {
		if most := max(listed[dir], within(dir)); found[dir] > most {
			problems = append(
				problems, fmt.Sprintf("%s: got %d %s, want at most %d: %s", dir, found[dir], r.defect, most, r.repair),
			)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(listed)) {
		if slack := 10 + listed[dir]/10; found[dir] <= within(dir) || found[dir] < listed[dir]-slack {
			problems = append(problems, fmt.Sprintf("%s: got %d %s, want about %d as in %s: "+
				"run DROVER_RATCHET=write go test ./internal/arch -run 'Columns|Voice|Methods'",
				dir, found[dir], r.defect, listed[dir], r.file))
		}
	}
	return problems
}

// raised returns the numbers that would rise if the file was written. A folder that is not listed may be a folder that
// was moved, as long as the total does not rise.
func (r ratchet) raised(found, listed map[string]int, within func(dir string) int) []string {
	var raised []string
	before, after := 0, 0
	for _, n := range listed {
		before += n
	}
	for _, dir := range slices.Sorted(maps.Keys(found)) {
		n := found[dir]
		if n <= within(dir) {
			continue
		}
		if after += n; listed[dir] > 0 && n > listed[dir] {
			raised = append(raised,
				fmt.Sprintf("%s: got %d %s, want at most %d: %s", dir, n, r.defect, listed[dir], r.repair))
		}
	}
	if after > before {
		raised = append(raised, fmt.Sprintf("got %d %s in all, want at most %d: %s", after, r.defect, before, r.repair))
	}
	return raised
}

func (r ratchet) read(t *testing.T) map[string]int {
	t.Helper()
	listed := map[string]int{}
	lines := bufio.NewScanner(strings.NewReader(readFile(t, r.file)))
	for lines.Scan() {
		number, dir, _ := strings.Cut(lines.Text(), " ")
		n, err := strconv.Atoi(number)
		if err != nil || dir == "" || n < 1 {
			t.Fatalf("%s: got %q, want a number above 0 and a folder", r.file, lines.Text())
		}
		listed[dir] = n
	}
	return listed
}

func (r ratchet) write(t *testing.T, found map[string]int, within func(dir string) int) {
	t.Helper()
	var out bytes.Buffer
	for _, dir := range slices.Sorted(maps.Keys(found)) {
		if found[dir] > within(dir) {
			fmt.Fprintf(&out, "%d %s\n", found[dir], dir)
		}
	}
	if err := os.WriteFile(filepath.Join(root(t), r.file), out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestWritingTheListRaisesNoNumber(t *testing.T) {
	r := ratchet{file: "list.txt", defect: "faults", repair: "repair them"}
	tests := map[string]struct {
		found map[string]int
		want  string
	}{
		"a number that falls is written":   {map[string]int{"a": 4, "b": 2}, ""},
		"a folder that moves is written":   {map[string]int{"c": 5, "b": 2}, ""},
		"a number that rises is not":       {map[string]int{"a": 6}, "a: got 6 faults, want at most 5: repair them"},
		"a new folder with defects is not": {map[string]int{"a": 5, "b": 2, "c": 1}, "got 8 faults in all, want at most 7"},
		"a new folder within its limit is": {map[string]int{"a": 5, "b": 2, "free": 3}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			expect(t, r.raised(tt.found, map[string]int{"a": 5, "b": 2}, func(dir string) int {
				if dir == "free" {
					return 3
				}
				return 0
			}), tt.want)
		})
	}
}

func TestRatchet(t *testing.T) {
	r := ratchet{file: "list.txt", defect: "faults", repair: "repair them"}
	tests := map[string]struct {
		found, listed, within int
		want                  string
	}{
		"no defect passes":                               {0, 0, 0, ""},
		"a defect fails":                                 {1, 0, 0, "a: got 1 faults, want at most 0: repair them"},
		"the listed number passes":                       {5, 5, 0, ""},
		"more than the listed number fails":              {6, 5, 0, "a: got 6 faults, want at most 5"},
		"a listed number that is little too high passes": {1, 12, 0, ""},
		"a listed number that is far too high fails":     {1, 13, 0, "a: got 1 faults, want about 13 as in list.txt"},
		"a listed folder without defects fails":          {0, 1, 0, "a: got 0 faults, want about 1"},
		"a number within the limit passes":               {3, 0, 3, ""},
		"a number above the limit fails":                 {4, 0, 3, "a: got 4 faults, want at most 3"},
		"a listed folder within the limit fails":         {3, 4, 3, "a: got 3 faults, want about 4"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			found, listed := map[string]int{}, map[string]int{}
			if tt.found > 0 {
				found["a"] = tt.found
			}
			if tt.listed > 0 {
				listed["a"] = tt.listed
			}
			expect(t, r.problems(found, listed, func(string) int { return tt.within }), tt.want)
		})
	}
}
