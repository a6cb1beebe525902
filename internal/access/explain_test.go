// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"reflect"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/access"
)

// workspace returns a workspace with two members, a project in each environment, and bindings of every kind.
func workspace() access.Workspace {
	now := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	past, future := metav1.NewTime(now), metav1.NewTime(now.Add(time.Second))
	prod := v1.ClusterTarget{ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}}
	project := func(name string, target v1.ClusterTarget, namespaces ...string) *v1.Project {
		return &v1.Project{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name},
			Spec: v1.ProjectSpec{ClusterTarget: target, Namespaces: namespaces}}
	}
	w := access.Workspace{
		Now:      now,
		Clusters: map[string]labels.Set{"prod": {"env": "prod"}, "test": {"env": "test"}},
		Projects: map[string]*v1.Project{"web": project("web", prod, "web"), "db": project("db", prod, "db")},
		Templates: index(template(v1.ContextCluster, "reader", []string{"viewer"}, rule("", "nodes", "get")),
			external(v1.ContextCluster, "admin", "cluster-admin"),
			template(v1.ContextProject, "deployer", []string{"viewer"}, rule("apps", "deployments", "*")),
			template(v1.ContextProject, "viewer", nil, rule("", "pods", "get"))),
		ClusterBindings: []v1.ClusterRoleTemplateBinding{
			clusterBinding("ops", "reader", group("ops"), prod), clusterBinding("ended", "reader", user("old"), prod),
			clusterBinding("lasting", "reader", user("new"), prod),
			clusterBinding("root", "admin", user("root"), prod), clusterBinding("lost", "gone", user("lost"), prod),
		},
		ProjectBindings: []v1.ProjectRoleTemplateBinding{
			projectBinding("devs", "deployer", "web", group("devs")),
			projectBinding("nowhere", "deployer", "gone", user("ghost")),
		},
	}
	w.ClusterBindings[1].Spec.ExpiresAt, w.ClusterBindings[2].Spec.ExpiresAt = &past, &future
	return w
}

func TestExplain(t *testing.T) {
	getPod := access.Action{Verb: "get", Resource: "pods", Namespace: "web"}
	tests := map[string]struct {
		user     string
		groups   []string
		where    access.Place
		what     access.Action
		decision access.Decision
		lack     access.Lack
	}{
		"a group has it in the cluster": {"x", []string{"ops"}, access.Place{Cluster: "prod"}, getPod, access.Granted, ""},
		"a group has it for cluster-scoped resources": {"x", []string{"ops"}, access.Place{Cluster: "prod"},
			access.Action{Verb: "get", Resource: "nodes"}, access.Granted, ""},
		"a user's name is not a group's": {"ops", nil, access.Place{Cluster: "prod"}, getPod, access.NotGranted,
			access.LackBinding},
		"no user has it in another member": {"x", []string{"ops"}, access.Place{Cluster: "test"}, getPod,
			access.NotGranted, access.LackCluster},
		"no user has it in a member that does not exist": {"x", []string{"ops"}, access.Place{Cluster: "none"}, getPod,
			access.NotGranted,
			access.LackCluster},
		"no rule has the verb": {"x", []string{"ops"}, access.Place{Cluster: "prod"},
			access.Action{Verb: "delete", Resource: "pods", Namespace: "web"}, access.NotGranted, access.LackRule},
		"a binding that expires at this moment": {"old", nil, access.Place{Cluster: "prod"}, getPod, access.NotGranted,
			access.LackExpired},
		"a binding that has not expired": {"new", nil, access.Place{Cluster: "prod"}, getPod, access.Granted, ""},
		"a deleted role template": {"lost", nil, access.Place{Cluster: "prod"}, getPod, access.NotGranted,
			access.LackRole},
		"only the member knows the rules of an external role": {
			"root", nil, access.Place{Cluster: "prod"}, getPod, access.Unknown, "",
		},
		"a project's group in its namespace": {"x", []string{"devs"}, access.Place{Cluster: "prod"}, getPod, access.Granted,
			""},
		"a project's group in a namespace labelled in the member": {
			"x", []string{"devs"}, access.Place{Cluster: "prod", Project: "web"},
			access.Action{Verb: "get", Resource: "pods", Namespace: "made-there"}, access.Granted, ""},
		"a project's group in a namespace of another project": {"x", []string{"devs"}, access.Place{Cluster: "prod"},
			access.Action{Verb: "get", Resource: "pods", Namespace: "db"}, access.NotGranted, access.LackNamespace},
		"a project's group in a namespace that moved to another project": {"x", []string{"devs"},
			access.Place{Cluster: "prod", Project: "db"}, getPod,
			access.NotGranted, access.LackNamespace},
		"a project's group in a namespace without a project": {"x", []string{"devs"}, access.Place{Cluster: "prod"},
			access.Action{Verb: "get", Resource: "pods", Namespace: "kube-system"}, access.NotGranted, access.LackNamespace},
		"a project's group in a reserved namespace with the project's label": {"x", []string{"devs"},
			access.Place{Cluster: "prod", Project: "web"},
			access.Action{Verb: "get", Resource: "pods", Namespace: "kube-system"}, access.NotGranted, access.LackNamespace},
		"a project's group in all namespaces": {"x", []string{"devs"}, access.Place{Cluster: "prod"},
			access.Action{Verb: "get", Resource: "pods"}, access.NotGranted, access.LackScope},
		"a deleted project": {"ghost", nil, access.Place{Cluster: "prod"}, getPod, access.NotGranted,
			access.LackProject},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := access.Explain(workspace(), tt.user, tt.groups, tt.where, tt.what)
			if got.Decision != tt.decision || (tt.lack != "") != (len(got.Missing) > 0) ||
				tt.lack != "" && got.Missing[0].Lack != tt.lack {
				t.Errorf("got %+v, want %s %s", got, tt.decision, tt.lack)
			}
		})
	}
	t.Run("the chain leads from the binding to the object in the member", func(t *testing.T) {
		got := access.Explain(workspace(), "x", []string{"devs"}, access.Place{Cluster: "prod"}, getPod)
		want := []access.Chain{{
			Binding:   access.Reference{Kind: "ProjectRoleTemplateBinding", Namespace: "team-a", Name: "devs"},
			Subject:   group("devs"),
			Templates: []string{"deployer", "viewer"}, Rule: rule("", "pods", "get"),
			Object: access.Reference{Kind: "RoleBinding", Namespace: "web", Name: "drover:prtb:devs:drover:project:deployer"},
			Role:   "drover:project:deployer",
		}}
		if !reflect.DeepEqual(got.Chains, want) {
			t.Errorf("got %+v, want %+v", got.Chains, want)
		}
	})
	t.Run("who-can lists every principal with a chain", func(t *testing.T) {
		var names []string
		for _, chain := range access.WhoCan(workspace(), access.Place{Cluster: "prod"}, getPod) {
			names = append(names, chain.Subject.Name)
		}
		if want := []string{"new", "ops", "root", "devs"}; !reflect.DeepEqual(names, want) {
			t.Errorf("got %v, want %v", names, want)
		}
	})
	t.Run("an external role names the member's ClusterRole", func(t *testing.T) {
		chain := access.Explain(workspace(), "root", nil, access.Place{Cluster: "prod"}, getPod).Chains[0]
		if chain.External != "cluster-admin" || chain.Role != "cluster-admin" ||
			!reflect.DeepEqual(chain.Rule, rbacv1.PolicyRule{}) {
			t.Errorf("the chain is %+v, want the external role and no rule", chain)
		}
	})
}
