// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package access

import (
	"cmp"
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/set"
)

// Workspace holds the objects in one namespace on the hub that grant rights. Access is evaluated as of Now.
type Workspace struct {
	Templates       Templates
	Clusters        map[string]labels.Set
	Projects        map[string]*v1.Project
	ClusterBindings []v1.ClusterRoleTemplateBinding
	ProjectBindings []v1.ProjectRoleTemplateBinding
	Now             time.Time
}

// Place is the member, and the project if it is known, in which an action takes place.
type Place struct {
	// Cluster is the name of the member.
	Cluster string
	// Project is the value of the project label on the action's namespace in the member. If the label is unknown, Project
	// is empty, and the project whose spec lists the namespace is used instead.
	Project string
}

// Decision states whether Drover grants an action. The member's own RBAC may grant more.
type Decision string

const (
	// Granted means that at least one chain grants the action.
	Granted Decision = "Granted"
	// Unknown means that the bound template is external, so its rules are defined only in the member.
	Unknown Decision = "Unknown"
	// NotGranted means that nothing in the workspace grants the action.
	NotGranted Decision = "NotGranted"
)

// Explanation explains why a user may do something, or which right is missing.
type Explanation struct {
	Decision Decision
	// Chains lists the chains that grant the action. If External is set in a chain, the chain might not grant it.
	Chains []Chain
	// Missing lists the bindings of the user that do not grant the action. Bindings that come closest to granting it
	// are listed first. If the user has no bindings, there is a single entry with LackBinding. Missing is set
	// regardless of the decision.
	Missing []Missing
}

// Chain connects a binding to a rule, and to the object that puts the rule into effect in the member.
type Chain struct {
	// Binding is the binding on the hub.
	Binding Reference `json:"binding"`
	// Subject is the subject of the binding.
	Subject v1.Subject `json:"subject"`
	// Expires is the binding's expiry time, or nil if the binding never expires.
	Expires *metav1.Time `json:"expires,omitempty"`
	// Templates is the path from the bound template to the template that contains the rule.
	Templates []string `json:"templates"`
	// Rule is the rule that allows the action. It is empty if External is set.
	Rule rbacv1.PolicyRule `json:"rule,omitzero"`
	// External is the ClusterRole in the member whose rules determine the decision. It is empty if the hub knows the
	// rules.
	External string `json:"external,omitempty"`
	// Object is the ClusterRoleBinding or RoleBinding in the member.
	Object Reference `json:"object"`
	// Role is the ClusterRole in the member that Object refers to.
	Role string `json:"role"`
}

// Reference identifies an object.
type Reference struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// Lack is the reason why a binding does not grant an action.
type Lack string

// Reasons. The closer a binding is to granting the action, the earlier its reason is in this list.
const (
	// LackRule means that no rule of the role allows the action, even though everything else matches.
	LackRule Lack = "NoRule"
	// LackExpired means that the binding has expired.
	LackExpired Lack = "BindingExpired"
	// LackRole means that the role template cannot be granted. Err explains why.
	LackRole Lack = "RoleTemplateUnusable"
	// LackNamespace means that the namespace is not in the binding's project.
	LackNamespace Lack = "NamespaceNotInProject"
	// LackScope means that the binding is for a project, but the action is not limited to a single namespace.
	LackScope Lack = "NotInANamespace"
	// LackProject means that the binding's project does not exist.
	LackProject Lack = "ProjectNotFound"
	// LackCluster means that neither the binding nor its project targets the member.
	LackCluster Lack = "ClusterNotTargeted"
	// LackBinding means that no binding names the subject.
	LackBinding Lack = "NoBinding"
)

// Missing describes a binding that does not grant the action, and why it does not.
type Missing struct {
	Lack Lack `json:"lack"`
	// Binding identifies the binding. It is empty if Lack is LackBinding.
	Binding Reference  `json:"binding,omitzero"`
	Subject v1.Subject `json:"subject,omitzero"`
	// RoleTemplate and Project are the names that the binding refers to. Project is empty for a
	// ClusterRoleTemplateBinding.
	RoleTemplate string `json:"roleTemplate,omitempty"`
	Project      string `json:"project,omitempty"`
	// Expires is the binding's expiry time. It may be in the past. It is nil if the binding never expires.
	Expires *metav1.Time `json:"expires,omitempty"`
	// Err is the reason why a role template or a selector cannot be used.
	Err error `json:"-"`
}

// Explain explains why a user with the given groups may perform the action in the given place, or which right is
// missing.
func Explain(w Workspace, user string, groups []string, where Place, what Action) Explanation {
	about := func(s v1.Subject) bool {
		return s.Kind == v1.SubjectUser && s.Name == user || s.Kind == v1.SubjectGroup && slices.Contains(groups, s.Name)
	}
	explanation := w.ask(about, where, what)
	if len(explanation.Chains) == 0 && len(explanation.Missing) == 0 {
		explanation.Missing = []Missing{{Lack: LackBinding}}
	}
	return explanation
}

// WhoCan returns every chain that grants, or might grant, the action in the given place, regardless of the subject.
func WhoCan(w Workspace, where Place, what Action) []Chain {
	return w.ask(func(v1.Subject) bool { return true }, where, what).Chains
}

