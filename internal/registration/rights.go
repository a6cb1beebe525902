// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	rbacv1ac "k8s.io/client-go/applyconfigurations/rbac/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// clusterRights returns the objects that grant an agent its rights outside its own namespace.
func clusterRights(profile v1.AgentProfile) []any {
	rules := append(reporting(), removing()...)
	objects := []any{nil, rbacv1ac.ClusterRoleBinding(protocol.AgentName).WithLabels(protocol.AgentLabels()).WithRoleRef(
		roleRef("ClusterRole")).WithSubjects(subject())}
	if profile == v1.ProfileReadOnly {
		view := rbacv1ac.RoleRef().WithAPIGroup("rbac.authorization.k8s.io").WithKind("ClusterRole").WithName("view")
		viewer := rbacv1ac.Subject().WithKind(rbacv1.UserKind).WithAPIGroup(rbacv1.GroupName).WithName(protocol.Viewer)
		objects = append(objects,
			rbacv1ac.ClusterRoleBinding(protocol.AgentViewBinding).WithLabels(
				protocol.AgentLabels()).WithRoleRef(view).WithSubjects(viewer))
		rules = append(rules, viewing())
	} else {
		rules = slices.Concat(rules, impersonating(), delivering(), planning())
	}
	objects[0] = rbacv1ac.ClusterRole(protocol.AgentName).WithLabels(protocol.AgentLabels()).WithRules(rules...)
	return objects
}

// directRights returns the ServiceAccount of the webhook to which API servers send users' tokens for review. It also
// returns the Role and the RoleBinding that let the account read two Secrets: the hub's data for the webhook, and the
// CA that issues the webhook's certificate.
func directRights(in ManifestInput) []any {
	if !in.direct() {
		return nil
	}
	role := rbacv1ac.Role(protocol.DirectName,
		protocol.AgentNamespace).WithLabels(
		protocol.AgentLabels()).WithRules(rbacv1ac.PolicyRule().WithAPIGroups("").WithResources("secrets").
		WithResourceNames(protocol.DirectSecret, protocol.DirectAuthority).WithVerbs("get", "watch"))
	return []any{
		corev1ac.ServiceAccount(protocol.DirectName, protocol.AgentNamespace).WithLabels(protocol.AgentLabels()), role,
		rbacv1ac.RoleBinding(protocol.DirectName, protocol.AgentNamespace).WithLabels(protocol.AgentLabels()).
			WithRoleRef(rbacv1ac.RoleRef().WithAPIGroup(rbacv1.GroupName).WithKind("Role").WithName(protocol.DirectName)).
			WithSubjects(rbacv1ac.Subject().WithKind(rbacv1.ServiceAccountKind).WithNamespace(
				protocol.AgentNamespace).WithName(protocol.DirectName)),
	}
}

// reporting returns the rules that the agent needs for its reports.
func reporting() []*rbacv1ac.PolicyRuleApplyConfiguration {
	rule := rbacv1ac.PolicyRule
	return []*rbacv1ac.PolicyRuleApplyConfiguration{
		rule().WithAPIGroups("").WithResources("nodes", "pods").WithVerbs("get", "list", "watch"),
		rule().WithAPIGroups("").WithResources("namespaces").WithResourceNames("kube-system").WithVerbs("get"),
		rule().WithNonResourceURLs("/version", "/readyz", "/livez").WithVerbs("get"),
	}
}

// removing returns the rules that the agent needs to remove itself. Without the verb escalate, it cannot add a right to
// its role that it does not already have.
func removing() []*rbacv1ac.PolicyRuleApplyConfiguration {
	rule := rbacv1ac.PolicyRule
	return []*rbacv1ac.PolicyRuleApplyConfiguration{
		rule().WithAPIGroups("").WithResources("namespaces").WithResourceNames(protocol.AgentNamespace).WithVerbs("get",
			"delete"),
		rule().WithAPIGroups("rbac.authorization.k8s.io").WithResources("clusterroles", "clusterrolebindings").
			WithResourceNames(protocol.AgentName, protocol.AgentViewBinding).WithVerbs("get", "update", "patch", "delete"),
	}
}

