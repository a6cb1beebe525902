// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"maps"
	"path"
	"slices"
	"strings"
	"unicode"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// counterparts maps Rancher's built-in role templates to Drover's built-in role templates. All other role templates are
// converted rule by rule.
func counterparts(context v1.RoleContext) map[string]string {
	if context == v1.ContextCluster {
		return map[string]string{"cluster-owner": "cluster-owner", "cluster-member": "cluster-member"}
	}
	same := map[string]string{
		"project-owner": "project-owner", "project-member": "project-member", "read-only": "project-viewer",
		"persistentvolumeclaims-manage": "volumes-manage", "persistentvolumeclaims-view": "volumes-view", "project-monitoring-readonly": "monitoring-view",
	}
	for _, part := range []string{"workloads", "ingress", "services", "secrets", "configmaps", "serviceaccounts"} {
		same[part+"-view"], same[part+"-manage"] = part+"-view", part+"-manage"
	}
	return same
}

// inPlaceOf maps Kubernetes ClusterRoles to Drover's role templates. It is used for role templates that inherit from a
// ClusterRole, because a role template in Drover can inherit only from other role templates.
func inPlaceOf() map[string]string {
	return map[string]string{"cluster-admin": "cluster-owner", "admin": "project-owner", "edit": "project-member", "view": "project-viewer"}
}

// wider lists the resources to which Drover's counterparts grant more access than Rancher's role templates.
func wider() map[string]string {
	const routes, probes = "grpcroutes, httproutes, tlsroutes", "podmonitors, probes"
	return map[string]string{
		"cluster-member": "csidrivers, csinodes, csistoragecapacities, customresourcedefinitions, gatewayclasses, ingressclasses, namespaces, priorityclasses, runtimeclasses, volumeattachments",
		"project-owner":  routes + ", " + probes, "project-member": routes + ", " + probes, "read-only": routes + ", " + probes,
		"project-monitoring-readonly": "podmonitors, probes, prometheusrules, servicemonitors",
		"workloads-view":              "controllerrevisions, poddisruptionbudgets, statefulsets/scale",
		"workloads-manage":            "controllerrevisions, poddisruptionbudgets, pods/eviction",
		"ingress-view":                routes, "ingress-manage": routes,
		"services-view": "endpointslices", "services-manage": "endpointslices",
	}
}

const (
	onTheHub      = "It grants rights on Rancher's own objects. In Drover, these are rights on the hub: bind a Role, or Kubernetes' admin, edit or view, in the workspace."
	listNamespace = "Rancher lets members of a project create namespaces. In Drover, list them in spec.namespaces of the Project, or let an administrator of the member label them."
)

// hubOnly returns Rancher's own role templates that grant no rights in members.
func hubOnly() map[string]string {
	return map[string]string{
		"create-ns": listNamespace, "projects-create": onTheHub, "clusterroletemplatebindings-manage": onTheHub, "clusterroletemplatebindings-view": onTheHub,
		"projectroletemplatebindings-manage": onTheHub, "projectroletemplatebindings-view": onTheHub, "clustercatalogs-manage": onTheHub, "clustercatalogs-view": onTheHub,
		"backups-manage": onTheHub, "navlinks-manage": onTheHub, "navlinks-view": onTheHub,
	}
}

// rancherGroups returns the API groups that exist only in Rancher's own cluster.
func rancherGroups() []string {
	return []string{
		"management.cattle.io", "provisioning.cattle.io", "rke.cattle.io", "rke-machine.cattle.io", "rke-machine-config.cattle.io", "ext.cattle.io", "ui.cattle.io",
		"project.cattle.io", "cluster.cattle.io", "operation.cattle.io", "auditlog.cattle.io", "catalog.cattle.io", "monitoring.cattle.io", "fleet.cattle.io",
	}
}

func contextOf(rt RoleTemplate) v1.RoleContext {
	switch rt.Context {
	case "cluster":
		return v1.ContextCluster
	case "project":
		return v1.ContextProject
	}
	return ""
}

