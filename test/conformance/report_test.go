// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestFocusSelectsExactlyTheTests(t *testing.T) {
	names := []string{"[sig-cli] a (b) c|d [Conformance]", "[sig-cli] a"}
	pattern := regexp.MustCompile(focus(names))
	for _, name := range names {
		if !pattern.MatchString(name) {
			t.Errorf("%q is left out, want it selected", name)
		}
	}
	for _, other := range []string{"[sig-cli] a (b) c", "[sig-cli] a more", "d [Slow]"} {
		if pattern.MatchString(other) {
			t.Errorf("%q is selected, want only %q", other, names)
		}
	}
}

func TestDifferencesFailTheRunUnlessTheyAreAccepted(t *testing.T) {
	var known place
	for one := range reasons(accepted) {
		if one.way == wayHub && one.test > known.test {
			known = one
		}
	}
	isKnown, notKnown := result{name: known.test, state: passed}, result{name: known.test, state: "failed"}
	a, failedA := result{name: "a", state: passed}, result{name: "a", state: "failed"}
	direct := outcome{way: wayDirect, results: results{isKnown, a, {name: "b", state: "failed"}}}
	hub := func(r ...result) outcome { return outcome{way: wayHub, results: r} }
	for name, tt := range map[string]struct {
		other outcome
		want  string
	}{
		"all pass":                     {hub(isKnown, a), ""},
		"an accepted difference":       {hub(notKnown, a), ""},
		"a test fails through the hub": {hub(isKnown, failedA), "hub: failed: a"},
		"a test does not run":          {hub(isKnown), "1 tests ran, want the 2 that passed"},
		"a difference that is accepted on other ways": {
			outcome{way: "another", results: results{notKnown, a}}, "another: failed: " + known.test,
		},
	} {
		err := outcomes{direct, tt.other}.verdict()
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: the verdict is %v, want %q", name, err, tt.want)
		}
	}
}

func TestDifferencesAreAcceptedOnTheWaysThatTheirLineNames(t *testing.T) {
	got := reasons("a\thub,replica\tb c\na\tagent\td\nno ways\twhy\n\n")
	want := map[place]string{{wayHub, "a"}: "b c", {wayReplica, "a"}: "b c", {wayAgent, "a"}: "d"}
	if !maps.Equal(got, want) {
		t.Errorf("the reasons are %v, want %v", got, want)
	}
}

func TestEveryAcceptedDifferenceIsAChosenTestOnAWayWithAReason(t *testing.T) {
	tests := strings.Split(strings.TrimSpace(chosen), "\n")
	for line := range strings.Lines(accepted) {
		found := reasons(line)
		if len(found) == 0 {
			t.Errorf("%q accepts no difference, want the name of a test, ways and a reason, with tabs between them", line)
		}
		for one, reason := range found {
			if !slices.Contains(tests, one.test) || !slices.Contains(ways()[1:], one.way) || reason == "" {
				t.Errorf("%v is accepted because %q, want a test of tests.txt, a way after the first, and a reason", one, reason)
			}
		}
	}
	if !slices.IsSorted(tests) {
		t.Error("tests.txt is not sorted: sort it")
	}
}

func TestReportsOfGinkgoAreRead(t *testing.T) {
	got, err := readReport([]byte(`[{"SpecReports": [
		{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-a] b", "c"], "LeafNodeText": "d", "State": "passed", "RunTime": 2000000000},
		{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-a] a"], "LeafNodeText": "e", "State": "failed", "Failure": {"Message": "first\nsecond"}},
		{"LeafNodeType": "It", "LeafNodeText": "f", "State": "skipped"},
		{"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"}]}]`))
	want := results{{name: "[sig-a] a e", state: "failed", failure: "first"}, {name: "[sig-a] b c d", state: passed, took: 2 * time.Second}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v (%v), want %v", got, err, want)
	}
}

func TestThePageCountsAndNamesDifferences(t *testing.T) {
	all := outcomes{
		{way: wayDirect, took: time.Minute, results: results{{name: "a [Conformance]", state: passed, took: time.Second}, {name: "b", state: "failed"}}},
		{way: wayHub, took: time.Minute, results: results{{name: "a [Conformance]", state: "failed", failure: "403"}}},
	}
	var page bytes.Buffer
	report(&page, all)
	for _, want := range []string{"| direct | 2 | 1 | 0 | 1 of 1 | 1s | 1m0s |", "| hub | 1 | 0 | 0 | 0 of 1 |", "| hub | a [Conformance] | failed | **not accepted**: 403 |", "- failed: b"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page is\n%s\nwant it to contain %q", page.String(), want)
		}
	}
}

func TestASecondRunDecidesOverTestsThatFailed(t *testing.T) {
	first := results{{name: "a", state: passed}, {name: "b", state: "failed"}, {name: "c", state: "failed"}}
	got := first.amended(results{{name: "b", state: passed}, {name: "c", state: "failed", failure: "again"}})
	want := results{{name: "a", state: passed}, {name: "b", state: passed, again: true}, {name: "c", state: "failed", failure: "again", again: true}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if later := got.later(); later != 1 {
		t.Errorf("%d tests passed when they ran again, want 1", later)
	}
}
