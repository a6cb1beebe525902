// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/access"
	"github.com/drover-dev/drover/test/testkit"
)

// fixture is an API server that is both hub and member, with a kubeconfig and a workspace whose project has users with
// rights.
type fixture struct {
	*testkit.Env
	kubeconfig string
	workspace  string
	// namespace is the namespace of the project.
	namespace string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	env := testkit.Start(t)
	s := &fixture{Env: env, workspace: env.Workspace(t), namespace: "web"}
	s.kubeconfig = testkit.Kubeconfig(t, testkit.Context{Name: "hub", Namespace: s.workspace, Env: env})
	in := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: s.workspace, Name: name} }
	template := &v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: "deployer"}, Spec: v1.RoleTemplateSpec{
		Context: v1.ContextProject, Rules: []rbacv1.PolicyRule{{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"*"}}}}}
	binding := &v1.ProjectRoleTemplateBinding{ObjectMeta: in("devs"), Spec: v1.ProjectRoleTemplateBindingSpec{
		ProjectName: "web", RoleTemplateName: "deployer", Subject: v1.Subject{Kind: v1.SubjectGroup, Name: "github:acme/web"}}}
	role, err := access.Role(access.Index([]v1.RoleTemplate{*template}), "deployer")
	if err != nil {
		t.Fatal(err)
	}
	delivered, err := access.ProjectBinding(access.Index([]v1.RoleTemplate{*template}), binding)
	if err != nil {
		t.Fatal(err)
	}
	delivered.Namespace = s.namespace
	s.join(t, "prod", s.uid(t))
	env.Apply(t, &v1.Project{ObjectMeta: in("web"), Spec: v1.ProjectSpec{ClusterTarget: v1.ClusterTarget{ClusterName: "prod"}, Namespaces: []string{"site"}}})
	env.Apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace, Labels: map[string]string{v1.LabelProject: "web"}}})
	env.Apply(t, template)
	env.Apply(t, binding)
	env.Apply(t, role)
	env.Apply(t, delivered)
	return s
}

// uid returns the UID that identifies an API server.
func (s *fixture) uid(t *testing.T) string {
	t.Helper()
	system := &corev1.Namespace{}
	if err := s.Client.Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, system); err != nil {
		t.Fatal(err)
	}
	return string(system.UID)
}

// join creates a Cluster that the cluster with the UID has joined.
func (s *fixture) join(t *testing.T, name, uid string) {
	t.Helper()
	cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.workspace, Name: name}}
	s.Apply(t, cluster)
	cluster.Status.ClusterUID = uid
	if err := s.Client.Status().Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
}

// run runs a command line of the commands of this package.
func run(ctx context.Context, args []string, out, complaints io.Writer) int {
	commands := func(o *cli.Options) []*cobra.Command { return []*cobra.Command{NewWhy(o), NewWhoCan(o)} }
	return cli.Run(ctx, "test", commands, args, out, complaints)
}

// say runs a command line with the member's context and returns the exit code and the output.
func (s *fixture) say(t *testing.T, line string) (int, string, string) {
	t.Helper()
	var out, complaints strings.Builder
	code := run(t.Context(), append([]string{"--kubeconfig", s.kubeconfig}, strings.Fields(line)...), &out, &complaints)
	return code, out.String(), complaints.String()
}