// viewing returns the rule to impersonate the viewer. A ReadOnly agent sends the requests of all users as this one
// user.
func viewing() *rbacv1ac.PolicyRuleApplyConfiguration {
	return rbacv1ac.PolicyRule().WithAPIGroups("").WithResources("users").
		WithResourceNames(protocol.Viewer).WithVerbs("impersonate")
}

// impersonating returns the rules to impersonate the users whose requests the agent forwards.
func impersonating() []*rbacv1ac.PolicyRuleApplyConfiguration {
	rule := rbacv1ac.PolicyRule
	return []*rbacv1ac.PolicyRuleApplyConfiguration{
		rule().WithAPIGroups("").WithResources("users", "groups", "serviceaccounts").WithVerbs("impersonate"),
		// uids, and userextras with any key, because RBAC has no userextras/*
		rule().WithAPIGroups("authentication.k8s.io").WithResources("*").WithVerbs("impersonate"),
	}
}

// delivering returns the rules for the objects of sets. The guards check the verbs on cluster.drover.dev.
func delivering() []*rbacv1ac.PolicyRuleApplyConfiguration {
	rule := rbacv1ac.PolicyRule
	deliver := []string{"get", "list", "watch", "create", "patch", "delete"}
	return []*rbacv1ac.PolicyRuleApplyConfiguration{
		// the rule never includes delete
		rule().WithAPIGroups("").WithResources("namespaces").WithVerbs("get", "list", "watch", "create", "patch"),
		rule().WithAPIGroups("").WithResources("limitranges", "resourcequotas", "secrets").WithVerbs(deliver...),
		rule().WithAPIGroups("networking.k8s.io").WithResources("networkpolicies").WithVerbs(deliver...),
		rule().WithAPIGroups("rbac.authorization.k8s.io").WithResources("clusterrolebindings",
			"rolebindings").WithVerbs(deliver...),
		rule().WithAPIGroups("rbac.authorization.k8s.io").WithResources("clusterroles").WithVerbs(append(deliver, "bind",
			"escalate")...),
		rule().WithAPIGroups("admissionregistration.k8s.io").
			WithResources("validatingadmissionpolicies", "validatingadmissionpolicybindings").WithVerbs(deliver...),
		rule().WithAPIGroups(v1.Group).WithResources("sets").WithVerbs("manage"),
		rule().WithAPIGroups(v1.Group).WithResources("projects").WithVerbs("manage-namespaces", "updatepsa"),
	}
}

// planning returns the rules to run Plans: to install their schema and the account for their pods, to create Jobs, and
// to cordon, drain and label nodes.
func planning() []*rbacv1ac.PolicyRuleApplyConfiguration {
	rule := rbacv1ac.PolicyRule
	return []*rbacv1ac.PolicyRuleApplyConfiguration{
		rule().WithAPIGroups("apiextensions.k8s.io").WithResources(
			"customresourcedefinitions").WithResourceNames("plans."+v1.Group).
			WithVerbs("get", "create", "patch", "delete"),
		rule().WithAPIGroups("").WithResources("serviceaccounts").WithResourceNames("drover-plan").WithVerbs("get", "create",
			"patch"),
		rule().WithAPIGroups("rbac.authorization.k8s.io").WithResources("roles").WithResourceNames("drover-plan").WithVerbs(
			"get", "create", "patch"),
		rule().WithAPIGroups("").WithResources("namespaces").WithResourceNames(v1.PlansNamespace).WithVerbs("delete"),
		rule().WithAPIGroups(v1.Group).WithResources("plans").WithVerbs("get", "list", "watch", "create", "patch", "delete"),
		rule().WithAPIGroups(v1.Group).WithResources("plans/status").WithVerbs("patch"),
		rule().WithAPIGroups("batch").WithResources("jobs").WithVerbs("get", "list", "watch", "create", "delete"),
		rule().WithAPIGroups("").WithResources("nodes").WithVerbs("patch"),
		rule().WithAPIGroups("").WithResources("pods").WithVerbs("delete"),
		rule().WithAPIGroups("").WithResources("pods/eviction").WithVerbs("create"),
		rule().WithAPIGroups("").WithResources("pods/log").WithVerbs("get"),
		rule().WithAPIGroups("").WithResources("events").WithVerbs("list", "watch"), // shows why a Job's pod is waiting
		rule().WithAPIGroups("apps").WithResources("daemonsets").WithVerbs("get"),
	}
}
