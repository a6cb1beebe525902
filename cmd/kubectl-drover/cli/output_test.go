// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"
)

type rows struct {
	Items []row `json:"items"`
}

type row struct {
	Name string `json:"name"`
	Note string `json:"note,omitempty"`
}

func (r rows) Text() string { return "text\n" }
func (r rows) Wide() string { return "wide\n" }
func (r rows) Names() []string {
	var names []string
	for _, row := range r.Items {
		names = append(names, row.Name)
	}
	return names
}

func TestListsAreInTheFormatOfTheFlag(t *testing.T) {
	list := rows{[]row{{Name: "a", Note: "x"}, {Name: "b\tc"}}}
	for output, want := range map[string]string{
		"text":                      "text\n",
		"wide":                      "wide\n",
		"name":                      "a\nb c\n",
		"jsonpath={.items[*].note}": "x",
		`jsonpath={range .items[?(@.note=="x")]}{.name}{"\n"}{end}`: "a\n",
		"jsonpath={.missing}": "",
		"yaml":                "items:\n- name: a\n  note: x\n- name: \"b\\tc\"\n",
	} {
		var out strings.Builder
		o := &Options{Output: output}
		if err := o.CheckListOutput(); err != nil {
			t.Errorf("-o %s is refused: %v", output, err)
		}
		if err := o.Print(&out, list, list.Text); err != nil || out.String() != want {
			t.Errorf("-o %s prints %q, %v, want %q", output, &out, err, want)
		}
	}
	for output, want := range map[string]string{
		"jsonpath={.items[": "the template of --output is invalid",
		"custom-columns":    `unknown output format "custom-columns": use text, wide, name, json, yaml or jsonpath=TEMPLATE`,
	} {
		o := &Options{Output: output}
		if err := o.CheckListOutput(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("-o %s: %v, want %q", output, err, want)
		}
	}
	if err := (&Options{Output: "name"}).CheckOutput(); err == nil {
		t.Error("a command that is no list accepts -o name")
	}
}
