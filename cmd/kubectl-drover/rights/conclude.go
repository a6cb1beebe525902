// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/access"
)

// Answers to a question.
const (
	allowed      = "Allowed"
	denied       = "Denied"
	cannotBeTold = "Unknown"
)

// hubOnly is the remark in an answer if the member was not queried.
const hubOnly = "these are the rights that Drover grants; the member's own roles and bindings may grant more"

// explanation is the result of "why". It has the format that -o json prints.
type explanation struct {
	Subject   principal `json:"subject"`
	Action    action    `json:"action"`
	Workspace string    `json:"workspace"`
	Cluster   string    `json:"cluster"`
	// Answer is the member's answer: Allowed or Denied. It is Unknown if the member was not queried or did not answer.
	Answer string `json:"answer"`
	// Drover is the answer according to the hub's objects: Granted or NotGranted. It is Unknown if only the member
	// knows the rules of a role.
	Drover access.Decision `json:"drover"`
	// Member is the result of a SubjectAccessReview in the member. It is absent if the member was not queried.
	Member *memberReview `json:"member,omitempty"`
	// Chains lists the chains that lead from bindings on the hub to objects in the member.
	Chains []link `json:"chains,omitempty"`
	// Missing lists the subject's bindings that do not grant the action, each with advice. The bindings that come
	// closest to granting the action come first.
	Missing []missedBinding `json:"missing,omitempty"`
	// Remarks explain differences between the hub and the member, and list objects that could not be read.
	Remarks []string `json:"remarks,omitempty"`
}

// memberReview is the result of an access review by the member's API server.
type memberReview struct {
	Allowed bool   `json:"allowed"`
	Reason  string `json:"reason,omitempty"`
}

// link is a chain, together with the state of its objects in the member.
type link struct {
	access.Chain
	// Delivered is absent if the member was not queried.
	Delivered *delivered `json:"delivered,omitempty"`
}

// missedBinding is a binding that does not grant the action, together with advice.
type missedBinding struct {
	access.Missing
	Explanation string `json:"explanation"`
}

// findings holds everything that was gathered for one question.
type findings struct {
	who       principal
	what      action
	hub       *gathered
	workspace string
	cluster   string
	answer    access.Explanation
	// delivered has one element for each chain in the answer. It is nil if the member was not queried.
	delivered []delivered
	review    *authorizationv1.SubjectAccessReviewStatus
	remarks   []string
}

// conclude compares the hub's answer with the member's answer.
func conclude(f findings) explanation {
	e := explanation{
		Subject: f.who, Action: f.what, Workspace: f.workspace, Cluster: f.cluster,
		Drover: f.answer.Decision, Remarks: f.remarks,
	}
	for i, chain := range f.answer.Chains {
		l := link{Chain: chain}
		if f.delivered != nil {
			l.Delivered = &f.delivered[i]
		}
		e.Chains = append(e.Chains, l)
	}
	for _, m := range f.answer.Missing {
		e.Missing = append(e.Missing, missedBinding{Missing: m, Explanation: f.explain(m)})
	}
	if f.review != nil {
		e.Member = &memberReview{Allowed: f.review.Allowed, Reason: f.review.Reason}
		if e.Drover == access.Unknown {
			e.Drover = f.settled()
		}
	}
	if len(f.hub.unread) > 0 {
		e.Remarks = append(e.Remarks, "the answer may be incomplete: you do not have the right to "+strings.Join(f.hub.unread, ", and to "))
		if e.Drover == access.NotGranted {
			e.Drover = access.Unknown
		}
	}
	if project := f.unlabelled(); project != "" && e.Drover == access.NotGranted {
		e.Drover = access.Unknown
		e.Remarks = append(e.Remarks, fmt.Sprintf("only the member knows whether namespace %s has the label of project %s", f.what.Namespace, project))
	}
	e.Answer = f.outcome()
	e.Remarks = append(e.Remarks, f.differences(e.Drover)...)
	e.Remarks = append(e.Remarks, f.refusals()...)
	return e
}

// settled decides whether external roles grant the action. It uses the rules of these roles in the member.
func (f findings) settled() access.Decision {
	verdict := access.NotGranted
	for _, d := range f.delivered {
		switch d.Role {
		case present:
			return access.Granted
		case unread:
			verdict = access.Unknown
		case absent, different:
		}
	}
	return verdict
}

