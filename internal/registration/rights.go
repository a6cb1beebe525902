// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	rbacv1ac "k8s.io/client-go/applyconfigurations/rbac/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

type rules = []*rbacv1ac.PolicyRuleApplyConfiguration

// allow returns a rule for resources in an API group. The rule has no verbs yet.
func allow(group string, resources ...string) *rbacv1ac.PolicyRuleApplyConfiguration {
	return rbacv1ac.PolicyRule().WithAPIGroups(group).WithResources(resources...)
}

// clusterRights returns the objects that grant an agent its rights outside its own namespace.
func clusterRights(profile v1.AgentProfile) []any {
	granted := append(reporting(), removing()...)
	binding := rbacv1ac.ClusterRoleBinding(protocol.AgentName).WithLabels(protocol.AgentLabels()).
		WithRoleRef(roleRef("ClusterRole", protocol.AgentName)).WithSubjects(account(protocol.AgentName))
	objects := []any{nil, binding}
	if profile == v1.ProfileReadOnly { // such an agent sends the requests of all users as the viewer
		viewer := rbacv1ac.Subject().WithKind(rbacv1.UserKind).WithAPIGroup(rbacv1.GroupName).WithName(protocol.Viewer)
		objects = append(objects, rbacv1ac.ClusterRoleBinding(protocol.AgentViewBinding).
			WithLabels(protocol.AgentLabels()).WithRoleRef(roleRef("ClusterRole", "view")).WithSubjects(viewer))
		granted = append(granted, allow("", "users").WithResourceNames(protocol.Viewer).WithVerbs("impersonate"))
	} else {
		granted = slices.Concat(granted, impersonating(), delivering(), planning(), checking())
	}
	objects[0] = rbacv1ac.ClusterRole(protocol.AgentName).WithLabels(protocol.AgentLabels()).WithRules(granted...)
	return objects
}

// directRights returns the ServiceAccount of the webhook to which API servers send users' tokens for review. It also
// returns the Role and RoleBinding that let the account read two Secrets: the Secret with the hub's data for the
// webhook, and the Secret with the CA that issues the webhook's certificate.
func directRights(in ManifestInput) []any {
	if !in.direct() {
		return nil
	}
	return []any{
		serviceAccount(protocol.DirectName),
		rbacv1ac.Role(protocol.DirectName, protocol.AgentNamespace).WithLabels(protocol.AgentLabels()).WithRules(
			allow("", "secrets").WithResourceNames(protocol.DirectSecret, protocol.DirectAuthority).
				WithVerbs("get", "watch")),
		roleBinding(protocol.DirectName),
	}
}

// reporting returns the rules that the agent needs for its reports.
func reporting() rules {
	return rules{
		allow("", "nodes", "pods").WithVerbs("get", "list", "watch"),
		allow("", "namespaces").WithResourceNames("kube-system").WithVerbs("get"),
		rbacv1ac.PolicyRule().WithNonResourceURLs("/version", "/readyz", "/livez").WithVerbs("get"),
	}
}

// removing returns the rules that the agent needs to remove itself. Because the agent lacks the "escalate" verb, it
// cannot grant itself rights that it does not already have.
func removing() rules {
	return rules{
		allow("", "namespaces").WithResourceNames(protocol.AgentNamespace).WithVerbs("get", "delete"),
		allow("rbac.authorization.k8s.io", "clusterroles", "clusterrolebindings").
			WithResourceNames(protocol.AgentName, protocol.AgentViewBinding).WithVerbs("get", "update", "patch", "delete"),
	}
}

// impersonating returns the rules that allow the agent to impersonate the users whose requests it forwards.
func impersonating() rules {
	return rules{
		allow("", "users", "groups", "serviceaccounts").WithVerbs("impersonate"),
		// RBAC does not support userextras/*, so this rule allows uids and userextras with any key
		allow("authentication.k8s.io", "*").WithVerbs("impersonate"),
	}
}

// delivering returns the rules for the objects in sets. The guards check the verbs on cluster.drover.dev.
func delivering() rules {
	deliver := []string{"get", "list", "watch", "create", "patch", "delete"}
	return rules{
		// these verbs must never include delete
		allow("", "namespaces").WithVerbs("get", "list", "watch", "create", "patch"),
		allow("", "limitranges", "resourcequotas", "secrets").WithVerbs(deliver...),
		allow("networking.k8s.io", "networkpolicies").WithVerbs(deliver...),
		allow("rbac.authorization.k8s.io", "clusterrolebindings", "rolebindings").WithVerbs(deliver...),
		allow("rbac.authorization.k8s.io", "clusterroles").WithVerbs(append(deliver, "bind", "escalate")...),
		allow("admissionregistration.k8s.io", "validatingadmissionpolicies", "validatingadmissionpolicybindings").
			WithVerbs(deliver...),
		allow(v1.Group, "sets").WithVerbs("manage"),
		allow(v1.Group, "projects").WithVerbs("manage-namespaces", "updatepsa"),
	}
}

// planning returns the rules for running Plans. They allow the agent to install the schema of Plans and the
// ServiceAccount of their pods, to create Jobs, and to cordon, drain and label nodes.
func planning() rules {
	return rules{
		allow("apiextensions.k8s.io", "customresourcedefinitions").WithResourceNames("plans."+v1.Group).
			WithVerbs("get", "create", "patch", "delete"),
		allow("", "serviceaccounts").WithResourceNames("drover-plan").WithVerbs("get", "create", "patch"),
		allow("rbac.authorization.k8s.io", "roles").WithResourceNames("drover-plan").WithVerbs("get", "create", "patch"),
		allow("", "namespaces").WithResourceNames(v1.PlansNamespace).WithVerbs("delete"),
		allow(v1.Group, "plans").WithVerbs("get", "list", "watch", "create", "patch", "delete"),
		allow(v1.Group, "plans/status").WithVerbs("patch"),
		allow("batch", "jobs").WithVerbs("get", "list", "watch", "create", "delete"),
		allow("", "nodes").WithVerbs("patch"),
		allow("", "pods").WithVerbs("delete"),
		allow("", "pods/eviction").WithVerbs("create"),
		allow("", "pods/log").WithVerbs("get"),
		allow("", "events").WithVerbs("list", "watch"), // events show why a Job's pod is waiting
		allow("apps", "daemonsets").WithVerbs("get"),
	}
}

// checking returns the rules for checking a member before an upgrade. See package upgradecheck.
func checking() rules {
	return rules{
		allow("", "services").WithVerbs("get"),
		allow("policy", "poddisruptionbudgets").WithVerbs("list"),
		allow("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "validatingwebhookconfigurations").
			WithVerbs("list"),
		allow("discovery.k8s.io", "endpointslices").WithVerbs("list"),
		allow("flowcontrol.apiserver.k8s.io", "flowschemas", "prioritylevelconfigurations").WithVerbs("list"),
		allow("networking.k8s.io", "ipaddresses", "servicecidrs").WithVerbs("list"),
		allow("storage.k8s.io", "volumeattributesclasses").WithVerbs("list"),
		allow("resource.k8s.io", "deviceclasses", "resourceclaims", "resourceclaimtemplates").WithVerbs("list"),
		rbacv1ac.PolicyRule().WithNonResourceURLs("/metrics").WithVerbs("get"),
	}
}
