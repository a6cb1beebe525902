// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"fmt"
	"path"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// globalBindings exports the rights in clusters that global roles grant. It only reports their other rights, because
// rights to Rancher itself correspond to RBAC on the hub.
func (c *conversion) globalBindings() []pending {
	roles, counted := map[string]GlobalRole{}, map[string]int{}
	for _, r := range c.in.GlobalRoles {
		roles[r.Name] = r
	}
	g := c.granting(v1.ContextCluster)
	for _, b := range oldestFirst(c.in.GlobalBindings, func(b GlobalBinding) metav1.ObjectMeta { return b.ObjectMeta }) {
		what := describe("GlobalRoleBinding", b.ObjectMeta, "")
		if c.deleted(what, b.ObjectMeta) {
			continue
		}
		switch b.GlobalRoleName {
		case "admin", "restricted-admin":
			if id := c.principalOf(b.Subject, what); id != "" {
				c.report.find(Decide, "It makes its user an administrator of Rancher, who owns all of its clusters. Nothing is exported for it: decide who administers the hub (with a ClusterRoleBinding of cluster-admin there) "+
					"and who owns the members (with a ClusterRoleTemplateBinding of cluster-owner and clusterSelector {}).", what, b.GlobalRoleName+" for "+id)
			}
			continue
		}
		counted[b.GlobalRoleName]++
		for _, inherited := range roles[b.GlobalRoleName].InheritedClusterRoles {
			g.inherit(b, inherited, what)
		}
	}
	for name, n := range counted {
		c.report.find(NoCounterpart, "This global role grants rights on Rancher itself. In Drover, use Kubernetes' RBAC on the hub.", describe("GlobalRole", metav1.ObjectMeta{Name: name}, roles[name].DisplayName), fmt.Sprintf("bindings: %d", n))
	}
	return g.todo
}

// inherit exports a binding for a cluster role that a global role inherits. As in Rancher, the binding applies to all
// members that come from Rancher, except for Rancher's own cluster.
func (g *granting) inherit(b GlobalBinding, inherited, what string) {
	c, name := g.conversion, ""
	pending := g.grant(what, "", b.Subject, inherited, func(role string, s v1.Subject) {
		out := &v1.ClusterRoleTemplateBinding{TypeMeta: typeMeta("ClusterRoleTemplateBinding"), ObjectMeta: c.meta(name)}
		out.Spec.ClusterSelector, out.Spec.RoleTemplateName, out.Spec.Subject = &metav1.LabelSelector{MatchLabels: fromRancher()}, role, s
		c.add(path.Join("global", name+".yaml"), what, out)
		c.report.find(Different, "Its global role grants a role in all clusters, including future ones. The "+
			"ClusterRoleTemplateBinding grants it in the Clusters of this workspace that have the label "+LabelFrom+". "+
			"Exported Clusters have this label: decide whether to add it to other Clusters.", what, name)
	})
	if pending { // otherwise, a binding that is not exported would change the name of another binding
		name = g.taken.take(join("global", b.Name, inherited), b.Name+inherited)
	}
}