func TestTheCommandAnswersFromRealAPIServers(t *testing.T) {
	s := newFixture(t)
	s.Apply(t, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.workspace, Name: "never"}})
	first, second := s.Workspace(t), s.Workspace(t)
	alone := first + "/alone"
	for _, cluster := range []string{alone, first + "/twice", second + "/twice"} {
		workspace, name, _ := strings.Cut(cluster, "/")
		s.Apply(t, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: name}})
	}
	if first > second {
		first, second = second, first
	}
	const there = " --cluster prod --member-context hub"
	s.Apply(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "own"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "ops"}}})
	s.AwaitRights(t, "ops", s.namespace, rbacv1.PolicyRule{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"get"}})
	tests := map[string]struct {
		line string
		code int
		want []string // in the output, including errors
	}{
		"a group's right in a labelled namespace":   {"why github:acme/web create deploy --kind Group -n web" + there, 0, []string{"Yes: Group github:acme/web may create deployments.apps in namespace web of cluster prod.", "both exist", "The member says yes: RBAC: allowed by RoleBinding"}},
		"a user's by the group":                     {"why github:alice get deployments.apps/site --group github:acme/web -n web" + there, 0, []string{"for Group github:acme/web"}},
		"not in another namespace":                  {"why github:alice get deployments --group github:acme/web -n default" + there, 1, []string{"No: ", "namespace default is not in project web"}},
		"not what no rule allows":                   {"why github:alice get pods --group github:acme/web -n web" + there, 1, []string{"role template deployer has no rule that allows it"}},
		"a subresource is another right":            {"why github:alice update deployments --subresource scale --group github:acme/web -n web" + there, 1, []string{"update deployments.apps/scale"}},
		"the member's own binding":                  {"why ops get deployments -n web" + there, 0, []string{"the member itself grants it, not Drover"}},
		"who can, by both":                          {"who-can get deployments -n web" + there, 0, []string{"github:acme/web", "ProjectRoleTemplateBinding devs", "ClusterRoleBinding own (the member's)", "components of the cluster itself"}},
		"who can, not asked there, granted to none": {"who-can get nosuchthings.example.com -n web --cluster prod", 2, []string{"It is not known who may", "According to the hub, Drover grants it to no one", "the member was not queried: it has not connected yet"}},
		"who can, not asked there, granted":         {"who-can get deployments -n site --cluster prod", 2, []string{"It is not known who may", "github:acme/web", "error: there is no answer"}},
		"who can, by a context that is not there":   {"who-can get deployments -n web --cluster prod --member-context nope", 2, []string{"It is not known who may", "context nope is not in the kubeconfig"}},
		"who can, in what never joined":             {"who-can get deployments -n web --cluster never --member-context hub", 2, []string{"It is not known who may", "it has never joined the hub"}},
		"the member is away":                        {"why github:alice get deployments --group github:acme/web -n web --cluster prod", 2, []string{"It is not known", "Nor is it known whether Drover grants it.", "only the member knows whether namespace web has the label of project web", "the member was not queried: it has not connected yet: see \"kubectl describe"}},
		"a context that is not there":               {"why github:alice get deployments --group github:acme/web -n site --cluster prod --member-context nope", 2, []string{"It is not known", "It is not known whether the member has received this", "context nope is not in the kubeconfig: \"kubectl config get-contexts"}},
		"what never joined":                         {"why ops get deployments -n web --cluster never --member-context hub", 2, []string{"It is not known", "it has never joined the hub", "never-registration"}},
		"who may list nothing on the hub":           {"why x get pods --as mallory --cluster prod", 2, []string{"forbidden: ask for the right to list clusters.cluster.drover.dev in namespace " + s.workspace}},
		"an unknown cluster":                        {"why x get pods --cluster nope", 2, []string{"cluster nope does not exist in workspace " + s.workspace + ", which has never, prod"}},
		"another workspace":                         {"why x get pods --cluster prod -w other", 2, []string{"select another workspace with -w"}},
		"an unknown context":                        {"why x get pods --cluster prod --context nope", 2, []string{`context "nope" does not exist`}},
		"no cluster": {
			"why x get pods", 2, []string{
				`error: no member is given: name a Cluster, as in "kubectl drover why x get pods --cluster CLUSTER"`}},
		"no cluster, who can": {
			"who-can get pods", 2, []string{
				`as in "kubectl drover who-can get pods --cluster CLUSTER"`}},
		"the member as the last argument": {
			"who-can get deployments prod -n web --member-context hub", 0, []string{
				"github:acme/web"}},
		"the member with its workspace": {
			"why ops get deployments " + s.workspace + "/prod -n web --member-context hub", 0, []string{
				"the member itself grants it"}},
		"a workspace that contradicts -w": {
			"why ops get deployments a/prod -w b", 2, []string{
				"a/prod is not in the workspace b: omit -w"}},
		"a member that is only elsewhere": {
			"who-can get deployments alone", 2, []string{
				"in all namespaces of cluster alone", " has no cluster alone: the answer is for " + alone}},
		"a member of several other workspaces": {
			"who-can get deployments twice", 2, []string{
				"several workspaces have a Cluster twice: use " + first + "/twice or " + second + "/twice"}},
		"two members": {
			"why ops get deployments prod --cluster never", 2, []string{
				"requires NAME VERB RESOURCE"}},
		"completion of the last argument":       {"__complete who-can get pods p", 0, []string{"prod\n"}},
		"too few words":                         {"why x get --cluster prod", 2, []string{"requires NAME VERB RESOURCE"}},
		"an unknown output":                     {"why x get pods --cluster prod -o xml", 2, []string{"use text, json or yaml"}},
		"an unknown kind":                       {"why x get pods --cluster prod --kind Robot", 2, []string{"use User or Group"}},
		"completion of Clusters":                {"__complete why x get pods --cluster p", 0, []string{"prod\n"}},
		"completion of verbs":                   {"__complete why x del", 0, []string{"delete\ndeletecollection\n"}},
		"completion of workspaces":              {"__complete why x get pods -w kube-p", 0, []string{"kube-public\n"}},
		"completion of the member's namespaces": {"__complete why x get pods --cluster prod --member-context hub -n kube-p", 0, []string{"kube-public\n"}},
		"completion of contexts":                {"__complete why x get pods --member-context h", 0, []string{"hub\n"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			code, out, complaints := s.say(t, tt.line)
			if code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			for _, want := range tt.want {
				if !strings.Contains(out+complaints, want) {
					t.Errorf("%q is not in:\n%s%s", want, out, complaints)
				}
			}
		})
	}
	t.Run("who may not ask about others may ask about themselves", func(t *testing.T) { testSelf(t, s) })
	t.Run("JSON has the chain, the member's word and the answer", func(t *testing.T) { testJSON(t, s) })
	t.Run("a member of another identity is refused", func(t *testing.T) { testOtherMember(t, s) })
	t.Run("a binding that was taken from the member shows", func(t *testing.T) { testTaken(t, s) })
}

