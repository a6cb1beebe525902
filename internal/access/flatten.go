// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package access converts role templates and bindings into RBAC objects, and explains why a user may perform an action.
//
// It has no side effects and uses no client, context, clock or logger. Members get the rules exactly as they are
// written in the templates.
package access

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Templates holds all role templates of the hub, by name.
type Templates map[string]*v1.RoleTemplate

// Index returns the templates in a list, by name.
func Index(list []v1.RoleTemplate) Templates {
	templates := make(Templates, len(list))
	for i := range list {
		templates[list[i].Name] = &list[i]
	}
	return templates
}

// Error explains why a template or binding cannot be converted to RBAC.
type Error struct {
	// Reason is the reason in the Ready condition: v1.ReasonRoleTemplateNotFound, ReasonInheritanceCycle,
	// ReasonContextMismatch, ReasonInheritsExternal or ReasonInvalidRules.
	Reason string
	// Message describes the problem and how to fix it.
	Message string
}

func (e *Error) Error() string { return e.Message }

func refuse(reason, format string, args ...any) *Error {
	return &Error{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// A Source is a rule and the chain of templates through which it is inherited.
type Source struct {
	// Path lists the names of the templates, from the requested template to the template that contains the rule.
	Path []string
	Rule rbacv1.PolicyRule
}

// Flatten returns the rules of a template and of all templates that it inherits from. The template's own rules come
// first, followed by its parents' rules in the order in which it lists the parents. Each template and each rule is
// included once. Every error is an *Error. It is an error if one of the templates is external, because the hub does not
// know its rules.
func Flatten(templates Templates, name string) ([]rbacv1.PolicyRule, error) {
	sources, err := Sources(templates, name)
	if err != nil {
		return nil, err
	}
	rules := make([]rbacv1.PolicyRule, len(sources))
	for i, source := range sources {
		rules[i] = *source.Rule.DeepCopy()
	}
	return rules, nil
}

// Sources is like Flatten, but also returns where each rule is defined. If several templates contain the same rule,
// Sources returns only the first occurrence.
func Sources(templates Templates, name string) ([]Source, error) {
	w := &walk{templates: templates, done: map[string]bool{}, rules: map[string]bool{}}
	if err := w.visit(name); err != nil {
		return nil, err
	}
	return w.sources, nil
}

// walk traverses the inheritance tree of one template, depth first.
type walk struct {
	templates Templates
	path      []string
	done      map[string]bool
	rules     map[string]bool
	sources   []Source
}

func (w *walk) visit(name string) error {
	if slices.Contains(w.path, name) {
		cycle := append(slices.Clone(w.path[slices.Index(w.path, name):]), name)
		return refuse(v1.ReasonInheritanceCycle, "role template %s inherits itself: %s; take one of these out of inherits",
			name, arrows(cycle))
	}
	template, err := w.template(name)
	if err != nil || w.done[name] {
		return err
	}
	w.path = append(w.path, name)
	for _, rule := range template.Spec.Rules {
		if err := w.add(template, rule); err != nil {
			return err
		}
	}
	for _, parent := range template.Spec.Inherits {
		if err := w.visit(parent); err != nil {
			return err
		}
	}
	w.path = w.path[:len(w.path)-1]
	w.done[name] = true
	return nil
}

// template returns the template with the given name. It returns an error if the previous template on the path is not
// allowed to inherit from it.
func (w *walk) template(name string) (*v1.RoleTemplate, error) {
	template, found := w.templates[name]
	switch {
	case !found && len(w.path) == 0:
		return nil, refuse(v1.ReasonRoleTemplateNotFound, "role template %s does not exist", name)
	case !found:
		return nil,
			refuse(v1.ReasonRoleTemplateNotFound, "role template %s does not exist, and %s inherits it", name, arrows(w.path))
	case template.Spec.External != "" && len(w.path) == 0:
		return nil,
			refuse(v1.ReasonInheritsExternal,
				"role template %s is external: it has the rules of ClusterRole %s in the member", name, template.Spec.External)
	case template.Spec.External != "":
		return nil, refuse(v1.ReasonInheritsExternal,
			"role template %s is external, so its rules are not known here, and it cannot be inherited by %s; bind it as well",
			name, arrows(w.path))
	case len(w.path) > 0 && template.Spec.Context != v1.ContextProject &&
		w.templates[w.path[0]].Spec.Context != v1.ContextCluster:
		return nil, refuse(v1.ReasonContextMismatch,
			"role template %s has context %s and cannot be inherited by %s, which has context %s", name, template.Spec.Context,
			arrows(w.path), v1.ContextProject)
	}
	return template, nil
}

func (w *walk) add(template *v1.RoleTemplate, rule rbacv1.PolicyRule) error {
	if len(rule.NonResourceURLs) > 0 && template.Spec.Context != v1.ContextCluster {
		return refuse(v1.ReasonInvalidRules, "role template %s grants %v, which is possible only with context Cluster",
			template.Name, rule.NonResourceURLs)
	}
	key := ruleKey(rule)
	if w.rules[key] {
		return nil
	}
	w.rules[key] = true
	w.sources = append(w.sources, Source{Path: slices.Clone(w.path), Rule: rule})
	return nil
}

// ruleKey returns a key that is the same for rules whose lists contain the same elements in any order.
func ruleKey(r rbacv1.PolicyRule) string {
	key := make([]byte, 0, 256)
	for _, list := range [][]string{r.APIGroups, r.Resources, r.ResourceNames, r.Verbs, r.NonResourceURLs} {
		for _, word := range slices.Compact(slices.Sorted(slices.Values(list))) {
			key = strconv.AppendQuote(key, word)
		}
		key = append(key, ';')
	}
	return string(key)
}

func arrows(path []string) string { return strings.Join(path, " → ") }
