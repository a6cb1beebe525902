// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/access"
	"github.com/drover-dev/drover/internal/protocol"
)

// groupAuthenticated is the group of all users that the member's API server has authenticated.
const groupAuthenticated = "system:authenticated"

// principal is the user or group whose rights are queried.
type principal struct {
	Kind v1.SubjectKind `json:"kind"`
	Name string         `json:"name"`
	// Groups are the groups of a user. They include the groups given with --group, and the groups that the user's name
	// implies.
	Groups []string `json:"groups,omitempty"`
}

// newPrincipal returns a principal. For a user, it adds the groups that the user's name implies.
func newPrincipal(name string, kind v1.SubjectKind, groups []string) (principal, error) {
	switch {
	case name == "":
		return principal{}, fmt.Errorf("NAME is empty: use the name that the member sees, such as github:alice")
	case kind == v1.SubjectGroup && len(groups) > 0:
		return principal{}, fmt.Errorf("a group cannot be in groups: omit --group or --kind")
	case kind == v1.SubjectGroup:
		return principal{Kind: kind, Name: name}, nil
	case kind != v1.SubjectUser:
		return principal{}, fmt.Errorf("unknown kind %q: use %s or %s", kind, v1.SubjectUser, v1.SubjectGroup)
	}
	groups = slices.Clone(groups)
	if inHub, found := strings.CutPrefix(name, cli.HubPrefix); found {
		if parts := strings.Split(inHub, ":"); len(parts) == 4 && parts[0] == "system" && parts[1] == "serviceaccount" {
			groups = append(groups, cli.HubPrefix+"system:serviceaccounts", cli.HubPrefix+"system:serviceaccounts:"+parts[2])
		}
		groups = append(groups, cli.HubPrefix+groupAuthenticated)
	}
	return principal{Kind: kind, Name: name, Groups: append(groups, groupAuthenticated)}, nil
}

// userAndGroups returns the subject of an access review. For a group, it returns a user who belongs only to that group
// and has no other rights.
func (p principal) userAndGroups() (string, []string) {
	if p.Kind == v1.SubjectGroup {
		return "", []string{p.Name}
	}
	return p.Name, p.Groups
}

func (p principal) String() string { return string(p.Kind) + " " + p.Name }

// action is an access.Action in its JSON form.
type action struct {
	access.Action
	// everywhere is true if the resource is namespaced and no namespace was given.
	everywhere bool
}

// parseAction parses a verb and a resource or URL. It accepts the same arguments as "kubectl auth can-i". Without a
// mapper, it does not resolve short names.
func parseAction(ctx context.Context, verb, what string, o *options, mapper meta.RESTMapperWithContext) (action, []string, error) {
	a := action{Action: access.Action{Verb: strings.ToLower(verb), Namespace: o.namespace}}
	if strings.HasPrefix(what, "/") {
		if o.namespace != "" || o.subresource != "" {
			return action{}, nil, fmt.Errorf("%s is a URL: omit --namespace and --subresource", what)
		}
		a.URL = what
		return a, nil, nil
	}
	resource, name, _ := strings.Cut(what, "/")
	if resource == "" || strings.Contains(name, "/") {
		return action{}, nil, fmt.Errorf("%q is not a resource: use RESOURCE or RESOURCE/OBJECT, and --subresource for a subresource", what)
	}
	a.Name = name
	versioned, parsed := schema.ParseResourceArg(strings.ToLower(resource))
	found, remarks := resolve(ctx, mapper, versioned, parsed)
	a.Group, a.Resource = found.resource.Group, found.resource.Resource
	a.everywhere = a.Namespace == "" && found.namespaced
	if found.known && !found.namespaced && a.Namespace != "" {
		a.Namespace = ""
		remarks = append(remarks, fmt.Sprintf("%s are not namespaced: --namespace is ignored", a.Resource))
	}
	if a.Group == "" && a.Resource == "namespaces" && name != "" {
		// API servers treat a request for a namespace as a request in that namespace, so rights in the namespace apply
		// to it.
		a.Namespace = name
	}
	if o.subresource != "" {
		a.Resource += "/" + o.subresource
	}
	return a, append(remarks, impersonationRemarks(a.Action)...), nil
}

// impersonationRemarks describes the limits on impersonation. The hub enforces them even for callers who have the right
// to impersonate.
func impersonationRemarks(a access.Action) []string {
	switch {
	case a.Verb != "impersonate" || a.Group != "":
	case a.Resource == "serviceaccounts" && protocol.ServiceAccount{Namespace: a.Namespace}.Reserved():
		return []string{"through the hub, no one may act as a ServiceAccount in Drover's own namespaces, " +
			"even if the member allows it"}
	case a.Resource == "users" && strings.HasPrefix(a.Name, "system:"):
		return []string{"through the hub, no one may act as a system: user other than a ServiceAccount; " +
			"for a ServiceAccount, ask about serviceaccounts/NAME with --namespace"}
	}
	return nil
}

// resourceKind is the resource to which the name that the user entered refers.
type resourceKind struct {
	resource   schema.GroupResource
	namespaced bool
	known      bool
}

func resolve(ctx context.Context, mapper meta.RESTMapperWithContext, versioned *schema.GroupVersionResource, typed schema.GroupResource) (resourceKind, []string) {
	asTyped := resourceKind{resource: typed}
	if mapper == nil || typed.Resource == "*" {
		return asTyped, nil
	}
	wanted := typed.WithVersion("")
	resource, err := mapper.ResourceForWithContext(ctx, wanted)
	if err != nil && versioned != nil {
		wanted = *versioned
		resource, err = mapper.ResourceForWithContext(ctx, wanted)
	}
	switch {
	case meta.IsNoMatchError(err):
		return asTyped, []string{fmt.Sprintf("the server does not know the resource type %q; it is used as typed", typed)}
	case err != nil:
		return asTyped, []string{fmt.Sprintf("the name %q is used as typed: %v", typed, err)}
	}
	found := resourceKind{resource: resource.GroupResource(), known: true, namespaced: true}
	kind, err := mapper.KindForWithContext(ctx, resource)
	if err != nil {
		return found, nil
	}
	if mapping, err := mapper.RESTMappingWithContext(ctx, kind.GroupKind(), kind.Version); err == nil {
		found.namespaced = mapping.Scope.Name() == meta.RESTScopeNameNamespace
	}
	return found, nil
}

// String describes the action, for example "get pods/log web-0".
func (a action) String() string {
	if a.URL != "" {
		return a.Verb + " " + a.URL
	}
	said := a.Verb + " " + a.Resource
	if a.Group != "" {
		resource, sub, _ := strings.Cut(a.Resource, "/")
		said = a.Verb + " " + resource + "." + a.Group
		if sub != "" {
			said += "/" + sub
		}
	}
	if a.Name != "" {
		said += " " + a.Name
	}
	return said
}

// in returns a description of where the action takes place, for example "in namespace web of cluster prod".
func (a action) in(cluster string) string {
	switch {
	case a.Namespace != "":
		return fmt.Sprintf("in namespace %s of cluster %s", a.Namespace, cluster)
	case a.everywhere:
		return "in all namespaces of cluster " + cluster
	}
	return "in cluster " + cluster
}
