// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/access"
)

var update = flag.Bool("update", false, "update the golden files")

// golden compares a text with a file of testdata.
func golden(t *testing.T, file, got string) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got:\n%s\nwant, by %s:\n%s", got, path, want)
	}
}

// workspace returns a workspace with a project, a deployer, a viewer of everything, an administrator with an external
// role, and an expired binding.
func workspace() *gathered {
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	past, future := metav1.NewTime(now.Add(-time.Hour)), metav1.NewTime(now.Add(time.Hour))
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "team-a", Name: name} }
	template := func(name string, context v1.RoleContext, inherits []string, rules ...rbacv1.PolicyRule) v1.RoleTemplate {
		return v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.RoleTemplateSpec{Context: context, Inherits: inherits, Rules: rules}}
	}
	rule := func(group, resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
	}
	prod := v1.ClusterTarget{ClusterName: "prod"}
	clusterBinding := func(name, role, user string, expires *metav1.Time) v1.ClusterRoleTemplateBinding {
		return v1.ClusterRoleTemplateBinding{ObjectMeta: meta(name), Spec: v1.ClusterRoleTemplateBindingSpec{
			ClusterTarget: prod, RoleTemplateName: role, Subject: v1.Subject{Kind: v1.SubjectUser, Name: user}, ExpiresAt: expires}}
	}
	root := template("root", v1.ContextCluster, nil)
	root.Spec.External = "cluster-admin"
	g := &gathered{ready: map[access.Reference]metav1.Condition{
		{Kind: "ProjectRoleTemplateBinding", Namespace: "team-a", Name: "web-devs"}: {Status: metav1.ConditionFalse, Reason: "MembersAway", Message: "prod is not connected"},
	}}
	g.Workspace = access.Workspace{
		Now: now, Clusters: map[string]labels.Set{"prod": nil, "test": nil},
		Projects: map[string]*v1.Project{"web": {ObjectMeta: meta("web"), Spec: v1.ProjectSpec{ClusterTarget: prod, Namespaces: []string{"web"}}}},
		Templates: access.Index([]v1.RoleTemplate{
			template("project-viewer", v1.ContextProject, nil, rule("", "pods", "get", "list", "watch")),
			template("deployer", v1.ContextProject, []string{"project-viewer"}, rule("apps", "deployments", "*")),
			template("reader", v1.ContextCluster, nil, rule("", "nodes", "get")), root,
		}),
		ClusterBindings: []v1.ClusterRoleTemplateBinding{
			clusterBinding("bob-reads", "reader", "github:bob", nil), clusterBinding("carol-reads", "reader", "github:carol", &past),
			clusterBinding("dave-reads", "reader", "github:dave", &future), clusterBinding("root-is-root", "root", "github:root", nil),
			clusterBinding("erin-has-what-is-gone", "gone", "github:erin", nil),
		},
		ProjectBindings: []v1.ProjectRoleTemplateBinding{
			{ObjectMeta: meta("web-devs"), Spec: v1.ProjectRoleTemplateBindingSpec{ProjectName: "web", RoleTemplateName: "deployer", Subject: v1.Subject{Kind: v1.SubjectGroup, Name: "github:acme/web"}}},
			{ObjectMeta: meta("bob-deploys"), Spec: v1.ProjectRoleTemplateBindingSpec{ProjectName: "web", RoleTemplateName: "deployer", Subject: v1.Subject{Kind: v1.SubjectUser, Name: "github:bob"}}},
			{ObjectMeta: meta("bob-is-lost"), Spec: v1.ProjectRoleTemplateBindingSpec{ProjectName: "old", RoleTemplateName: "deployer", Subject: v1.Subject{Kind: v1.SubjectUser, Name: "github:bob"}}},
		},
	}
	return g
}

