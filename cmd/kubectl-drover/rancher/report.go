// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Class says what a finding asks of the reader.
type Class string

// Classes of findings, in the order of the report.
const (
	// Unreadable: the export could not read the objects.
	Unreadable Class = "Unreadable"
	// Decide: a person has to decide, and the export did nothing meanwhile.
	Decide Class = "Decide"
	// Different: it is exported, and its meaning differs from Rancher's.
	Different Class = "Different"
	// LeftOut: it is not exported, because it would grant or change more than in Rancher.
	LeftOut Class = "LeftOut"
	// NoCounterpart: Drover has nothing that it could become.
	NoCounterpart Class = "NoCounterpart"
)

func classes() []Class { return []Class{Unreadable, Decide, Different, LeftOut, NoCounterpart} }

func (c Class) heading() string {
	return map[Class]string{
		Unreadable:    "What could not be read",
		Decide:        "What a person has to decide",
		Different:     "What is exported and differs",
		LeftOut:       "What is left out, and why",
		NoCounterpart: "What has no counterpart",
	}[c]
}

// Finding is one line of the report.
type Finding struct {
	Class Class `json:"class"`
	// Reason says why, and what to do. It is the same for all objects that it is about.
	Reason string `json:"reason"`
	// Object of Rancher, such as "Project c-abcde/p-fghij (web)".
	Object string `json:"object"`
	// Detail of this one object.
	Detail string `json:"detail,omitempty"`
}

// Step is something to do, in order.
type Step struct {
	What     string   `json:"what"`
	Commands []string `json:"commands,omitempty"`
}

// Report says what was exported, and what was not.
type Report struct {
	Workspace string `json:"workspace"`
	// Exported counts the objects that were written, by kind.
	Exported map[string]int `json:"exported"`
	Steps    []Step         `json:"steps"`
	Findings []Finding      `json:"findings"`
}

func (r *Report) find(class Class, reason, object, detail string) {
	r.Findings = append(r.Findings, Finding{class, reason, object, detail})
}

// order makes the report the same for the same objects.
func (r *Report) order() {
	rank := classes()
	slices.SortFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(slices.Index(rank, a.Class), slices.Index(rank, b.Class)), cmp.Compare(a.Reason, b.Reason),
			cmp.Compare(a.Object, b.Object), cmp.Compare(a.Detail, b.Detail))
	})
	r.Findings = slices.Compact(r.Findings)
}

// Count returns how many findings there are of a class.
func (r *Report) Count(class Class) int {
	n := 0
	for _, f := range r.Findings {
		if f.Class == class {
			n++
		}
	}
	return n
}

// shown is how many objects of one reason the Markdown lists; -o json has all.
const shown = 50

// Markdown is REPORT.md.
func (r *Report) Markdown() []byte {
	var b strings.Builder
	b.WriteString("# Export from Rancher\n\nWritten by `kubectl drover rancher export`. Another export writes it anew; `-o json` has it whole.\n\n")
	fmt.Fprintf(&b, "The workspace is %s.\n\n| kind | exported |\n|---|---|\n", code(r.Workspace))
	for _, kind := range exportedKinds() {
		fmt.Fprintf(&b, "| %s | %d |\n", kind, r.Exported[kind])
	}
	b.WriteString("\n## What to do\n")
	for i, step := range r.Steps {
		fmt.Fprintf(&b, "\n%d. %s\n", i+1, step.What)
		if len(step.Commands) > 0 {
			b.WriteString("\n   ```sh\n")
			for _, command := range step.Commands {
				b.WriteString("   " + command + "\n")
			}
			b.WriteString("   ```\n")
		}
	}
	for _, class := range classes() {
		r.section(&b, class)
	}
	return []byte(b.String())
}

func (r *Report) section(b *strings.Builder, class Class) {
	if r.Count(class) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## %s\n", class.heading())
	reason, listed := "", 0
	for i, f := range r.Findings {
		if f.Class != class {
			continue
		}
		if f.Reason != reason || listed == 0 {
			fmt.Fprintf(b, "\n%s\n\n", f.Reason)
			reason, listed = f.Reason, 0
		}
		if listed++; listed <= shown {
			b.WriteString("- " + code(f.Object))
			if f.Detail != "" {
				b.WriteString(": " + code(f.Detail))
			}
			b.WriteByte('\n')
		}
		last := i+1 == len(r.Findings) || r.Findings[i+1].Reason != reason || r.Findings[i+1].Class != class
		if last && listed > shown {
			fmt.Fprintf(b, "- and %d more\n", listed-shown)
		}
	}
}

// code puts a text of others into Markdown as one span of code on one line, in printable ASCII, so that it cannot
// become a link, markup or a heading.
func code(text string) string {
	return "`" + strings.NewReplacer("`", "'", "|", "¦").Replace(ascii(text)) + "`"
}

// ascii puts a text of others on one line, with escapes for all but printable ASCII.
func ascii(text string) string {
	quoted := strconv.QuoteToASCII(text)
	return strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(quoted[1 : len(quoted)-1])
}

// exportedKinds are the kinds of Drover that an export writes, in the order of the report.
func exportedKinds() []string {
	return []string{"Cluster", "Project", "RoleTemplate", "ClusterRoleTemplateBinding", "ProjectRoleTemplateBinding", "Plan", "Secret"}
}