// role returns the name in Drover of a binding's role template. If there is none, role adds the reason to the report
// and returns "".
func (c *conversion) role(name string, context v1.RoleContext, binding string) string {
	rt, found := c.roles.all[name]
	if !found {
		c.report.find(Decide, "The binding names a role template that does not exist or could not be read. It is not "+
			"exported.", binding, name)
		return ""
	}
	if of := contextOf(rt); of != "" && of != context {
		c.report.find(LeftOut, "The binding names a role template of the other context, which Rancher no longer accepts.",
			binding, name)
		return ""
	}
	if rt.Builtin {
		if same, found := counterparts(context)[name]; found {
			c.instead(name, same)
			return same
		}
		if reason, found := hubOnly()[name]; found {
			c.report.find(NoCounterpart, reason, "RoleTemplate "+name, "")
			return ""
		}
	}
	return c.write(rt, context)
}

// instead reports that a Drover role template replaces a Rancher role template if the replacement grants more.
func (c *conversion) instead(name, same string) {
	if more := wider()[name]; more != "" {
		c.report.find(Different, "Drover's role template for the same purpose replaces one that comes with Rancher. It also grants rights on the listed resources: compare them, or use another role template in the bindings.",
			"RoleTemplate "+name, same+": "+more)
	}
}

// States of a role template during an export.
const (
	roleBegun = iota + 1
	roleWritten
	roleRefused
)