func TestConclusions(t *testing.T) {
	getPods := action{Action: access.Action{Verb: "get", Resource: "pods", Namespace: "web"}}
	getNodes := action{Action: access.Action{Verb: "get", Resource: "nodes"}}
	yes := func(reason string) *authorizationv1.SubjectAccessReviewStatus {
		return &authorizationv1.SubjectAccessReviewStatus{Allowed: true, Reason: reason}
	}
	no := &authorizationv1.SubjectAccessReviewStatus{}
	whole := []delivered{{Binding: present, Role: present}}
	tests := map[string]struct {
		golden  string
		user    string
		groups  []string
		cluster string
		what    action
		found   []delivered
		review  *authorizationv1.SubjectAccessReviewStatus
		unread  []string
		remarks []string
		want    string
	}{
		"hub and member agree": {"granted.txt", "github:alice", []string{"github:acme/web"}, "prod", getPods, whole,
			yes(`RBAC: allowed by RoleBinding "drover:prtb:web-devs:drover:project:deployer/web" of ClusterRole "drover:project:deployer" to Group "github:acme/web"`), nil, nil, allowed},
		"the member was not asked":                        {"granted-unasked.txt", "github:dave", nil, "prod", getNodes, nil, nil, nil, []string{"the member was not queried: it is not connected: TunnelLost: since 10:00"}, cannotBeTold},
		"the member was not asked, and the binding waits": {"granted-waiting.txt", "github:alice", []string{"github:acme/web"}, "prod", getPods, nil, nil, nil, nil, cannotBeTold},
		"the binding is not there yet":                    {"undelivered.txt", "github:alice", []string{"github:acme/web"}, "prod", getPods, []delivered{{Binding: absent, Role: present}}, no, nil, nil, denied},
		"the role is not there":                           {"no-role.txt", "github:alice", []string{"github:acme/web"}, "prod", getPods, []delivered{{Binding: present, Role: absent}}, no, nil, nil, denied},
		"the role there is another":                       {"another-role.txt", "github:alice", []string{"github:acme/web"}, "prod", getPods, []delivered{{Binding: present, Role: different}}, no, nil, nil, denied},
		"all is there, and it is refused":                 {"refused-there.txt", "github:alice", []string{"github:acme/web"}, "prod", getPods, whole, no, nil, nil, denied},
		"a bound user without the provider": {"short-name.txt", "bob", nil, "prod", getPods, nil, no, nil, nil,
			denied},
		"nothing names the user":             {"unnamed.txt", "github:mallory", nil, "prod", getPods, nil, no, nil, nil, denied},
		"several bindings miss it":           {"missing.txt", "github:bob", nil, "prod", deleteNodes(), nil, no, nil, nil, denied},
		"an expired one":                     {"expired.txt", "github:carol", nil, "prod", getNodes, nil, no, nil, nil, denied},
		"an expired one that is still there": {"left-over.txt", "github:carol", nil, "prod", getNodes, nil, yes(`RBAC: allowed by ClusterRoleBinding "drover:crtb:carol-reads:drover:cluster:reader" of ClusterRole "drover:cluster:reader" to User "github:carol"`), nil, nil, allowed},
		"the member's own binding":           {"members-own.txt", "github:mallory", nil, "prod", getPods, nil, yes(`RBAC: allowed by ClusterRoleBinding "ops" of ClusterRole "view" to User "github:mallory"`), nil, nil, allowed},
		"another cluster":                    {"another-cluster.txt", "github:bob", nil, "test", getNodes, nil, nil, nil, nil, cannotBeTold},
		"a role template that is gone":       {"no-template.txt", "github:erin", nil, "prod", getNodes, nil, nil, nil, nil, cannotBeTold},
		"an external role, not asked about":  {"external-unasked.txt", "github:root", nil, "prod", getNodes, nil, nil, nil, nil, cannotBeTold},
		"an external role that allows it":    {"external.txt", "github:root", nil, "prod", getNodes, whole, yes("RBAC: allowed"), nil, nil, allowed},
		"an external role that does not":     {"external-denies.txt", "github:root", nil, "prod", getNodes, []delivered{{Binding: present, Role: different}}, no, nil, nil, denied},
		"what cannot be read decides nothing": {"unread.txt", "github:mallory", nil, "prod", getPods, nil, nil,
			[]string{"list projects.cluster.drover.dev in namespace team-a of the hub (granted by ClusterRole view)"}, nil, cannotBeTold},
		"a right by what cannot be read": {"unread-granted.txt", "github:mallory", nil, "prod", getPods, nil,
			yes(`RBAC: allowed by ClusterRoleBinding "drover:crtb:x:view" of ClusterRole "view" to User "github:mallory"`), []string{"list one thing", "list another"}, nil, allowed},
		"the member shows no roles": {"unread-there.txt", "github:bob", nil, "prod", getNodes,
			[]delivered{{Binding: unread, Role: unread, refusals: []error{errors.New("read ClusterRoleBinding: forbidden"), errors.New("read ClusterRoleBinding: forbidden")}}}, yes("RBAC: allowed"), nil, nil, allowed},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			who, err := newPrincipal(tt.user, v1.SubjectUser, tt.groups)
			if err != nil {
				t.Fatal(err)
			}
			g := workspace()
			g.unread = tt.unread
			f := findings{who: who, what: tt.what, hub: g, workspace: "team-a", cluster: tt.cluster, delivered: tt.found, review: tt.review, remarks: tt.remarks}
			f.answer = access.Explain(g.Workspace, who.Name, who.Groups, access.Place{Cluster: tt.cluster}, tt.what.Action)
			got := conclude(f)
			if got.Answer != tt.want {
				t.Errorf("got %s, want %s", got.Answer, tt.want)
			}
			golden(t, tt.golden, got.text())
		})
	}
}

// deleteNodes returns an action that no rule allows.
func deleteNodes() action {
	return action{Action: access.Action{Verb: "delete", Resource: "nodes"}}
}