// In testSelf, alice may view the workspace, but none of the member's RBAC objects.
func testSelf(t *testing.T, s *fixture) {
	viewer := metav1.ObjectMeta{Name: "alice-views", Namespace: s.workspace}
	// A member is identified by the UID of kube-system. Without the right to read it, a context could lead to any cluster.
	as := " --as github:alice --as-group github:acme/web --cluster prod --member-context hub -n web"
	code, out, complaints := s.say(t, "why github:alice get deployments --group github:acme/web"+as)
	if code != cli.ExitError {
		t.Errorf("without a right on the hub: exit code %d:\n%s%s", code, out, complaints)
	}
	rules := []rbacv1.PolicyRule{{APIGroups: []string{v1.Group}, Resources: []string{"clusters", "projects", "clusterroletemplatebindings", "projectroletemplatebindings"}, Verbs: []string{"list"}}}
	s.Apply(t, &rbacv1.Role{ObjectMeta: viewer, Rules: rules})
	s.Apply(t, &rbacv1.RoleBinding{ObjectMeta: viewer, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: viewer.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "github:alice"}}})
	s.AwaitRights(t, "github:alice", s.workspace, rules...)
	code, out, _ = s.say(t, "why github:alice get deployments --group github:acme/web"+as)
	if code != cli.ExitError || !strings.Contains(out, "It is not known") || !strings.Contains(out, "may lead to another cluster, because you may not read namespace kube-system there") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	system := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"namespaces"}, ResourceNames: []string{metav1.NamespaceSystem}, Verbs: []string{"get"}}}
	s.Apply(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: viewer.Name}, Rules: system})
	s.Apply(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: viewer.Name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: viewer.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "github:alice"}}})
	s.AwaitRights(t, "github:alice", "", system...)
	code, out, _ = s.say(t, "why github:alice get deployments --group github:acme/web"+as)
	for _, want := range []string{"Yes: ", "The member says yes", "the right to list roletemplates.cluster.drover.dev on the hub", "the project of the namespace is taken from the hub"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in:\n%s", want, out)
		}
	}
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	code, out, _ = s.say(t, "why github:bob get deployments"+as)
	if code != 2 || !strings.Contains(out, "the member did not answer: create subjectaccessreview") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}

func testJSON(t *testing.T, s *fixture) {
	code, out, complaints := s.say(t, "why github:alice get deployments --group github:acme/web -n web --cluster prod --member-context hub -o json")
	var got explanation
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 {
		t.Fatalf("why -o json: exit code %d, %v: %s%s", code, err, out, complaints)
	}
	if got.Answer != allowed || got.Drover != access.Granted || got.Member == nil || !got.Member.Allowed || len(got.Chains) != 1 ||
		got.Chains[0].Delivered.Binding != present || got.Chains[0].Templates[0] != "deployer" || got.Action.Group != "apps" {
		t.Errorf("why -o json: %+v, want an allowed action with one chain, which hub and member agree on", got)
	}
	if strings.Contains(out, `"Err"`) || strings.Contains(out, `"Verb"`) {
		t.Errorf("names of Go fields: %s", out)
	}
}

func testOtherMember(t *testing.T, s *fixture) {
	s.join(t, "other", "another")
	code, out, _ := s.say(t, "why ops get deployments -n web --cluster other --member-context hub")
	if code != cli.ExitError || !strings.Contains(out, "It is not known") || !strings.Contains(out, "leads to another cluster") || strings.Contains(out, "The member says") {
		t.Errorf("a context of another cluster: %v, %v, want exit code 2 and that it is not known", code, out)
	}
}

func testTaken(t *testing.T, s *fixture) {
	if err := s.Client.Delete(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "drover:prtb:devs:drover:project:deployer"}}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 10*time.Second, func(context.Context) error { // the authorizer is updated by a watch
		code, out, _ := s.say(t, "why github:acme/web get deployments --kind Group -n web --cluster prod --member-context hub")
		if code != cli.ExitDenied || !strings.Contains(out, "the binding does not exist, the role exists") || !strings.Contains(out, "RoleBinding drover:prtb:devs:drover:project:deployer in namespace web in the member is missing") {
			return fmt.Errorf("exit code %d:\n%s", code, out)
		}
		return nil
	})
}
