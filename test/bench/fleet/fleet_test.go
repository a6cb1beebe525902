// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSteps(t *testing.T) {
	for name, tt := range map[string]struct {
		settings settings
		want     []int
	}{
		"ten thousand takes three steps":      {settings{members: 10_000}, []int{100, 1000, 10_000}},
		"the last step is what was asked for": {settings{members: 2500}, []int{100, 1000, 2500}},
		"a small fleet is one step":           {settings{members: 100}, []int{100}},
		"the last step can be run alone":      {settings{members: 10_000, only: true}, []int{10_000}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := steps(tt.settings); !slices.Equal(got, tt.want) {
				t.Errorf("steps %v, want %v", got, tt.want)
			}
		})
	}
}

func TestQuantile(t *testing.T) {
	hundred := latencies{}
	for i := range 100 {
		hundred.answered = append(hundred.answered, time.Duration(i+1))
	}
	for name, tt := range map[string]struct {
		of   latencies
		q    float64
		want time.Duration
	}{
		"the median of 1 to 100 is 50":     {hundred, 0.5, 50},
		"their 99th percentile is 99":      {hundred, 0.99, 99},
		"the maximum is 100":               {hundred, 1, 100},
		"one answer is every percentile":   {latencies{answered: []time.Duration{7}}, 0.5, 7},
		"no answer at all has no quantile": {latencies{}, 0.99, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tt.of.at(tt.q); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestWrites(t *testing.T) {
	before := writes{"PATCH clusters/status": 5, "PUT leases": 10}
	after := writes{"PATCH clusters/status": 7, "PUT leases": 16, "POST events": 3}
	grown := after.minus(before)
	t.Run("leases are counted apart", func(t *testing.T) {
		if grown.total(true) != 6 || grown.total(false) != 5 {
			t.Errorf("leases %d, others %d", grown.total(true), grown.total(false))
		}
	})
	t.Run("what did not change is left out", func(t *testing.T) {
		if got := grown.String(); got != "2 PATCH clusters/status, 3 POST events" {
			t.Errorf("%q", got)
		}
	})
	for name, tt := range map[string]struct {
		verb, resource string
		want           bool
	}{
		"a patch is a write":                    {"PATCH", "clusters/status", true},
		"an apply is a write":                   {"APPLY", "secrets", true},
		"a list is none":                        {"LIST", "clusters", false},
		"a review is a question, though a POST": {"POST", "subjectaccessreviews", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := changes(tt.verb, tt.resource); got != tt.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestTable(t *testing.T) {
	t.Run("every row has a cell for every step", func(t *testing.T) {
		var out bytes.Buffer
		if err := write(t.Context(), &out, []result{{members: 100}, {members: 1000}}); err != nil {
			t.Fatal(err)
		}
		lines := 0
		for line := range strings.Lines(out.String()) {
			if strings.HasPrefix(line, "|") {
				lines++
				if n := strings.Count(line, "|"); n != 5 {
					t.Errorf("%d bars in %q", n, line)
				}
			}
		}
		if lines != len(rows())+2 {
			t.Errorf("%d lines for %d rows", lines, len(rows()))
		}
	})
}
