// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/drover-dev/drover/internal/access"
)

// Outputs of a command.
const (
	outputText = "text"
	outputJSON = "json"
	outputYAML = "yaml"
)

const timeFormat = "2006-01-02 15:04 MST"

// print writes an answer as the flag says.
func (o *options) print(out io.Writer, answer any, text func() string) error {
	var raw []byte
	var err error
	switch o.output {
	case outputJSON:
		raw, err = json.MarshalIndent(answer, "", "  ")
		raw = append(raw, '\n')
	case outputYAML:
		if raw, err = json.Marshal(answer); err == nil {
			raw, err = yaml.JSONToYAML([]byte(visible(string(raw)))) // YAML takes some characters as escapes only
		}
	default:
		raw = []byte(text())
	}
	if err == nil {
		_, err = out.Write(raw)
	}
	if err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	return nil
}

// errCannotBeTold ends a command that has printed why there is no answer.
var errCannotBeTold = errors.New("it cannot be told: the remarks say why")

// outcomeOf is the error that an answer ends with.
func outcomeOf(answer string) error {
	switch answer {
	case allowed:
		return nil
	case denied:
		return errDenied
	}
	return errCannotBeTold
}

// text is the explanation for a person.
func (e explanation) text() string {
	var b strings.Builder
	verbs := map[string]string{allowed: "Yes: %s may %s %s.\n", denied: "No: %s may not %s %s.\n", cannotBeTold: "It cannot be told whether %s may %s %s.\n"}
	say(&b, verbs[e.Answer], e.Subject, e.Action, e.Action.in(e.Cluster))
	if e.Member == nil {
		b.WriteString(e.byHub())
	}
	for _, l := range e.Chains {
		b.WriteByte('\n')
		l.write(&b, e.Workspace)
	}
	if missing := e.relevantMisses(); len(missing) > 0 {
		b.WriteString("\nWhat is missing, the nearest first:\n")
		for _, m := range missing {
			m.write(&b)
		}
	}
	if e.Member != nil {
		word := "no"
		if e.Member.Allowed {
			word = "yes"
		}
		say(&b, "\nThe member says %s%s\n", word, cmp.Or(suffix(": ", e.Member.Reason), "."))
	}
	writeRemarks(&b, e.Remarks)
	return b.String()
}

// byHub says what the hub's objects say, where the member has not said anything.
func (e explanation) byHub() string {
	switch e.Drover {
	case access.Granted:
		return "Drover grants it, if the member has received it: the member has not said.\n"
	case access.NotGranted:
		return "Drover does not grant it. The member has not said whether something of its own does.\n"
	case access.Unknown:
	}
	return "Nor can it be told whether Drover grants it.\n"
}

// relevantMisses returns the misses that matter: none beside a chain that holds, and no advice to bind what is allowed already.
func (e explanation) relevantMisses() []missedBinding {
	switch {
	case e.Drover == access.Granted && e.Answer != denied:
		return nil
	case e.Answer != allowed:
		return e.Missing
	}
	return slices.DeleteFunc(slices.Clone(e.Missing), func(m missedBinding) bool { return m.Lack != access.LackExpired })
}

// write writes a chain, each step below the one before.
func (l link) write(b *strings.Builder, workspace string) {
	say(b, "%s %s in workspace %s, for %s %s", l.Binding.Kind, l.Binding.Name, workspace, l.Subject.Kind, l.Subject.Name)
	if l.Expires != nil {
		say(b, ", until %s", l.Expires.UTC().Format(timeFormat))
	}
	say(b, "\n└─ role template %s\n", strings.Join(l.Templates, " → "))
	if l.External != "" {
		say(b, "   └─ whatever ClusterRole %s of the member allows\n", l.External)
	} else {
		say(b, "   └─ rule: %s\n", ruleText(l.Rule))
	}
	say(b, "      └─ in the member %s, of ClusterRole %s%s\n", name(l.Object), l.Role, suffix(": ", l.Delivered.text()))
}

