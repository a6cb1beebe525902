// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package access

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// Action is an action in a member. Either Resource or URL is set.
type Action struct {
	// Verb is an RBAC verb, such as get, list or create.
	Verb string `json:"verb"`
	// Group is the API group. It is empty for the core group.
	Group string `json:"group,omitempty"`
	// Resource is the plural name of the resource. A subresource follows after a slash, as in "pods/log".
	Resource string `json:"resource,omitempty"`
	// Name is the name of the object. It is empty for an action on all objects, and for the verb create.
	Name string `json:"name,omitempty"`
	// Namespace is empty for cluster-scoped resources and for actions in all namespaces.
	Namespace string `json:"namespace,omitempty"`
	// URL is the path of a non-resource request, such as "/metrics".
	URL string `json:"url,omitempty"`
}

// Allows reports whether a rule allows an action. It makes the same decision as the member's API server.
func Allows(rule rbacv1.PolicyRule, a Action) bool {
	if !has(rule.Verbs, a.Verb) {
		return false
	}
	if a.URL != "" {
		return slices.ContainsFunc(rule.NonResourceURLs, func(pattern string) bool { return urlMatches(pattern, a.URL) })
	}
	return has(rule.APIGroups, a.Group) && resourceMatches(rule.Resources, a.Resource) &&
		(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, a.Name))
}

// has reports whether a list contains the given word or "*".
func has(list []string, word string) bool {
	return slices.Contains(list, word) || slices.Contains(list, "*")
}

func resourceMatches(list []string, resource string) bool {
	if has(list, resource) {
		return true
	}
	_, sub, found := strings.Cut(resource, "/")
	return found && slices.Contains(list, "*/"+sub)
}

func urlMatches(pattern, url string) bool {
	if prefix, wild := strings.CutSuffix(pattern, "*"); wild {
		return strings.HasPrefix(url, strings.TrimRight(prefix, "*"))
	}
	return pattern == url
}
