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
		want     []size
	}{
		"ten thousand takes three steps":         {settings{last: size{10_000, 1}}, []size{{100, 1}, {1000, 1}, {10_000, 1}}},
		"the last size is what was asked for":    {settings{last: size{2500, 1}}, []size{{100, 1}, {1000, 1}, {2500, 1}}},
		"a small fleet is one step":              {settings{last: size{100, 1}}, []size{{100, 1}}},
		"several managers are a step of its own": {settings{last: size{100, 3}}, []size{{100, 1}, {100, 3}}},
		"the last step can be run alone":         {settings{last: size{10_000, 1}, only: true}, []size{{10_000, 1}}},
		"that with several managers, too":        {settings{last: size{100, 2}, only: true}, []size{{100, 2}}},
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
	before := counts{"PATCH clusters/status": 5, "PUT leases": 10}
	after := counts{"PATCH clusters/status": 7, "PUT leases": 16, "POST events": 3}
	grown := after.minus(before)
	t.Run("leases are counted apart", func(t *testing.T) {
		if grown.total(true) != 6 || grown.total(false) != 5 {
			t.Errorf("leases %d, others %d", grown.total(true), grown.total(false))
		}
	})
	t.Run("what did not change is left out", func(t *testing.T) {
		if got := grown.String(); got != "2 PATCH clusters/status, 3 POST events" {
			t.Errorf("got %q, want 2 PATCH clusters/status, 3 POST events", got)
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
	for name, hosts := range map[string]bool{"every row has a cell for every step": false, "so has each of hosts": true} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := write(t.Context(), &out, []result{{size: size{100, 1}}, {size: size{1000, 2}}}, hosts); err != nil {
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
			if lines != len(rows(hosts))+2 {
				t.Errorf("%d lines for %d rows", lines, len(rows(hosts)))
			}
			if strings.Contains(out.String(), "Storm") == hosts || strings.Contains(out.String(), "| SIGKILL") == hosts || !strings.Contains(out.String(), "| Idle") {
				t.Errorf("hosts: %t, and the table is\n%s", hosts, out.String())
			}
		})
	}
}

func TestSample(t *testing.T) {
	tests := map[string]struct {
		line, verb, resource string
		value                float64
		ok                   bool
	}{
		"a line of the metric is read":        {`requests{verb="LIST",resource="pods"} 12`, "LIST", "pods", 12, true},
		"a label may be empty":                {`requests{verb="",resource="pods"} 1e+03`, "", "pods", 1000, true},
		"a label may hold a comma":            {`requests{verb="a,b",resource="pods"} 1`, "a,b", "pods", 1, true},
		"another metric is none of it":        {`requests_other{verb="LIST"} 12`, "", "", 0, false},
		"a comment is none of it":             {`# TYPE requests counter`, "", "", 0, false},
		"a line without a value is none":      {`requests{verb="LIST"}`, "", "", 0, false},
		"a line that breaks off is none":      {`requests{verb="LIST`, "", "", 0, false},
		"a value may be followed by newlines": {"requests{verb=\"LIST\",resource=\"pods\"} 2\n", "LIST", "pods", 2, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			labels, value, ok := sample(tt.line, "requests")
			if ok != tt.ok || value != tt.value || labels["verb"] != tt.verb || labels["resource"] != tt.resource {
				t.Errorf("got %v, %v, %v", labels, value, ok)
			}
		})
	}
}
