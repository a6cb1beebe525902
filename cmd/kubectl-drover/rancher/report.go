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

// Class is the class of a finding. It indicates the required action.
type Class string

// Classes of findings, in the order in which the report lists them.
const (
	// Unreadable means that the export could not read the objects.
	Unreadable Class = "Unreadable"
	// Decide means that a user has to make a decision. The export has not converted the object.
	Decide Class = "Decide"
	// Different means that the object was exported, but that its meaning differs from the meaning in Rancher.
	Different Class = "Different"
	// LeftOut means that the object was not exported, because it would grant or change more in Drover than it does in
	// Rancher.
	LeftOut Class = "LeftOut"
	// NoCounterpart means that Drover has no equivalent for the object.
	NoCounterpart Class = "NoCounterpart"
)

func classes() []Class { return []Class{Unreadable, Decide, Different, LeftOut, NoCounterpart} }

func (c Class) heading() string {
	return map[Class]string{
		Unreadable:    "Objects that could not be read",
		Decide:        "Decisions for you",
		Different:     "Exported objects that differ",
		LeftOut:       "Omitted objects",
		NoCounterpart: "Objects without a counterpart",
	}[c]
}

// Finding is one line of the report.
type Finding struct {
	Class Class `json:"class"`
	// Reason explains the finding and the required action. The report groups objects by their reason.
	Reason string `json:"reason"`
	// Object is the Rancher object, such as "Project c-abcde/p-fghij (web)".
	Object string `json:"object"`
	// Detail contains information that is specific to the object.
	Detail string `json:"detail,omitempty"`
}

// Step is a step that the user should take next.
type Step struct {
	What     string   `json:"what"`
	Commands []string `json:"commands,omitempty"`
}

// Report describes the result of an export.
type Report struct {
	Workspace string `json:"workspace"`
	// Exported is the number of exported objects, by kind.
	Exported map[string]int `json:"exported"`
	Steps    []Step         `json:"steps"`
	Findings []Finding      `json:"findings"`
}

func (r *Report) find(class Class, reason, object, detail string) {
	r.Findings = append(r.Findings, Finding{class, reason, object, detail})
}

// order sorts the report, so that the same objects always produce the same report.
func (r *Report) order() {
	rank := classes()
	slices.SortFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(slices.Index(rank, a.Class), slices.Index(rank, b.Class)), cmp.Compare(a.Reason, b.Reason),
			cmp.Compare(a.Object, b.Object), cmp.Compare(a.Detail, b.Detail))
	})
	r.Findings = slices.Compact(r.Findings)
}

// Count returns the number of findings of a class.
func (r *Report) Count(class Class) int {
	n := 0
	for _, f := range r.Findings {
		if f.Class == class {
			n++
		}
	}
	return n
}

// shown is the maximum number of objects that REPORT.md lists per reason. The output of -o json contains all objects.
const shown = 50

// Markdown returns the content of REPORT.md.
func (r *Report) Markdown() []byte {
	var b strings.Builder
	b.WriteString("# Export from Rancher\n\nWritten by `kubectl drover rancher export`. The next export overwrites it. `-o json` prints the complete report.\n\n")
	fmt.Fprintf(&b, "The workspace is %s.\n\n| kind | exported |\n|---|---|\n", code(r.Workspace))
	for _, kind := range exportedKinds() {
		fmt.Fprintf(&b, "| %s | %d |\n", kind, r.Exported[kind])
	}
	b.WriteString("\n## Next steps\n")
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

// code formats untrusted text as a code span on one line of printable ASCII. This prevents the text from becoming a
// link, a heading or other markup.
func code(text string) string {
	return "`" + strings.NewReplacer("`", "'", "|", "¦").Replace(ascii(text)) + "`"
}

// ascii returns untrusted text as one line of printable ASCII. It escapes all other characters.
func ascii(text string) string {
	quoted := strconv.QuoteToASCII(text)
	return strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(quoted[1 : len(quoted)-1])
}

// exportedKinds returns the Drover kinds that an export writes, in the order in which the report lists them.
func exportedKinds() []string {
	return []string{"Cluster", "Project", "RoleTemplate", "ClusterRoleTemplateBinding", "ProjectRoleTemplateBinding", "Plan", "Secret"}
}
