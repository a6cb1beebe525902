// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/access"
)

// errCannotBeTold is returned by a command that has already explained why there is no answer.
var errCannotBeTold = errors.New("there is no answer: see the remarks for the reasons")

// outcomeOf returns the error that a command returns for a given answer.
func outcomeOf(answer string) error {
	switch answer {
	case allowed:
		return nil
	case denied:
		return cli.ErrDenied
	}
	return errCannotBeTold
}

// text formats the explanation for users.
func (e explanation) text() string {
	var b strings.Builder
	verbs := map[string]string{allowed: "Yes: %s may %s %s.\n", denied: "No: %s may not %s %s.\n", cannotBeTold: "It is not known whether %s may %s %s.\n"}
	cli.Say(&b, verbs[e.Answer], e.Subject, e.Action, e.Action.in(e.Cluster))
	if e.Member == nil {
		b.WriteString(e.byHub())
	}
	for _, l := range e.Chains {
		b.WriteByte('\n')
		l.write(&b, e.Workspace)
	}
	if missing := e.relevantMisses(); len(missing) > 0 {
		b.WriteString("\nWhat is missing, the closest first:\n")
		for _, m := range missing {
			m.write(&b)
		}
	}
	if e.Member != nil {
		word := "no"
		if e.Member.Allowed {
			word = "yes"
		}
		cli.Say(&b, "\nThe member says %s%s\n", word, cmp.Or(suffix(": ", e.Member.Reason), "."))
	}
	writeRemarks(&b, e.Remarks)
	return b.String()
}

// byHub describes the hub's answer. It is used if the member did not answer.
func (e explanation) byHub() string {
	switch e.Drover {
	case access.Granted:
		return "Drover grants it. It is not known whether the member has received this.\n"
	case access.NotGranted:
		return "Drover does not grant it. It is not known whether the member's own roles and bindings do.\n"
	case access.Unknown:
	}
	return "Nor is it known whether Drover grants it.\n"
}

// relevantMisses returns the missed bindings to print. It returns none if the hub grants the action and the member does
// not deny it. It returns only expired bindings if only the member allows the action. Otherwise it returns all of them.
func (e explanation) relevantMisses() []missedBinding {
	switch {
	case e.Drover == access.Granted && e.Answer != denied:
		return nil
	case e.Answer != allowed:
		return e.Missing
	}
	return slices.DeleteFunc(slices.Clone(e.Missing), func(m missedBinding) bool { return m.Lack != access.LackExpired })
}

// write writes a chain. Each step is indented below the previous one.
func (l link) write(b *strings.Builder, workspace string) {
	cli.Say(b, "%s %s in workspace %s, for %s %s", l.Binding.Kind, l.Binding.Name, workspace, l.Subject.Kind,
		l.Subject.Name)
	if l.Expires != nil {
		cli.Say(b, ", until %s", l.Expires.UTC().Format(cli.TimeFormat))
	}
	cli.Say(b, "\n└─ role template %s\n", strings.Join(l.Templates, " → "))
	if l.External != "" {
		cli.Say(b, "   └─ the rules of ClusterRole %s in the member\n", l.External)
	} else {
		cli.Say(b, "   └─ rule: %s\n", ruleText(l.Rule))
	}
	cli.Say(b, "      └─ in the member %s, of ClusterRole %s%s\n", name(l.Object), l.Role,
		suffix(": ", l.Delivered.text()))
}

// text describes the state of a chain's objects in the member.
func (d *delivered) text() string {
	if d == nil {
		return ""
	}
	words := map[presence]string{present: "exists", absent: "does not exist", different: "differs from the hub's", unread: "could not be read"}
	if d.Binding == d.Role {
		return map[presence]string{present: "both exist", absent: "neither exists", different: "both differ from the hub's", unread: "neither could be read"}[d.Binding]
	}
	role := words[d.Role]
	if d.Role == different {
		role = "does not allow it"
	}
	return fmt.Sprintf("the binding %s, the role %s", words[d.Binding], role)
}

func (m missedBinding) write(b *strings.Builder) {
	if m.Lack == access.LackBinding {
		cli.Say(b, "- %s\n", m.Explanation)
		return
	}
	cli.Say(b, "- %s %s (%s, for %s %s): %s\n", m.Binding.Kind, m.Binding.Name, m.RoleTemplate, m.Subject.Kind,
		m.Subject.Name, m.Explanation)
}

// ruleText formats a rule on one line.
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

// text formats the list for users. It counts the cluster's own components but does not list them.
func (h holders) text() string {
	var b strings.Builder
	shown := slices.DeleteFunc(slices.Clone(h.Holders), holder.component)
	heading := "Who may %s %s:\n"
	switch {
	case !h.asked && len(shown) == 0:
		heading = "It is not known who may %s %s. According to the hub, Drover grants it to no one.\n"
	case !h.asked:
		heading = "It is not known who may %s %s. According to the hub, Drover grants it to the following; it is not known whether that is in effect in the member:\n"
	case len(shown) == 0:
		heading = "No known user or group may %s %s.\n"
	}
	cli.Say(&b, heading, h.Action, h.Action.in(h.Cluster))
	if len(shown) > 0 {
		b.WriteString("\n" + cli.Table("KIND\tNAME\tBY\tROLE\tUNTIL\tEFFECTIVE", cli.Map(shown, holder.row)))
	}
	if hidden := len(h.Holders) - len(shown); hidden > 0 {
		cli.Say(&b, "\nIn addition, %d components of the cluster itself, by bindings system:…; -o json lists them.\n", hidden)
	}
	writeRemarks(&b, h.Remarks)
	return b.String()
}

// component reports whether a subject is a component of Kubernetes itself.
func (h holder) component() bool {
	return h.Origin == originMember && strings.HasPrefix(h.By.Name, "system:")
}

func (h holder) row() []string {
	until, by, subject := "-", h.By.Kind+" "+h.By.Name, h.Subject.Name
	if h.Expires != nil {
		until = h.Expires.UTC().Format(cli.TimeFormat)
	}
	if h.Origin == originMember {
		by += " (the member's)"
	}
	if h.Subject.Namespace != "" {
		subject = h.Subject.Namespace + "/" + subject
	}
	return cli.PlainCells(h.Subject.Kind, subject, by, h.Role, until, string(h.Effective))
}

func writeRemarks(b *strings.Builder, remarks []string) {
	if len(remarks) == 0 {
		return
	}
	b.WriteString("\nRemarks:\n")
	for _, remark := range remarks {
		cli.Say(b, "- %s\n", remark)
	}
}

func suffix(separator, text string) string {
	if text == "" {
		return ""
	}
	return separator + text
}
