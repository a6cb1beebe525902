// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// pending is a binding that is exported once the subject's name in Drover has been determined.
type pending struct {
	principal string
	build     func(v1.Subject)
}

// bindings exports the bindings of clusters and projects. It also exports the bindings of global roles that grant
// rights in clusters.
func (c *conversion) bindings() {
	todo := slices.Concat(c.clusterBindings(), c.projectBindings(), c.globalBindings())
	for _, b := range todo {
		c.subjects.count[b.principal]++
	}
	c.nameAll()
	for _, b := range todo {
		p := c.subjects.known[b.principal]
		if name := p.effective(); name != "" && name != NoName {
			b.build(v1.Subject{Kind: p.Kind, Name: name})
		}
	}
}

// granting exports the bindings to roles with the same context.
type granting struct {
	conversion *conversion
	context    v1.RoleContext
	taken      names
	seen       map[string]bool
	todo       []pending
}

func (c *conversion) granting(context v1.RoleContext) *granting {
	return &granting{conversion: c, context: context, taken: names{}, seen: map[string]bool{}}
}

// grant exports a binding that grants a role to a subject in a cluster or project. If where is empty, the binding
// applies to all clusters. The what parameter describes the binding. The build function adds the object once the
// subject's name in Drover is known. If the subject or the role cannot be exported, grant adds the reason to the report
// and returns false.
func (g *granting) grant(
	what, where string, subject Subject, template string, build func(role string, s v1.Subject),
) bool {
	principal := g.conversion.principalOf(subject, what)
	role := g.conversion.role(template, g.context, what)
	if principal == "" || role == "" {
		return false
	}
	g.todo = append(g.todo, pending{principal, func(s v1.Subject) {
		if !g.again(what, where, role, s) {
			build(role, s)
		}
	}})
	return true
}

func (c *conversion) clusterBindings() []pending {
	g := c.granting(v1.ContextCluster)
	for _, b := range oldestFirst(c.in.ClusterBindings, func(b ClusterBinding) metav1.ObjectMeta { return b.ObjectMeta }) {
		what := describe("ClusterRoleTemplateBinding", b.ObjectMeta, "")
		cl, exported := c.chosen[b.Namespace]
		switch {
		case b.ClusterName != b.Namespace: // CVE-2022-31247
			c.report.find(LeftOut, "The binding is in the namespace of another cluster than the one that it names.", what,
				b.ClusterName)
			continue
		case !exported:
			if !c.other[b.Namespace] {
				c.report.find(LeftOut, "The binding's cluster does not exist.", what, b.Namespace)
			}
			continue
		case c.deleted(what, b.ObjectMeta):
			continue
		}
		name := g.taken.take(join(cl.name, b.Name), b.Namespace+b.Name)
		g.grant(what, cl.name, b.Subject, b.RoleTemplateName, func(role string, s v1.Subject) {
			out := &v1.ClusterRoleTemplateBinding{TypeMeta: typeMeta("ClusterRoleTemplateBinding"), ObjectMeta: c.meta(name)}
			out.Spec.ClusterName, out.Spec.RoleTemplateName, out.Spec.Subject = cl.name, role, s
			c.add(path.Join(cl.folder(), "bindings", name+".yaml"), what, out)
		})
	}
	return g.todo
}

func (c *conversion) projectBindings() []pending {
	g := c.granting(v1.ContextProject)
	for _, b := range oldestFirst(c.in.ProjectBindings, func(b ProjectBinding) metav1.ObjectMeta { return b.ObjectMeta }) {
		what := describe("ProjectRoleTemplateBinding", b.ObjectMeta, "")
		p, exported := c.inside[b.ProjectName]
		if !exported {
			if !c.other[b.ProjectName] {
				c.report.find(LeftOut, "The binding's project does not exist.", what, b.ProjectName)
			}
			continue
		}
		// The namespace must be the project's own namespace or its backing namespace, whose name has the form
		// "cluster-project". A user who is allowed to write bindings in the namespace of one project must not be able
		// to add bindings to other projects.
		if !slices.Contains([]string{p.Name, p.cluster.Name + "-" + p.Name, p.Status.BackingNamespace}, b.Namespace) {
			c.report.find(LeftOut, "The binding is in the namespace of another project than the one that it names.", what,
				b.ProjectName)
			continue
		}
		if c.deleted(what, b.ObjectMeta) {
			continue
		}
		name := g.taken.take(join(p.name, b.Name), b.Namespace+b.Name)
		g.grant(what, p.name, b.Subject, b.RoleTemplateName, func(role string, s v1.Subject) {
			out := &v1.ProjectRoleTemplateBinding{TypeMeta: typeMeta("ProjectRoleTemplateBinding"), ObjectMeta: c.meta(name)}
			out.Spec.ProjectName, out.Spec.RoleTemplateName, out.Spec.Subject = p.name, role, s
			c.add(path.Join(p.cluster.folder(), "bindings", name+".yaml"), what, out)
		})
	}
	return g.todo
}

