// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// state is the state that a hub requires in the member "prod", with the namespaces that users in the member have
// assigned to projects.
type state struct {
	templates       map[string]v1.RoleTemplateSpec
	clusterBindings map[string]v1.ClusterRoleTemplateBindingSpec
	projectBindings map[string]v1.ProjectRoleTemplateBindingSpec
	projects        map[string]*v1.Project
	cluster         map[string]string            // labels of the Cluster
	external        map[string]rbacv1.PolicyRule // ClusterRoles that the member has itself
	labelled        map[string]string            // projects by namespace
}

func newState() state {
	return state{
		templates: map[string]v1.RoleTemplateSpec{}, clusterBindings: map[string]v1.ClusterRoleTemplateBindingSpec{},
		projectBindings: map[string]v1.ProjectRoleTemplateBindingSpec{}, projects: map[string]*v1.Project{},
		cluster: map[string]string{}, external: map[string]rbacv1.PolicyRule{}, labelled: map[string]string{},
	}
}

// clone returns a copy with its own maps. Their values are replaced and never changed.
func (s state) clone() state {
	return state{
		templates: maps.Clone(s.templates), clusterBindings: maps.Clone(s.clusterBindings), projectBindings: maps.Clone(s.projectBindings),
		projects: maps.Clone(s.projects), cluster: maps.Clone(s.cluster), external: s.external, labelled: maps.Clone(s.labelled),
	}
}

// model decides who may do what according to the documented rules; it shares no code with the implementation that it is
// compared with. With one state, it decides which rights are correct. With several states, it decides which rights may
// be observed between the first and the last: the member has one version of each binding, role and namespace.
type model []state

// person is a user whose rights are checked.
type person struct {
	name   string
	groups []string
}

func (p person) is(s v1.Subject) bool {
	if s.Kind == v1.SubjectUser {
		return s.Name == p.name
	}
	return slices.Contains(p.groups, s.Name)
}

// question is an action that is allowed or not: exactly one of its fields is set.
type question struct {
	resource *authorizationv1.ResourceAttributes
	path     string // to get
}

func (q question) namespace() string {
	if q.resource == nil {
		return ""
	}
	return q.resource.Namespace
}

// allows reports whether a person may do something at a time.
func (m model) allows(p person, q question, now time.Time) bool {
	for _, s := range m {
		for _, b := range s.clusterBindings {
			if p.is(b.Subject) && alive(b.ExpiresAt, now) && m.targeted(b.ClusterTarget) && m.grants(b.RoleTemplateName, v1.ContextCluster, q) {
				return true
			}
		}
		for _, b := range s.projectBindings {
			if q.namespace() != "" && p.is(b.Subject) && alive(b.ExpiresAt, now) && m.inside(q.namespace(), b.ProjectName) && m.grants(b.RoleTemplateName, v1.ContextProject, q) {
				return true
			}
		}
	}
	return false
}

func alive(end *metav1.Time, now time.Time) bool { return end == nil || now.Before(end.Time) }

// targeted reports whether a target selects the member.
func (m model) targeted(t v1.ClusterTarget) bool {
	return slices.ContainsFunc(m, func(s state) bool { return s.targeted(t) })
}

func (s state) targeted(t v1.ClusterTarget) bool {
	if t.ClusterSelector == nil {
		return t.ClusterName == "prod"
	}
	for key, value := range t.ClusterSelector.MatchLabels {
		if s.cluster[key] != value {
			return false
		}
	}
	return true
}

// inside reports whether a namespace is in a project of the member.
func (m model) inside(namespace, project string) bool {
	return slices.ContainsFunc(m, func(s state) bool { return s.projectOf(namespace) == project && s.here(project) })
}

func (s state) here(project string) bool {
	p, exists := s.projects[project]
	return exists && s.targeted(p.Spec.ClusterTarget)
}

// projectOf returns the project of a namespace: the project in its label, or otherwise the oldest listed project.
func (s state) projectOf(namespace string) string {
	if project, labelled := s.labelled[namespace]; labelled {
		return project
	}
	var listing []*v1.Project
	for name, p := range s.projects {
		if s.here(name) && slices.Contains(p.Spec.Namespaces, namespace) {
			listing = append(listing, p)
		}
	}
	if len(listing) == 0 {
		return ""
	}
	return slices.MinFunc(listing, func(a, b *v1.Project) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	}).Name
}

// grants reports whether a template, bound in a context, has a rule for a question.
func (m model) grants(template string, context v1.RoleContext, q question) bool {
	return slices.ContainsFunc(m, func(s state) bool {
		t, exists := s.templates[template]
		if !exists || t.Context != context {
			return false
		}
		if t.External != "" {
			return answers(s.external[t.External], q)
		}
		rules, sound := s.rules(template, nil)
		return sound && slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return answers(r, q) })
	})
}

// rules returns all rules that a template has and inherits, or false if the template is not sound, and so grants
// nothing.
func (s state) rules(name string, heirs []string) ([]rbacv1.PolicyRule, bool) {
	t, exists := s.templates[name]
	if !exists || slices.Contains(heirs, name) || t.External != "" {
		return nil, false
	}
	if len(heirs) > 0 && s.templates[heirs[0]].Context == v1.ContextProject && t.Context == v1.ContextCluster {
		return nil, false
	}
	all := slices.Clone(t.Rules)
	for _, parent := range t.Inherits {
		more, sound := s.rules(parent, append(slices.Clone(heirs), name))
		if !sound {
			return nil, false
		}
		all = append(all, more...)
	}
	return all, true
}

// answers reports whether a Kubernetes RBAC rule allows an action.
func answers(r rbacv1.PolicyRule, q question) bool {
	has := func(list []string, value string) bool {
		return slices.Contains(list, value) || slices.Contains(list, "*")
	}
	if a := q.resource; a != nil {
		return has(r.Verbs, a.Verb) && has(r.APIGroups, a.Group) && has(r.Resources, a.Resource) &&
			(len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, a.Name))
	}
	return has(r.Verbs, "get") && slices.ContainsFunc(r.NonResourceURLs, func(url string) bool {
		prefix, open := strings.CutSuffix(url, "*")
		return url == q.path || open && strings.HasPrefix(q.path, prefix)
	})
}