// unlabelled returns a project that the namespace may belong to. The namespace's label would decide this, but the
// member was not queried.
func (f findings) unlabelled() string {
	for _, m := range f.answer.Missing {
		if f.review == nil && m.Lack == access.LackNamespace {
			return m.Project
		}
	}
	return ""
}

// outcome returns the member's answer, which takes precedence over the hub's answer. The hub's objects might not have
// been delivered to the member yet, and the member may grant more than the hub.
func (f findings) outcome() string {
	switch {
	case f.review == nil:
		return cannotBeTold
	case f.review.Allowed:
		return allowed
	}
	return denied
}

// differences explains why the hub's answer and the member's answer differ.
func (f findings) differences(drover access.Decision) []string {
	switch {
	case f.review == nil:
		return f.unasked()
	case drover == access.Granted && !f.review.Allowed:
		return f.undelivered()
	case drover == access.NotGranted && f.review.Allowed:
		return f.elsewhere()
	case drover == access.Unknown && f.review.Allowed && f.byDrover():
		return []string{"Drover grants it through an object that you may not read"}
	}
	return nil
}

// unasked describes the facts that only a query to the member could determine.
func (f findings) unasked() []string {
	var remarks []string
	for _, chain := range f.answer.Chains {
		if chain.External != "" {
			remarks = append(remarks, fmt.Sprintf("only the member knows the rules of ClusterRole %s", chain.External))
		}
		if ready, found := f.hub.ready[chain.Binding]; found && ready.Status != metav1.ConditionTrue {
			remarks = append(remarks,
				fmt.Sprintf("%s %s is not in effect in all its members: %s: "+
					"%s", chain.Binding.Kind, chain.Binding.Name, ready.Reason, ready.Message))
		}
	}
	return remarks
}

// undelivered returns the parts of the hub's chains that are missing from the member.
func (f findings) undelivered() []string {
	var remarks []string
	for i, chain := range f.answer.Chains {
		d := f.delivered[i]
		said := "nothing"
		if ready, found := f.hub.ready[chain.Binding]; found {
			said = fmt.Sprintf("%s: %s", ready.Reason, ready.Message)
		}
		switch {
		case d.Binding == absent || d.Binding == different:
			remarks = append(remarks,
				fmt.Sprintf("%s in the member is missing or differs from the hub's; the condition of %s %s is "+
					"%s", name(chain.Object), chain.Binding.Kind, chain.Binding.Name, said))
		case d.Role == absent:
			remarks = append(remarks,
				fmt.Sprintf("the member has no ClusterRole %s, which %s refers to", chain.Role, name(chain.Object)))
		case d.Role == different:
			remarks = append(remarks,
				fmt.Sprintf("ClusterRole %s in the member has no rule that allows it; see the status of role template "+
					"%s", chain.Role, chain.Templates[0]))
		case d.Binding == present && d.Role == present:
			remarks = append(remarks, "the member has all these objects but denies the request: they may have arrived just "+
				"now, or another authorizer of the member denies it")
		}
	}
	return remarks
}

// elsewhere explains the source of a right that the member grants but the hub does not.
func (f findings) elsewhere() []string {
	if f.byDrover() {
		return []string{"the member still grants a right that the hub no longer grants: the agent removes it after it is informed; check the binding's status and whether the cluster is connected"}
	}
	remarks := []string{"the member itself grants it, not Drover: change it in the member"}
	if !f.mayUseProxy() {
		remarks = append(remarks,
			fmt.Sprintf("no binding lets %s reach the cluster through the hub; this needs a binding, or the right to get "+
				"clusters/proxy on the hub", f.who))
	}
	return remarks
}

// byDrover reports whether the member names one of Drover's objects as the reason for its answer.
func (f findings) byDrover() bool { return strings.Contains(f.review.Reason, `Binding "drover:`) }

// mayUseProxy reports whether a binding allows the subject to use the proxy.
func (f findings) mayUseProxy() bool {
	if len(f.answer.Chains) > 0 {
		return true
	}
	for _, m := range f.answer.Missing {
		live := m.Expires == nil || f.hub.Now.Before(m.Expires.Time)
		if live && (m.Lack == access.LackRule || m.Lack == access.LackNamespace || m.Lack == access.LackScope) {
			return true
		}
	}
	return false
}