// again reports whether an older binding already grants the same role to the same subject.
func (g *granting) again(what, where, role string, s v1.Subject) bool {
	key := strings.Join([]string{where, role, string(s.Kind), s.Name}, "\x00")
	found := g.seen[key]
	if found {
		g.conversion.report.find(LeftOut, "An older binding grants the same role to the same subject.", what, "")
	}
	g.seen[key] = true
	return found
}

// principalOf returns the principal of a binding. If it cannot determine the principal, it adds the reason to the
// report and returns "".
func (c *conversion) principalOf(s Subject, what string) string {
	switch {
	case s.several():
		c.report.find(LeftOut, "It has several subjects. Rancher does not grant anything for such a binding.", what, "")
		return ""
	case s.ServiceAccount != "":
		c.report.find(NoCounterpart, "It is for a ServiceAccount of the member: create a RoleBinding in the member.", what,
			s.ServiceAccount)
		return ""
	case s.GroupPrincipalName != "":
		return s.GroupPrincipalName
	case s.GroupName != "":
		c.report.find(LeftOut, "It is for a group of Kubernetes itself and not of a provider: create a binding in the "+
			"member if you need it.", what, s.GroupName)
		return ""
	case s.UserName == "" && s.UserPrincipalName == "":
		c.report.find(LeftOut, "It has no user and no group.", what, "")
		return ""
	}
	name := s.UserName
	if from, local := splitPrincipal(s.UserPrincipalName); name == "" && from.provider == localCluster {
		name = local
	}
	if name == "" {
		return c.principalOfUsers(c.people.owners[s.UserPrincipalName], s.UserPrincipalName, what)
	}
	user, found := c.people.users[name]
	if !found {
		c.report.find(LeftOut, "Its user does not exist or could not be read.", what, name)
		return ""
	}
	id := user.principal()
	if s.UserPrincipalName != "" && slices.Contains(user.PrincipalIDs, s.UserPrincipalName) && id == "" {
		id = s.UserPrincipalName
	} else if s.UserPrincipalName != "" && !slices.Contains(user.PrincipalIDs, s.UserPrincipalName) && s.UserPrincipalName != "local://"+name {
		c.report.find(Decide, "It names a user and a principal of another user. It is not exported.", what,
			name+" and "+s.UserPrincipalName)
		return ""
	}
	if id == "" {
		id = "local://" + name
	}
	return c.principalOfUsers([]string{name}, id, what)
}

// several reports whether a binding names more than one subject. A binding may name the same user twice, once as a user
// and once as a principal.
func (s Subject) several() bool {
	n := 0
	for _, name := range []string{s.UserName + s.UserPrincipalName, s.GroupPrincipalName, s.GroupName, s.ServiceAccount} {
		if name != "" {
			n++
		}
	}
	return n > 1
}

// principal returns the user's principal at the provider. If the number of principals is not one, it returns "".
func (u User) principal() string {
	elsewhere := u.elsewhere()
	if len(elsewhere) == 1 {
		return elsewhere[0]
	}
	return ""
}

// elsewhere returns the user's principals at external providers.
func (u User) elsewhere() []string {
	return slices.DeleteFunc(slices.Clone(u.PrincipalIDs), func(id string) bool {
		s, _ := splitPrincipal(id)
		return s.provider == localCluster
	})
}

// principalOfUsers returns the principal of the given users. It rejects disabled users and Rancher's own accounts.
func (c *conversion) principalOfUsers(users []string, id, what string) string {
	for _, name := range users {
		user := c.people.users[name]
		if user.Enabled != nil && !*user.Enabled {
			c.report.find(LeftOut, "Its user is disabled in Rancher.", what, name)
			return ""
		}
		if slices.ContainsFunc(user.PrincipalIDs, func(id string) bool { return strings.HasPrefix(id, "system:") }) {
			c.report.find(NoCounterpart, "It is for an account of Rancher itself.", what, name)
			return ""
		}
	}
	if strings.HasPrefix(id, "system:") {
		c.report.find(NoCounterpart, "It is for an account of Rancher itself.", what, id)
		return ""
	}
	return id
}

