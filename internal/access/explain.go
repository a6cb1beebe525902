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

// Workspace holds the objects that grant rights in one namespace on the hub, and the time for which access is
// evaluated.
type Workspace struct {
	Templates       Templates
	Clusters        map[string]labels.Set
	Projects        map[string]*v1.Project
	ClusterBindings []v1.ClusterRoleTemplateBinding
	ProjectBindings []v1.ProjectRoleTemplateBinding
	Now             time.Time
}

// Place is the member and project in which an action takes place.
type Place struct {
	// Cluster is the name of the member.
	Cluster string
	// Project is the project of the namespace in which the action takes place, taken from the namespace's label in the
	// member. If Project is empty, the label is unknown, and the project is determined from the namespaces that
	// projects list.
	Project string
}

// Decision states whether Drover grants an action. The member's own RBAC may grant more.
type Decision string

const (
	// Granted means that at least one chain grants the action.
	Granted Decision = "Granted"
	// Unknown means that the bound template is external, so its rules are known only in the member.
	Unknown Decision = "Unknown"
	// NotGranted means that nothing in the workspace grants the action.
	NotGranted Decision = "NotGranted"
)

// Explanation explains why a user may do something, or which right is missing.
type Explanation struct {
	Decision Decision
	// Chains are the chains that grant the action. Chains with External set might grant it.
	Chains []Chain
	// Missing lists the subject's bindings that do not grant the action, starting with the binding that comes closest
	// to granting it. If the subject has no bindings, there is one entry with LackBinding. Missing is set regardless of
	// the decision.
	Missing []Missing
}

// Chain connects a binding to a rule, and to the object in the member that puts the rule into effect there.
type Chain struct {
	// Binding is the binding on the hub.
	Binding Reference `json:"binding"`
	// Subject is the matching subject of the binding.
	Subject v1.Subject `json:"subject"`
	// Expires is when the binding ends. It is nil if the binding never ends.
	Expires *metav1.Time `json:"expires,omitempty"`
	// Templates is the path from the bound template to the template with the rule.
	Templates []string `json:"templates"`
	// Rule is the rule that allows the action. It is empty if External is set.
	Rule rbacv1.PolicyRule `json:"rule,omitzero"`
	// External is the ClusterRole in the member whose rules determine the decision. It is empty if the rules are known
	// on the hub.
	External string `json:"external,omitempty"`
	// Object is the object in the member.
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

// Lacks, ordered by how close the binding comes to granting the action, closest first.
const (
	// LackRule: everything else matches, but no rule of the role allows the action.
	LackRule Lack = "NoRule"
	// LackExpired: the binding has expired.
	LackExpired Lack = "BindingExpired"
	// LackRole: the role template cannot be granted. Err explains why.
	LackRole Lack = "RoleTemplateUnusable"
	// LackNamespace: the namespace is not in the binding's project.
	LackNamespace Lack = "NamespaceNotInProject"
	// LackScope: the binding is for a project, but the action is not limited to a single namespace.
	LackScope Lack = "NotInANamespace"
	// LackProject: the binding's project does not exist.
	LackProject Lack = "ProjectNotFound"
	// LackCluster: the binding or its project does not target this member.
	LackCluster Lack = "ClusterNotTargeted"
	// LackBinding: no binding names the subject.
	LackBinding Lack = "NoBinding"
)

// Missing is a binding that does not grant the action, and the reason.
type Missing struct {
	Lack Lack `json:"lack"`
	// Binding is the binding. It is empty if Lack is LackBinding.
	Binding Reference  `json:"binding,omitzero"`
	Subject v1.Subject `json:"subject,omitzero"`
	// RoleTemplate and Project are the names in the binding. Project is empty for a ClusterRoleTemplateBinding.
	RoleTemplate string `json:"roleTemplate,omitempty"`
	Project      string `json:"project,omitempty"`
	// Expires is when the binding ends or ended. It is nil if the binding never ends.
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

// WhoCan returns the chains, for all subjects, that grant or might grant the action in the given place.
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

// candidate is a binding of either kind.
type candidate struct {
	binding Reference
	subject v1.Subject
	role    string
	project string
	expires *metav1.Time
	target  v1.ClusterTarget
	lack    Lack // set if the reason does not depend on the action
	// object is the object in the member, and ref is the ClusterRole to which it refers.
	object  Reference
	ref     rbacv1.RoleRef
	refused error
}

// candidates returns all bindings, sorted by kind and name.
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

// decide returns how a binding grants the action, or why it does not. Exactly one of the two results is non-nil.
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

// projectOf returns the project of a namespace in a member. This is the project in the namespace's label or, if the
// label is unknown, the oldest project that lists the namespace. A reserved namespace is in no project, regardless of
// its label.
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