// refusals describes the objects in the member that the caller is not allowed to read.
func (f findings) refusals() []string {
	var remarks []string
	told := map[string]bool{}
	for _, d := range f.delivered {
		for _, err := range d.refusals {
			remark := fmt.Sprintf("not everything in the member could be read: %v", err)
			if apierrors.IsForbidden(err) {
				remark += ": ask for this right in the member"
			}
			if !told[remark] {
				remarks = append(remarks, remark)
			}
			told[remark] = true
		}
	}
	return remarks
}

// explain returns a sentence that says why a binding does not grant the action and what the user can do.
func (f findings) explain(m access.Missing) string {
	where := f.what.in(f.cluster)
	switch m.Lack {
	case access.LackRule:
		return fmt.Sprintf("role template %s has no rule that allows it: add a rule to it or to a role template that it "+
			"inherits, or bind another role template", m.RoleTemplate)
	case access.LackExpired:
		return fmt.Sprintf("it expired at %s: set a later expiresAt", m.Expires.UTC().Format(cli.TimeFormat))
	case access.LackRole:
		return fmt.Sprintf("its role template cannot be used: %v", m.Err)
	case access.LackNamespace:
		return fmt.Sprintf("namespace %s is not in project %s: add it to the project, or label it in the member",
			f.what.Namespace, m.Project)
	case access.LackScope:
		return fmt.Sprintf("it only applies to the namespaces of project %s, but the question is about an action %s: use "+
			"--namespace, or bind a role template of context Cluster", m.Project, where)
	case access.LackProject:
		return fmt.Sprintf("project %s does not exist in workspace %s: create it, or use another one", m.Project, f.workspace)
	case access.LackCluster:
		if m.Err != nil {
			return fmt.Sprintf("its clusters cannot be determined: %v", m.Err)
		}
		if m.Project != "" {
			return fmt.Sprintf("project %s does not include cluster %s: change its clusterName or clusterSelector, or the "+
				"labels of the Cluster", m.Project, f.cluster)
		}
		return fmt.Sprintf("it does not include cluster %s: change its clusterName or clusterSelector, or the labels of the "+
			"Cluster", f.cluster)
	case access.LackBinding:
		return f.noBinding()
	}
	return string(m.Lack)
}

func (f findings) noBinding() string {
	said := fmt.Sprintf("no binding in workspace %s is for %s", f.workspace, f.who)
	if len(f.hub.unread) > 0 {
		said = fmt.Sprintf("no binding that you may read in workspace %s is for %s", f.workspace, f.who)
	}
	if f.who.Kind == v1.SubjectUser {
		said += fmt.Sprintf(", or a known group of the user (%s; add more with --group)", strings.Join(f.who.Groups, ", "))
	}
	if likely := f.fullNames(); len(likely) > 0 {
		return said + ". Did you mean " + strings.Join(likely, " or ") + "?"
	}
	return said + ": create a ClusterRoleTemplateBinding, or a ProjectRoleTemplateBinding for the namespaces of a project"
}

// fullNames searches bindings for principals whose names consist of a provider prefix and the queried name. It finds
// none if the queried name already has a prefix. These names are useful because "grant" accepts alice for local:alice,
// but a member may have its own user named alice.
func (f findings) fullNames() []string {
	if strings.Contains(f.who.Name, ":") {
		return nil
	}
	found := sets.New[string]()
	note := func(s v1.Subject) {
		if _, name, _ := strings.Cut(s.Name, ":"); s.Kind == f.who.Kind && name == f.who.Name {
			found.Insert(s.Name)
		}
	}
	for i := range f.hub.ClusterBindings {
		note(f.hub.ClusterBindings[i].Spec.Subject)
	}
	for i := range f.hub.ProjectBindings {
		note(f.hub.ProjectBindings[i].Spec.Subject)
	}
	return sets.List(found)
}

// name formats a reference.
func name(r access.Reference) string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return fmt.Sprintf("%s %s in namespace %s", r.Kind, r.Name, r.Namespace)
}
