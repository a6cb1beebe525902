// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var (
	// aggregation finds a "by" or "without" clause in front of its operand, and trailing finds one after its operand.
	aggregation = regexp.MustCompile(`\b(?:by|without) ?\(([a-z_, ]*)\) ?\(`)
	trailing    = regexp.MustCompile(`\) ?(?:by|without) ?\(`)
	// matching finds a clause between the two operands of a vector match.
	matching = regexp.MustCompile(`\b(?:on|ignoring) ?\(([a-z_, ]*)\)`)
	// selector finds a metric of Drover, with its label matchers if it has any.
	selector = regexp.MustCompile(`\b(drover_[a-z0-9_]+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+)(?:=~|!~|!=|=)`)
	quoted   = regexp.MustCompile(`"[^"]*"`)
	// shown finds the labels in a legend of the dashboard or in an annotation of a rule.
	shown = regexp.MustCompile(`\{\{ *(?:\$labels\.)?([a-z_]+) *\}\}`)
)

// query is an expression in PromQL, and the texts that show labels of its result.
type query struct {
	expr  string
	texts []string
}

// problems returns the labels that the query uses although its metrics do not have them.
func (q query) problems(labels map[string][]string) (problems []string) {
	has := func(metric, label string) bool {
		if slices.Contains([]string{"instance", "job"}, label) { // Prometheus adds them
			return true
		}
		base, isBucket := strings.CutSuffix(metric, "_bucket")
		if label == "le" {
			return isBucket
		}
		for _, suffix := range []string{"_sum", "_count"} {
			base = strings.TrimSuffix(base, suffix)
		}
		return slices.Contains(labels[metric], label) || slices.Contains(labels[base], label)
	}
	check := func(metric, label, where string) {
		if !has(metric, label) {
			problems = append(problems, fmt.Sprintf("%s has no label %q: %s", metric, label, where))
		}
	}
	for _, found := range selector.FindAllStringSubmatch(q.expr, -1) {
		for _, label := range matcher.FindAllStringSubmatch(quoted.ReplaceAllString(found[2], `""`), -1) {
			check(found[1], label[1], q.expr)
		}
	}
	for _, at := range aggregation.FindAllStringSubmatchIndex(q.expr, -1) {
		for _, found := range selector.FindAllStringSubmatch(operand(q.expr[at[1]:]), -1) {
			for _, label := range labelsIn(q.expr[at[2]:at[3]]) {
				check(found[1], label, q.expr)
			}
		}
	}
	for _, at := range matching.FindAllStringSubmatchIndex(q.expr, -1) {
		for _, metric := range besides(q.expr[:at[0]], q.expr[at[1]:]) {
			for _, label := range labelsIn(q.expr[at[2]:at[3]]) {
				check(metric, label, q.expr)
			}
		}
	}
	if trailing.MatchString(q.expr) {
		problems = append(problems, "by and without must be in front of their operand: "+q.expr)
	}
	metrics := selector.FindAllStringSubmatch(q.expr, -1)
	for _, text := range q.texts {
		for _, label := range shown.FindAllStringSubmatch(text, -1) {
			anyHas := slices.ContainsFunc(metrics, func(found []string) bool { return has(found[1], label[1]) })
			if len(metrics) > 0 && !anyHas {
				problems = append(problems, fmt.Sprintf("no metric of %s has the label %q: %s", q.expr, label[1], text))
			}
		}
	}
	return problems
}

// labelsIn returns the labels in a clause.
func labelsIn(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// besides returns the metrics of Drover that are next to a clause: the last one in front of it and the first one after.
func besides(before, after string) (metrics []string) {
	if all := selector.FindAllStringSubmatch(before, -1); len(all) > 0 {
		metrics = append(metrics, all[len(all)-1][1])
	}
	if first := selector.FindStringSubmatch(after); first != nil {
		metrics = append(metrics, first[1])
	}
	return metrics
}

// operand returns the start of text up to the parenthesis that closes the one before text.
func operand(text string) string {
	depth := 1
	for i, r := range text {
		switch r {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return text[:i]
			}
		}
	}
	return text
}

// alertQueries returns the queries of the alerts.
func alertQueries(t *testing.T) (queries []query) {
	t.Helper()
	var rules struct {
		Groups []struct {
			Rules []struct {
				Expr        string            `json:"expr"`
				Annotations map[string]string `json:"annotations"`
			} `json:"rules"`
		} `json:"groups"`
	}
	text, err := os.ReadFile("../../config/prometheus/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			q := query{expr: rule.Expr}
			for _, annotation := range rule.Annotations {
				q.texts = append(q.texts, annotation)
			}
			queries = append(queries, q)
		}
	}
	return queries
}

// dashboardQueries returns the queries of the dashboard's panels.
func dashboardQueries(t *testing.T) (queries []query) {
	t.Helper()
	text, err := os.ReadFile("../../config/prometheus/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard any
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	var find func(value any)
	find = func(value any) {
		switch value := value.(type) {
		case map[string]any:
			if expr, ok := value["expr"].(string); ok {
				legend, _ := value["legendFormat"].(string)
				queries = append(queries, query{expr, []string{legend}})
			}
			for _, inner := range value {
				find(inner)
			}
		case []any:
			for _, inner := range value {
				find(inner)
			}
		}
	}
	find(dashboard)
	return queries
}

func TestRulesAndDashboardUseOnlyLabelsOfTheirMetrics(t *testing.T) {
	_, list := seen(t)
	queries := map[string][]query{"rules.yaml": alertQueries(t), "dashboard.json": dashboardQueries(t)}
	for file, all := range queries {
		if len(all) < 20 {
			t.Errorf("found %d queries in %s, want at least 20", len(all), file)
		}
		for _, q := range all {
			for _, problem := range q.problems(list.labels) {
				t.Errorf("%s: %s", file, problem)
			}
		}
	}
}

func TestAQueryWithAnUnknownLabelIsFound(t *testing.T) {
	labels := map[string][]string{"drover_a": {"x"}, "drover_h": {}}
	for name, tt := range map[string]struct {
		query
		want int
	}{
		"only known labels": {
			query{`sum by (x, job) (rate(drover_a{x!="y=z"}[5m])) > on (x) drover_a`, []string{"{{x}}"}}, 0,
		},
		"a matcher":                      {query{`drover_a{x="1",y=~"2"}`, nil}, 1},
		"an aggregation":                 {query{`max by (x) (drover_a) or max by (y) (drover_a)`, nil}, 1},
		"an aggregation without a label": {query{`sum without (x) (drover_a) or sum without(x, y) (drover_a)`, nil}, 1},
		"a clause after its operand":     {query{`sum(drover_a) without (x)`, nil}, 1},
		"a match on a label":             {query{`drover_h > on (x) drover_a`, nil}, 1},
		"a match of another metric":      {query{`up and on (y) drover_a`, nil}, 1},
		"a match that ignores a label":   {query{`up > ignoring(x) drover_a > ignoring (y) up`, nil}, 1},
		"a legend":                       {query{`drover_a`, []string{"{{y}}"}}, 1},
		"an annotation":                  {query{`drover_a`, []string{"{{ $labels.y }} is {{ $value }}"}}, 1},
		"a bucket has le":                {query{`sum by (le) (rate(drover_h_bucket[5m]))`, nil}, 0},
		"a count has no le":              {query{`sum by (le) (rate(drover_h_count[5m]))`, nil}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tt.problems(labels); len(got) != tt.want {
				t.Errorf("got the problems %q, want %d", got, tt.want)
			}
		})
	}
}