func (w Workspace) ask(about func(v1.Subject) bool, where Place, what Action) Explanation {
	explanation := Explanation{Decision: NotGranted}
	for _, c := range w.candidates() {
		if !about(c.subject) {
			continue
		}
		chain, missing := w.decide(c, where, what)
		if missing != nil {
			explanation.Missing = append(explanation.Missing, *missing)
			continue
		}
		explanation.Chains = append(explanation.Chains, *chain)
		switch {
		case chain.External == "":
			explanation.Decision = Granted
		case explanation.Decision == NotGranted:
			explanation.Decision = Unknown
		}
	}
	slices.SortStableFunc(explanation.Missing,
		func(a, b Missing) int { return cmp.Compare(a.Lack.distance(), b.Lack.distance()) })
	return explanation
}

func (l Lack) distance() int {
	return slices.Index([]Lack{LackRule, LackExpired, LackRole, LackNamespace, LackScope, LackProject, LackCluster,
		LackBinding}, l)
}

// candidate is a ClusterRoleTemplateBinding or a ProjectRoleTemplateBinding.
type candidate struct {
	binding Reference
	subject v1.Subject
	role    string
	project string
	expires *metav1.Time
	target  v1.ClusterTarget
	lack    Lack // set if the binding cannot grant any action
	// object is the RBAC binding in the member, and ref is the ClusterRole that it refers to.
	object  Reference
	ref     rbacv1.RoleRef
	refused error
}

// candidates returns all bindings in the workspace, sorted by kind and name.
func (w Workspace) candidates() []candidate {
	var all []candidate
	for i := range w.ClusterBindings {
		b := &w.ClusterBindings[i]
		c := candidate{binding: Reference{Kind: KindClusterBinding, Namespace: b.Namespace, Name: b.Name},
			subject: b.Spec.Subject, role: b.Spec.RoleTemplateName, expires: b.Spec.ExpiresAt, target: b.Spec.ClusterTarget}
		if object, err := ClusterBinding(w.Templates, b); err != nil {
			c.refused = err
		} else {
			c.object, c.ref = Reference{Kind: object.Kind, Name: object.Name}, object.RoleRef
		}
		all = append(all, c)
	}
	for i := range w.ProjectBindings {
		all = append(all, w.projectCandidate(&w.ProjectBindings[i]))
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.binding.Kind, b.binding.Kind), cmp.Compare(a.binding.Name, b.binding.Name))
	})
	return all
}

func (w Workspace) projectCandidate(b *v1.ProjectRoleTemplateBinding) candidate {
	c := candidate{binding: Reference{Kind: KindProjectBinding, Namespace: b.Namespace, Name: b.Name},
		subject: b.Spec.Subject, role: b.Spec.RoleTemplateName, project: b.Spec.ProjectName, expires: b.Spec.ExpiresAt}
	if project, found := w.Projects[b.Spec.ProjectName]; found {
		c.target = project.Spec.ClusterTarget
	} else {
		c.lack = LackProject
	}
	if object, err := ProjectBinding(w.Templates, b); err != nil {
		c.refused = err
	} else {
		c.object, c.ref = Reference{Kind: object.Kind, Name: object.Name}, object.RoleRef
	}
	return c
}

// decide evaluates a binding. It returns the chain if the binding grants the action, and otherwise the reason why it
// does not. Exactly one of the two results is non-nil.
func (w Workspace) decide(c candidate, where Place, what Action) (*Chain, *Missing) {
	missing := &Missing{Lack: c.lack, Binding: c.binding, Subject: c.subject, RoleTemplate: c.role, Project: c.project,
		Expires: c.expires}
	lacks := func(lack Lack, err error) (*Chain, *Missing) {
		missing.Lack, missing.Err = lack, err
		return nil, missing
	}
	if c.lack != "" {
		return nil, missing
	}
	cluster, known := w.Clusters[where.Cluster]
	if hit, err := c.target.Selects(where.Cluster, cluster); err != nil || !hit || !known {
		return lacks(LackCluster, err)
	}
	if c.project != "" {
		switch {
		case what.Namespace == "":
			return lacks(LackScope, nil)
		case w.projectOf(where, what.Namespace) != c.project:
			return lacks(LackNamespace, nil)
		}
		c.object.Namespace = what.Namespace
	}
	if c.refused != nil {
		return lacks(LackRole, c.refused)
	}
	if c.expires != nil && !w.Now.Before(c.expires.Time) {
		return lacks(LackExpired, nil)
	}
	chain := &Chain{Binding: c.binding, Subject: c.subject, Expires: c.expires, Object: c.object, Role: c.ref.Name}
	if external := w.Templates[c.role].Spec.External; external != "" {
		chain.Templates, chain.External = []string{c.role}, external
		return chain, nil
	}
	sources, err := Sources(w.Templates, c.role)
	if err != nil {
		return lacks(LackRole, err)
	}
	for _, source := range sources {
		if Allows(source.Rule, what) {
			chain.Templates, chain.Rule = source.Path, source.Rule
			return chain, nil
		}
	}
	return lacks(LackRule, nil)
}

// projectOf returns the project of a namespace in a member. The project is named by the namespace's label. If the label
// is unknown, projectOf returns the oldest project that lists the namespace. A reserved namespace never belongs to a
// project.
func (w Workspace) projectOf(where Place, namespace string) string {
	switch {
	case set.Reserved(namespace):
		return ""
	case where.Project != "":
		return where.Project
	}
	var owner *v1.Project
	for _, p := range w.Projects {
		hit, err := p.Spec.Selects(where.Cluster, w.Clusters[where.Cluster])
		if err != nil || !hit || !slices.Contains(p.Spec.Namespaces, namespace) {
			continue
		}
		if owner == nil ||
			cmp.Or(p.CreationTimestamp.Compare(owner.CreationTimestamp.Time), cmp.Compare(p.Name, owner.Name)) < 0 {
			owner = p
		}
	}
	if owner == nil {
		return ""
	}
	return owner.Name
}
