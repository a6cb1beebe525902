// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// object returns an object of the given kind with the spec, as a user would write it.
func object(t *testing.T, namespace, kind, spec string) *unstructured.Unstructured {
	t.Helper()
	var content map[string]any
	if err := yaml.Unmarshal([]byte(spec), &content); err != nil {
		t.Fatalf("%s: %v", spec, err)
	}
	o := &unstructured.Unstructured{
		Object: map[string]any{"apiVersion": "cluster.drover.dev/v1", "kind": kind, "spec": content},
	}
	o.SetName("sample")
	if kind != roleTemplate && kind != "User" {
		o.SetNamespace(namespace)
	}
	return o
}

const (
	roleTemplate   = "RoleTemplate"
	clusterBinding = "ClusterRoleTemplateBinding"
	projectBinding = "ProjectRoleTemplateBinding"
	project        = "Project"
	host           = "Host"
)

func TestTheAPIServerTakesGoodObjectsAndRefusesBadOnes(t *testing.T) {
	env := testkit.Shared(t)
	namespace := env.Workspace(t)
	dryRun := func(o client.Object) error { return env.Client.Create(t.Context(), o, client.DryRunAll) }

	for name, tt := range goodObjects() {
		t.Run(name, func(t *testing.T) {
			if err := dryRun(object(t, namespace, tt.kind, tt.spec)); err != nil {
				t.Error(err)
			}
		})
	}
	for name, tt := range badObjects() {
		t.Run(name, func(t *testing.T) {
			err := dryRun(object(t, namespace, tt.kind, tt.spec))
			if err == nil {
				t.Fatal("taken")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("refused with %q, want %q", err, tt.want)
			}
		})
	}
	t.Run("each wrong key of a quota is named, in any order", func(t *testing.T) { // in CEL, a map has no such field
		for spec, want := range map[string]struct{ text, one, other string }{
			"{resourceQuota: {cpus: 1, pods: 1, gpus: 1}, namespaceDefaultResourceQuota: {cpus: 1, pods: 1, gpus: 1}}": {
				"a ResourceQuota does not support", "cpus", "gpus",
			},
			"{resourceQuota: {gpus: 1, cpu: 1, cpus: 1}, namespaceDefaultResourceQuota: {cpu: 1}}": {
				"missing:", "cpus", "gpus",
			},
			"{resourceQuota: {limits.cpu: 1, limits.memory: 1Gi}, namespaceDefaultResourceQuota: {limits.cpu: 2, limits.memory: 2Gi}}": {
				"must not exceed resourceQuota:", "limits.cpu", "limits.memory",
			},
			"{resourceQuota: {pods: 1, secrets: 1}, namespaceDefaultResourceQuota: {pods: 2, secrets: 2}}": {
				"must not exceed resourceQuota:", "pods", "secrets",
			},
			"{namespaceDefaultResourceQuota: {cpu: -1, pods: -1}}": {
				"a quota must not be negative:", "cpu", "pods",
			},
			"{containerDefaults: {limits: {cpu: -1, memory: -1}}}": {
				"a default must not be negative:", "cpu", "memory",
			},
		} {
			err := dryRun(object(t, namespace, project, "{clusterName: a, "+spec[1:]))
			if err == nil {
				t.Fatalf("%s is taken", spec)
			}
			a := fmt.Sprintf("%s [%q, %q]", want.text, want.one, want.other)
			b := fmt.Sprintf("%s [%q, %q]", want.text, want.other, want.one)
			if !strings.Contains(err.Error(), a) && !strings.Contains(err.Error(), b) {
				t.Errorf("refused with %q, want %q or %q", err, a, b)
			}
		}
	})
	t.Run("a name of 64 characters is refused for each kind", func(t *testing.T) {
		for _, tt := range goodObjects() {
			o := object(t, namespace, tt.kind, tt.spec)
			o.SetName(strings.Repeat("a", 64))
			if err := dryRun(o); err == nil || !strings.Contains(err.Error(), "at most 63 characters") {
				t.Errorf("%s: %v, want an error about 63 characters", tt.kind, err)
			}
		}
	})
	t.Run("every quota key that is taken is one that a ResourceQuota takes", func(t *testing.T) {
		for _, key := range strings.Fields(quotaKeys) {
			quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "q"}}
			quota.Spec.Hard = corev1.ResourceList{corev1.ResourceName(key): resource.MustParse("1")}
			if err := dryRun(quota); err != nil {
				t.Error(err)
			}
			spec := fmt.Sprintf("{clusterName: a, resourceQuota: {%[1]s: 1}, namespaceDefaultResourceQuota: {%[1]s: 1}}", key)
			if err := dryRun(object(t, namespace, project, spec)); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run(
		"no line breaks, control characters and the like in names",
		func(t *testing.T) { testControlCharacters(t, env, namespace) },
	)
	t.Run("a role template that inherits itself", func(t *testing.T) {
		// sample is the name of the sample
		err := dryRun(object(t, namespace, roleTemplate, "{context: Cluster, inherits: [a, sample]}"))
		if err == nil || !strings.Contains(err.Error(), "a role template cannot inherit from itself") {
			t.Error(err)
		}
	})
	t.Run("every field of a spec can be changed", func(t *testing.T) { testChanges(t, env, namespace) })
	t.Run("a new object says that the manager has not looked at it", func(t *testing.T) {
		o := object(t, namespace, project, "{clusterName: a}")
		if err := dryRun(o); err != nil {
			t.Fatal(err)
		}
		conditions, _, err := unstructured.NestedSlice(o.Object, "status", "conditions")
		if err != nil || len(conditions) != 1 || conditions[0].(map[string]any)["reason"] != "Pending" {
			t.Errorf("the new object has conditions %v %v, want one with reason Pending", conditions, err)
		}
		if isolation, _, _ := unstructured.NestedString(o.Object, "spec", "networkIsolation"); isolation != "None" {
			t.Errorf("networkIsolation %q", isolation)
		}
	})
}

// testChanges updates an object from one spec to another one in which every field differs.
func testChanges(t *testing.T, env *testkit.Env, namespace string) {
	changes := []struct{ kind, from, to string }{
		{
			roleTemplate, "{context: Cluster, inherits: [a], rules: [{apiGroups: [''], resources: [pods], verbs: [get]}]}",
			"{context: Project, external: edit, locked: true}",
		},
		{clusterBinding, "{clusterName: a, roleTemplateName: a, subject: {kind: User, name: a}}",
			"{clusterSelector: {}, roleTemplateName: b, subject: {kind: Group, name: b}, expiresAt: '2030-01-01T00:00:00Z'}"},
		{projectBinding, "{projectName: a, roleTemplateName: a, subject: {kind: User, name: a}, expiresAt: '2030-01-01T00:00:00Z'}",
			"{projectName: b, roleTemplateName: b, subject: {kind: Group, name: b}}"},
		{project, "{clusterName: a, namespaces: [a], podSecurity: baseline, networkIsolation: None}",
			"{clusterSelector: {}, namespaces: [b], podSecurity: restricted, networkIsolation: Project, containerDefaults: {limits: {cpu: 1}}, resourceQuota: {pods: 3}, namespaceDefaultResourceQuota: {pods: 1}}"},
	}
	for _, tt := range changes {
		o := object(t, namespace, tt.kind, tt.from)
		o.SetName("changing")
		env.Apply(t, o)
		o.Object["spec"] = object(t, namespace, tt.kind, tt.to).Object["spec"]
		if err := env.Client.Update(t.Context(), o); err != nil {
			t.Errorf("update %s: %v, want no error", tt.kind, err)
		}
	}
}

const quotaKeys = `cpu memory ephemeral-storage requests.cpu requests.memory requests.storage requests.ephemeral-storage
	limits.cpu limits.memory limits.ephemeral-storage pods services services.nodeports services.loadbalancers replicationcontrollers
	resourcequotas secrets configmaps persistentvolumeclaims hugepages-2Mi requests.hugepages-2Mi requests.nvidia.com/gpu
	count/deployments.apps gold.storageclass.storage.k8s.io/requests.storage`

func goodObjects() map[string]struct{ kind, spec string } {
	return map[string]struct{ kind, spec string }{
		"the role template of the design": {roleTemplate,
			`{context: Project, inherits: [project-viewer], rules: [{apiGroups: [apps], resources: [deployments], verbs: ["*"]}]}`},
		"an external role template":   {roleTemplate, "{context: Cluster, external: 'system:node-reader'}"},
		"a template that only joins":  {roleTemplate, "{context: Project, inherits: [a, b]}"},
		"a host behind NAT":           {host, "{internalAddress: 10.0.0.5}"},
		"a host with an IPv6 address": {host, "{internalAddress: 'fd00:1::5'}"},
		"and with a whole one":        {host, "{internalAddress: '2001:db8:0:0:0:0:0:1'}"},
		"non-resource URLs": {
			roleTemplate, `{context: Cluster, rules: [{nonResourceURLs: [/metrics], verbs: [get]}]}`,
		},
		"the core group and names": {
			roleTemplate,
			`{context: Project, rules: [{apiGroups: [""], resources: [secrets], resourceNames: [a], verbs: [get]}]}`,
		},
		"the cluster binding of the design": {clusterBinding,
			`{clusterSelector: {matchLabels: {env: prod}}, roleTemplateName: cluster-owner, subject: {kind: User, name: "github:alice"}, expiresAt: "2027-01-01T00:00:00Z"}`},
		"a binding for a user of the hub": {
			clusterBinding,
			`{clusterName: a.b, roleTemplateName: x, subject: {kind: User, name: "hub:system:serviceaccount:ci:deployer"}}`,
		},
		"a binding for a directory group": {
			clusterBinding,
			`{clusterName: a, roleTemplateName: x, subject: {kind: Group, name: "ldap:cn=ops people,ou=eu,dc=acme"}}`,
		},
		"a selector with expressions": {clusterBinding,
			`{clusterSelector: {matchExpressions: [{key: env, operator: In, values: [a]}, {key: b, operator: Exists}]}, roleTemplateName: x, subject: {kind: User, name: a}}`},
		"the project binding of the design": {
			projectBinding, `{projectName: web, roleTemplateName: deployer, subject: {kind: Group, name: "github:acme/web"}}`,
		},
		"the project of the design": {project, `{clusterName: prod-eu, namespaces: [web, web-staging], resourceQuota: {limits.cpu: "40", requests.memory: 64Gi},
			namespaceDefaultResourceQuota: {limits.cpu: "10", requests.memory: 16Gi}, containerDefaults: {requests: {cpu: 50m}, limits: {memory: 256Mi}},
			networkIsolation: Project, podSecurity: baseline}`},
		"a project in all members": {project, "{clusterSelector: {}}"},
		"a share for each namespace without a total": {
			project, "{clusterName: a, namespaceDefaultResourceQuota: {pods: 10}}",
		},
		"a quota of nothing": {
			project,
			"{clusterName: a, resourceQuota: {services.nodeports: 0}, namespaceDefaultResourceQuota: {services.nodeports: 0}}",
		},
		"a share as large as the total, in another unit": {
			project, "{clusterName: a, resourceQuota: {limits.cpu: 2}, namespaceDefaultResourceQuota: {limits.cpu: 2000m}}",
		},
	}
}

func badObjects() map[string]struct{ kind, spec, want string } {
	rules := func(context, rule string) string { return fmt.Sprintf("{context: %s, rules: [%s]}", context, rule) }
	binding := func(rest string) string { return "{clusterName: a, roleTemplateName: x, " + rest + "}" }
	in := func(rest string) string { return "{clusterName: a, " + rest + "}" }
	const subject = "subject: {kind: User, name: a}"
	return map[string]struct{ kind, spec, want string }{
		"a user's name without a provider": {"User", "{principal: alice}", "must be <provider>:<name>, such as github:alice"},
		"a namespace with capitals": {
			project, "{clusterName: a, namespaces: [Web]}", "must be the name of a namespace",
		},
		"a host's address that is a name":  {host, "{internalAddress: m1.example.com}", "must be an IP address"},
		"a host's address with a port":     {host, "{internalAddress: '10.0.0.5:22'}", "must be an IP address"},
		"a host's address of three parts":  {host, "{internalAddress: 10.0.0}", "must be an IP address"},
		"a host's address that is no byte": {host, "{internalAddress: 10.0.0.256}", "must be an IP address"},
		"a host's address with two gaps":   {host, "{internalAddress: 'fd00::1::2'}", "must be an IP address"},
		"a host's loopback":                {host, "{internalAddress: 127.0.0.1}", "reachable from other machines"},
		"a host's loopback in IPv6":        {host, "{internalAddress: '::1'}", "reachable from other machines"},
		"a host's address of its link":     {host, "{internalAddress: 'fe80::1'}", "link-local"},
		"a host's address of a group":      {host, "{internalAddress: 239.0.0.1}", "multicast"},
		"no context":                       {roleTemplate, "{inherits: [a]}", "spec.context: Required value"},
		"another context": {
			roleTemplate, "{context: Global, inherits: [a]}", `supported values: "Cluster", "Project"`,
		},
		"a template that grants nothing": {roleTemplate, "{context: Cluster}", "a template must grant rights"},
		"an external template with rules": {
			roleTemplate, "{context: Cluster, external: edit, inherits: [a]}", "remove rules and inherits",
		},
		"an external one of our own": {
			roleTemplate, "{context: Cluster, external: 'drover:x'}", "refer to the RoleTemplate instead",
		},
		"an external one that is a path": {
			roleTemplate, "{context: Cluster, external: a/b}", "must be the name of a ClusterRole",
		},
		"the same parent twice": {roleTemplate, "{context: Cluster, inherits: [a, a]}", "Duplicate value"},
		"a rule without verbs": {
			roleTemplate, rules("Cluster", "{apiGroups: [''], resources: [pods], verbs: []}"), "each rule needs verbs",
		},
		"a rule about nothing": {
			roleTemplate, rules("Cluster", "{verbs: [get]}"), "either resources or nonResourceURLs",
		},
		"resources without a group": {
			roleTemplate, rules("Cluster", "{resources: [pods], verbs: [get]}"), "resources need apiGroups",
		},
		"resources and URLs in one rule": {
			roleTemplate, rules("Cluster", "{apiGroups: [''], resources: [pods], nonResourceURLs: [/x], verbs: [get]}"),
			"either resources or nonResourceURLs",
		},
		"URLs in a project": {
			roleTemplate, rules("Project", "{nonResourceURLs: [/metrics], verbs: [get]}"), "only with context Cluster",
		},
		"neither name nor selector": {
			clusterBinding, "{roleTemplateName: x, " + subject + "}", "exactly one of clusterName and clusterSelector",
		},
		"both name and selector": {
			clusterBinding, binding("clusterSelector: {}, " + subject), "exactly one of clusterName and clusterSelector",
		},
		"a Cluster of another namespace": {
			clusterBinding, "{clusterName: other/a, roleTemplateName: x, " + subject + "}", "spec.clusterName",
		},
		"an unknown operator": {
			clusterBinding,
			"{clusterSelector: {matchExpressions: [{key: a, operator: Like}]}, roleTemplateName: x, " + subject + "}",
			"operator must be In, NotIn",
		},
		"In without values": {
			clusterBinding,
			"{clusterSelector: {matchExpressions: [{key: a, operator: In}]}, roleTemplateName: x, " + subject + "}",
			"In and NotIn require values",
		},
		"Exists with values": {
			clusterBinding,
			"{clusterSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}, roleTemplateName: x, " + subject + "}",
			"Exists and DoesNotExist must not have values",
		},
		"no role": {
			clusterBinding, "{clusterName: a, " + subject + "}", "spec.roleTemplateName: Required value",
		},
		"an empty role": {
			clusterBinding, "{clusterName: a, roleTemplateName: '', " + subject + "}", "spec.roleTemplateName",
		},
		"no subject": {
			clusterBinding, "{clusterName: a, roleTemplateName: x}", "spec.subject: Required value",
		},
		"a ServiceAccount as subject": {
			clusterBinding, binding("subject: {kind: ServiceAccount, name: a}"), `supported values: "User", "Group"`,
		},
		"a subject without a name": {clusterBinding, binding("subject: {kind: User, name: ''}"), "spec.subject.name"},
		"a user of Drover's own": {
			clusterBinding, binding("subject: {kind: User, name: 'drover:viewer'}"), "are reserved for Drover",
		},
		"a user of the member's own": {
			clusterBinding, binding("subject: {kind: Group, name: 'system:masters'}"), "reserved for the member",
		},
		"white space around a name": {clusterBinding, binding("subject: {kind: User, name: 'alice '}"), "white space"},
		"a date that is none":       {clusterBinding, binding(subject + ", expiresAt: tomorrow"), "spec.expiresAt"},
		"a binding to no project": {
			projectBinding, "{roleTemplateName: x, " + subject + "}", "spec.projectName: Required value",
		},
		"a project of another namespace": {
			projectBinding, "{projectName: 'b:web', roleTemplateName: x, " + subject + "}", "spec.projectName",
		},
		"a project nowhere":           {project, "{namespaces: [a]}", "exactly one of clusterName and clusterSelector"},
		"a namespace twice":           {project, in("namespaces: [a, a]"), "Duplicate value"},
		"a namespace that is no name": {project, in("namespaces: [Web]"), "spec.namespaces[0]"},
		"namespace default":           {project, in("namespaces: [default]"), "belong to the cluster"},
		"namespace kube-system":       {project, in("namespaces: [kube-system]"), "belong to the cluster"},
		"namespace drover-agent":      {project, in("namespaces: [drover-agent]"), "belong to the cluster"},
		"a quota that Kubernetes lacks": {
			project, in("resourceQuota: {cpus: 1}, namespaceDefaultResourceQuota: {cpus: 1}"),
			`a ResourceQuota does not support ["cpus"]`,
		},
		"a default that Kubernetes lacks": {
			project, in("namespaceDefaultResourceQuota: {limits.gpu: 1}"), `a ResourceQuota does not support ["limits.gpu"]`,
		},
		"a negative quota": {
			project, in("resourceQuota: {pods: -1}, namespaceDefaultResourceQuota: {pods: 0}"),
			`a quota must not be negative: ["pods"]`,
		},
		"a negative default": {
			project, in("namespaceDefaultResourceQuota: {limits.cpu: -100m}"), `a quota must not be negative: ["limits.cpu"]`,
		},
		"a quota that is no quantity": {
			project, in("resourceQuota: {pods: many}, namespaceDefaultResourceQuota: {pods: 1}"), "spec.resourceQuota.pods",
		},
		"a total without a share": {
			project, in("resourceQuota: {pods: 1}"), `namespaceDefaultResourceQuota; missing: ["pods"]`,
		},
		"a share above the total": {
			project, in("resourceQuota: {limits.memory: 1Gi}, namespaceDefaultResourceQuota: {limits.memory: 2Gi}"),
			`namespaceDefaultResourceQuota must not exceed resourceQuota: ["limits.memory"]`,
		},
		"a request above the limit": {
			project, in("containerDefaults: {requests: {cpu: 2}, limits: {cpu: 1500m}}"), "must not exceed the default limit",
		},
		"a default that no container has": {
			project, in("containerDefaults: {requests: {pods: 2}}"), "keys must be cpu, memory",
		},
		"a negative container default": {project, in("containerDefaults: {limits: {cpu: -1}}"), "must not be negative"},
		// A value that can never be a valid name is rejected immediately. Drover must not wait for it.
		"a provider without a name": {
			clusterBinding, binding("subject: {kind: User, name: 'hub:'}"), "missing after the colon",
		},
		"a role that is no name": {
			clusterBinding, "{clusterName: a, roleTemplateName: Cluster Viewer, " + subject + "}", "spec.roleTemplateName",
		},
		"a role that is no name, in a project": {
			projectBinding, "{projectName: a, roleTemplateName: a/b, " + subject + "}", "spec.roleTemplateName",
		},
		"a parent that is no name": {roleTemplate, "{context: Cluster, inherits: [Viewer]}", "spec.inherits[0]"},
		// Parsing such an amount takes hours: in the API server's rules, in the manager, and in agents.
		"a quota of too many digits": {
			project, in("namespaceDefaultResourceQuota: {count/a.b: '1e-100000000'}"),
			"spec.namespaceDefaultResourceQuota.count/a.b",
		},
		"a quota compared of too many digits": {
			project,
			in("resourceQuota: {limits.cpu: '1e-100000000'}, namespaceDefaultResourceQuota: {limits.cpu: '1e100000000'}"),
			"spec.resourceQuota.limits.cpu",
		},
		"a default compared of too many digits": {
			project, in("containerDefaults: {requests: {cpu: '1e100000000'}, limits: {cpu: '1e-100000000'}}"),
			"spec.containerDefaults.limits.cpu",
		},
		"another isolation": {
			project, in("networkIsolation: Full"), `supported values: "None", "Project"`,
		},
		"another pod security": {
			project, in("podSecurity: strict"), `"privileged", "baseline", "restricted"`,
		},
	}
}