// nameAll determines the name of each principal in Drover. If two principals would have the same name, neither gets it,
// because one of them would otherwise receive the rights of the other. This applies even if no binding refers to the
// other principal.
func (c *conversion) nameAll() {
	providers := map[string]Provider{}
	for _, p := range c.Mapping.Providers {
		providers[p.Rancher] = p
	}
	holders := map[string][]string{}
	for _, id := range slices.Sorted(maps.Keys(c.subjects.count)) {
		p, given := c.subjects.given[id]
		if !given {
			p = c.proposal(id, providers)
		}
		c.subjects.known[id] = &p
	}
	for id, p := range c.subjects.given {
		if c.subjects.known[id] == nil {
			c.subjects.known[id] = &p
		}
	}
	hold := func(p Principal) {
		if name := p.effective(); name != "" && name != NoName {
			key := string(p.Kind) + name
			holders[key] = append(holders[key], p.Rancher)
		}
	}
	for _, p := range c.subjects.known {
		hold(*p)
	}
	unnamed := maps.Clone(providers) // the file omits principals without a binding
	for id := range c.people.seen {
		if c.subjects.known[id] == nil {
			hold(c.proposal(id, unnamed))
		}
	}
	for _, ids := range holders {
		slices.Sort(ids)
		for i, id := range ids {
			p := c.subjects.known[id]
			if p != nil && p.Name == "" && len(ids) > 1 {
				other := ids[(i+1)%len(ids)]
				p.Suggested, p.Decided, p.Why = p.Decided, "", "another principal has the same name: "+ascii(other)
			}
		}
	}
	for _, p := range c.subjects.known {
		c.mapping.Principals = append(c.mapping.Principals, *p)
	}
	for _, p := range providers {
		c.mapping.Providers = append(c.mapping.Providers, p)
	}
}

// proposal returns the Mapping's entry for a principal. It fills in the entry as far as possible from Rancher's
// objects.
func (c *conversion) proposal(id string, providers map[string]Provider) Principal {
	s, _ := splitPrincipal(id)
	p := Principal{Rancher: id, Kind: s.subject()}
	i := c.people.identify(id)
	p.Why = i.why
	if s.provider == "" {
		return p
	}
	provider, found := providers[s.provider]
	switch {
	case s.provider == localCluster: // no decision is needed
		provider.Name = localProvider
	case !found:
		provider = Provider{Rancher: s.provider, Name: defaultProvider(s.provider)}
		providers[s.provider] = provider
	}
	if i.decided == "" && provider.AcceptSuggested {
		i.decided, i.suggested = i.suggested, ""
	}
	if i.decided != "" {
		p.Decided = provider.Name + ":" + i.decided
	}
	if i.suggested != "" {
		p.Suggested = provider.Name + ":" + i.suggested
	}
	return p
}

// defaultProvider returns the default name for the AuthProvider that replaces a Rancher provider.
func defaultProvider(name string) string {
	switch {
	case name == "openldap":
		return "ldap"
	case validProvider(name):
		return name
	}
	return join("rancher", name)
}

// reportPrincipals reports the principals that have no name in Drover.
func (c *conversion) reportPrincipals() {
	for id, n := range c.subjects.count {
		p := c.subjects.known[id]
		detail := fmt.Sprintf("bindings: %d; %s", n, p.Why)
		switch {
		case p.Name == NoName:
			c.report.find(LeftOut, "According to principals.yaml, nothing is granted to it.", id, fmt.Sprintf("bindings: %d", n))
		case p.effective() == "" && p.Suggested != "":
			c.report.find(Decide, "Its name in Drover is only suggested. Its bindings are not exported: set the name in "+
				"principals.yaml, or set acceptSuggested for the provider.", id, detail+"; perhaps "+p.Suggested)
		case p.effective() == "":
			c.report.find(Decide, "Its name in Drover is not known. Its bindings are not exported: set the name in "+
				"principals.yaml.", id, detail)
		}
	}
}