// write writes a role template and the role templates that it inherits, unless they have already been written. It
// returns the name of the role template, or "" if the role template grants no rights in members.
func (c *conversion) write(rt RoleTemplate, context v1.RoleContext) string {
	name := c.roles.names[rt.Name]
	if contextOf(rt) == "" && context == v1.ContextCluster {
		name = c.roles.names[rt.Name+inClusters]
	}
	what := describe("RoleTemplate", rt.ObjectMeta, rt.DisplayName)
	switch c.roles.state[name] {
	case roleWritten:
		return name
	case roleRefused:
		return ""
	case roleBegun:
		c.report.find(Decide, "It inherits itself.", what, "")
		return ""
	}
	c.roles.state[name] = roleBegun
	spec, fits := c.convertRole(rt, context, what)
	if !fits {
		c.roles.state[name] = roleRefused
		return ""
	}
	c.roles.state[name] = roleWritten
	out := &v1.RoleTemplate{TypeMeta: typeMeta("RoleTemplate"), ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	c.add(path.Join("roles", name+".yaml"), what, out)
	c.reportRole(rt, what)
	return name
}

// inClusters is a suffix for map keys. A role template without a context has two names in Drover. The name for cluster
// bindings is stored under the key with the suffix.
const inClusters = "\x00cluster"

func (c *conversion) convertRole(rt RoleTemplate, context v1.RoleContext, what string) (v1.RoleTemplateSpec, bool) {
	spec := v1.RoleTemplateSpec{Context: context, Locked: rt.Locked}
	if rt.External {
		if strings.ContainsAny(rt.Name, "/%") || strings.HasPrefix(rt.Name, "drover:") || unprintable(rt.Name) {
			c.report.find(LeftOut, "Drover does not bind a ClusterRole with that name.", what, rt.Name)
			return spec, false
		}
		spec.External = rt.Name
		return spec, true
	}
	spec.Rules = c.rules(rt, context, what)
	for _, parent := range rt.RoleTemplateNames {
		if name := c.parent(parent, context, what); name != "" && !slices.Contains(spec.Inherits, name) {
			spec.Inherits = append(spec.Inherits, name)
		}
	}
	slices.Sort(spec.Inherits)
	switch {
	case len(spec.Rules) > 256 || len(spec.Inherits) > 32:
		c.report.find(Decide, "It has more than 256 rules, or inherits more than 32: split it.", what, "")
		return spec, false
	case len(spec.Rules)+len(spec.Inherits) == 0:
		c.report.find(NoCounterpart, "It grants nothing in a member, so its bindings are not exported either.", what, "")
		return spec, false
	}
	return spec, true
}

func (c *conversion) reportRole(rt RoleTemplate, what string) {
	if rt.Locked {
		c.report.find(Different, "It is locked: to apply bindings to it, a user needs the verb escalate on roletemplates.",
			what, "")
	}
	if rt.ClusterCreatorDefault || rt.ProjectCreatorDefault {
		c.report.find(NoCounterpart, "In Rancher, the creator of a cluster or project gets this role. In Drover, creating "+
			"an object grants nothing.", what, "")
	}
	if rt.Administrative {
		c.report.find(NoCounterpart, "It is administrative, which only hides it in Rancher's user interface.", what, "")
	}
}

// parent returns the name of an inherited role template in Drover.
func (c *conversion) parent(name string, context v1.RoleContext, what string) string {
	const missing = "An inherited role template does not exist in Drover. It is exported without those rights."
	rt, found := c.roles.all[name]
	if !found {
		c.report.find(Different, missing, what, name+" does not exist in Rancher")
		return ""
	}
	of := contextOf(rt)
	if of == "" {
		of = context
	}
	if of == v1.ContextCluster && context == v1.ContextProject {
		c.report.find(Different, missing, what, name+" is for clusters, and this one for projects")
		return ""
	}
	if rt.External {
		same, found := inPlaceOf()[name]
		if !rt.Builtin || !found {
			c.report.find(Different, missing, what, name+" is external: only the member knows its rules")
			return ""
		}
		c.report.find(Different, "It inherits a ClusterRole of Kubernetes. In Drover, it inherits the role template for the "+
			"same purpose: compare their rights.", what, name+" became "+same)
		return same
	}
	if rt.Builtin {
		if same, found := counterparts(of)[name]; found {
			c.instead(name, same)
			return same
		}
		if _, found := hubOnly()[name]; found {
			c.report.find(Different, missing, what, name+" grants nothing in a member")
			return ""
		}
	}
	written := c.write(rt, of)
	if written == "" {
		c.report.find(Different, missing, what, name+" was not exported")
	}
	return written
}

// rules converts a role template's rules to rules that have the same meaning in a member. It never adds rights.
func (c *conversion) rules(rt RoleTemplate, context v1.RoleContext, what string) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	dropped := map[string]bool{}
	for _, rule := range rt.Rules {
		if slices.ContainsFunc(slices.Concat(rule.Verbs, rule.APIGroups, rule.Resources, rule.ResourceNames, rule.NonResourceURLs), unprintable) {
			c.report.find(LeftOut, "A rule with control characters is not exported.", what, strings.Join(rule.Resources, ","))
			continue
		}
		groups := slices.DeleteFunc(slices.Clone(rule.APIGroups), func(group string) bool {
			own := slices.Contains(rancherGroups(), group)
			if own {
				dropped[strings.Join(rule.Resources, ",")+" of "+group] = true
			}
			return own
		})
		if len(rule.Verbs) == 0 {
			continue
		}
		if len(groups) > 0 && len(rule.Resources) > 0 {
			rules = append(rules, rbacv1.PolicyRule{APIGroups: groups, Resources: rule.Resources, ResourceNames: rule.ResourceNames, Verbs: rule.Verbs})
		}
		if len(rule.NonResourceURLs) == 0 {
			continue
		}
		if context != v1.ContextCluster {
			c.report.find(LeftOut, "A rule on URLs only applies to whole clusters. Drover rejects it in a project.", what,
				strings.Join(rule.NonResourceURLs, ","))
			continue
		}
		rules = append(rules, rbacv1.PolicyRule{NonResourceURLs: rule.NonResourceURLs, Verbs: rule.Verbs})
	}
	for _, one := range slices.Sorted(maps.Keys(dropped)) {
		c.report.find(NoCounterpart, "Rules on Rancher's own objects are not exported: they have no meaning in a member. "+
			"Use RBAC on the hub for rights on Drover's objects.", what, one)
	}
	return rules
}

func unprintable(text string) bool {
	return strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}