// text says what the member has of a chain.
func (d *delivered) text() string {
	if d == nil {
		return ""
	}
	words := map[presence]string{present: "is there", absent: "is not there", different: "is not as it should be", unread: "could not be read"}
	if d.Binding == d.Role {
		return map[presence]string{present: "both are there", absent: "neither is there", different: "neither is as it should be", unread: "neither could be read"}[d.Binding]
	}
	role := words[d.Role]
	if d.Role == different {
		role = "does not allow it"
	}
	return fmt.Sprintf("the binding %s, the role %s", words[d.Binding], role)
}

func (m missedBinding) write(b *strings.Builder) {
	if m.Lack == access.LackBinding {
		say(b, "- %s\n", m.Explanation)
		return
	}
	say(b, "- %s %s (%s, for %s %s): %s\n", m.Binding.Kind, m.Binding.Name, m.RoleTemplate, m.Subject.Kind, m.Subject.Name, m.Explanation)
}

// ruleText is a rule in one line.
func ruleText(r rbacv1.PolicyRule) string {
	if len(r.NonResourceURLs) > 0 {
		return strings.Join(r.Verbs, ", ") + " " + strings.Join(r.NonResourceURLs, ", ")
	}
	said := fmt.Sprintf("%s on %s", strings.Join(r.Verbs, ", "), strings.Join(r.Resources, ", "))
	if !slices.Equal(r.APIGroups, []string{""}) {
		groups := slices.Clone(r.APIGroups)
		for i := range groups {
			groups[i] = cmp.Or(groups[i], "core")
		}
		said += " of " + strings.Join(groups, ", ")
	}
	if len(r.ResourceNames) > 0 {
		said += " named " + strings.Join(r.ResourceNames, ", ")
	}
	return said
}

// text is the list for a person. What the cluster's own components may do is counted only.
func (h holders) text() string {
	var b strings.Builder
	shown := slices.DeleteFunc(slices.Clone(h.Holders), holder.component)
	heading := "Who may %s %s:\n"
	switch {
	case !h.asked && len(shown) == 0:
		heading = "It cannot be told who may %s %s. As far as the hub knows, Drover grants it to no one.\n"
	case !h.asked:
		heading = "It cannot be told who may %s %s. As far as the hub knows, Drover grants it to these; the member has not said whether that is in force:\n"
	case len(shown) == 0:
		heading = "No one who is known may %s %s.\n"
	}
	say(&b, heading, h.Action, h.Action.in(h.Cluster))
	if len(shown) > 0 {
		b.WriteByte('\n')
		table := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
		fmt.Fprintln(table, "KIND\tNAME\tBY\tROLE\tUNTIL\tEFFECTIVE")
		for _, one := range shown {
			fmt.Fprintln(table, one.row())
		}
		_ = table.Flush() // a strings.Builder takes everything
	}
	if hidden := len(h.Holders) - len(shown); hidden > 0 {
		say(&b, "\nBeside these %d components of the cluster itself, by bindings system:…; -o json lists them.\n", hidden)
	}
	writeRemarks(&b, h.Remarks)
	return b.String()
}

// component reports whether a subject is part of Kubernetes itself.
func (h holder) component() bool {
	return h.Origin == originMember && strings.HasPrefix(h.By.Name, "system:")
}

func (h holder) row() string {
	until, by, subject := "-", h.By.Kind+" "+h.By.Name, h.Subject.Name
	if h.Expires != nil {
		until = h.Expires.UTC().Format(timeFormat)
	}
	if h.Origin == originMember {
		by += " (the member's)"
	}
	if h.Subject.Namespace != "" {
		subject = h.Subject.Namespace + "/" + subject
	}
	cells := []string{h.Subject.Kind, subject, by, h.Role, until, string(h.Effective)}
	for i := range cells {
		cells[i] = plain(cells[i])
	}
	return strings.Join(cells, "\t")
}

func writeRemarks(b *strings.Builder, remarks []string) {
	if len(remarks) == 0 {
		return
	}
	b.WriteString("\nRemarks:\n")
	for _, remark := range remarks {
		say(b, "- %s\n", remark)
	}
}

func suffix(separator, text string) string {
	if text == "" {
		return ""
	}
	return separator + text
}
