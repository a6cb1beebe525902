// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/access"
)

// brought returns the role templates that come with Drover.
func brought(t *testing.T) []v1.RoleTemplate {
	t.Helper()
	var all []v1.RoleTemplate
	for _, file := range []string{"cluster.yaml", "project.yaml", "parts.yaml"} {
		text, err := os.ReadFile(filepath.Join("../../../config/roles/templates", file))
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			var rt v1.RoleTemplate
			if err := yaml.Unmarshal([]byte(document), &rt); err != nil {
				t.Fatal(err)
			}
			if rt.Name != "" {
				all = append(all, rt)
			}
		}
	}
	return all
}

// CVE-2023-32194 is of this class: converted rights are wider than the original ones. These are the rules of Rancher
// 2.12's own role templates in members, if they inherit no ClusterRole of Kubernetes. A rule is written as "verb
// resources", in one API group or the core group. The verb v means get, list and watch.
func TestWhereDroversRoleTemplatesGrantMoreIsReported(t *testing.T) {
	for name, rules := range map[string][]string{
		"cluster-member":                {"v nodes persistentvolumes storageclasses apiservices"},
		"workloads-view":                {"v pods replicationcontrollers replicationcontrollers/scale daemonsets deployments deployments/scale replicasets replicasets/scale statefulsets horizontalpodautoscalers cronjobs jobs limitranges pods/log resourcequotas bindings"},
		"workloads-manage":              {"* pods pods/attach pods/exec pods/portforward pods/proxy replicationcontrollers replicationcontrollers/scale daemonsets deployments deployments/scale replicasets replicasets/scale statefulsets statefulsets/scale horizontalpodautoscalers cronjobs jobs", "v limitranges pods/log resourcequotas bindings"},
		"ingress-view":                  {"v ingresses"},
		"ingress-manage":                {"* ingresses"},
		"services-view":                 {"v services endpoints"},
		"services-manage":               {"* services services/proxy endpoints"},
		"secrets-view":                  {"v secrets"},
		"secrets-manage":                {"* secrets"},
		"configmaps-view":               {"v configmaps"},
		"configmaps-manage":             {"* configmaps"},
		"persistentvolumeclaims-view":   {"v persistentvolumes storageclasses persistentvolumeclaims"},
		"persistentvolumeclaims-manage": {"v persistentvolumes storageclasses", "* persistentvolumeclaims"},
		"serviceaccounts-view":          {"v serviceaccounts"},
		"serviceaccounts-manage":        {"* serviceaccounts"},
	} {
		granted := map[string]bool{}
		for _, r := range rules {
			words := strings.Fields(r)
			for _, resource := range words[1:] {
				if words[0] == "*" {
					granted[resource] = true
				}
				for _, verb := range []string{"get", "list", "watch"} {
					granted[resource+" "+verb] = true
				}
			}
		}
		same := counterparts(v1.ContextProject)[name]
		if name == "cluster-member" {
			same = counterparts(v1.ContextCluster)[name]
		}
		flat, err := access.Flatten(access.Index(brought(t)), same)
		if err != nil {
			t.Fatal(err)
		}
		var more []string
		for _, r := range flat {
			for _, resource := range r.Resources {
				resource = strings.TrimSuffix(resource, "/status") // part of an object that is visible anyway
				for _, verb := range r.Verbs {
					if !granted[resource] && !granted[resource+" "+verb] && !slices.Contains(more, resource) {
						more = append(more, resource)
					}
				}
			}
		}
		slices.Sort(more)
		if got, want := wider()[name], strings.Join(more, ", "); got != want {
			t.Errorf("for %s, %s also grants %q; the report says %q", name, same, want, got)
		}
	}
	c := newConversion(Objects{RoleTemplates: []RoleTemplate{
		template("ingress-manage", "project", func(rt *RoleTemplate) { rt.Builtin = true }),
		template("mine", "project", func(rt *RoleTemplate) { rt.RoleTemplateNames = []string{"ingress-manage"} }),
	}}, Options{})
	c.role("mine", v1.ContextProject, "a binding")
	if len(c.report.Findings) != 1 || c.report.Findings[0].Class != Different || !strings.Contains(c.report.Findings[0].Detail, "httproutes") {
		t.Errorf("one that is inherited is reported as %+v", c.report.Findings)
	}
}

// A principal without a binding may still sign in to Drover.
func TestAPrincipalThatRancherKnowsKeepsItsNameFromAnother(t *testing.T) {
	const bound, other = "openldap_group://cn=ops,ou=team-a,dc=x", "openldap_group://cn=Ops,ou=team-b,dc=x"
	const alice, twin = "openldap_user://uid=alice,ou=a,dc=x", "openldap_user://uid=alice,ou=b,dc=x"
	in := Objects{UserAttributes: []UserAttribute{
		login("openldap", "openldap_user://uid=bob,ou=people,dc=x", "bob", "one", "two"), login("openldap", alice, "alice"),
	}}
	groups := in.UserAttributes[0].GroupPrincipals["openldap"].Items
	groups[0].Metadata.Name, groups[1].Metadata.Name = other, "openldap_group://cn=dev,dc=x"
	for name, tt := range map[string]struct {
		users    []User
		id, want string
	}{
		"a group of the same cn elsewhere in the directory": {nil, bound, ""},
		"a group whose cn no other one has":                 {nil, "openldap_group://cn=dev,dc=x", "ldap:dev"},
		"a login that no other one has":                     {nil, alice, "ldap:alice"},
		"a login of two users":                              {[]User{user("u-1", "", alice), user("u-2", "", twin)}, alice, "ldap:alice"}, // the other one never signed in
	} {
		t.Run(name, func(t *testing.T) {
			in := in
			in.Users = tt.users
			c := newConversion(in, Options{})
			c.subjects.count[tt.id] = 1
			c.nameAll()
			p := c.subjects.known[tt.id]
			if p.effective() != tt.want || tt.want == "" && (p.Suggested != "ldap:ops" || !strings.Contains(p.Why, other)) {
				t.Errorf("got %+v", p)
			}
			if len(c.mapping.Principals) != 1 || len(c.mapping.Providers) != 1 {
				t.Errorf("the file has what no binding is for: %+v", c.mapping)
			}
		})
	}
	t.Run("a login that both had", func(t *testing.T) {
		in := in
		in.UserAttributes = append(slices.Clone(in.UserAttributes), login("openldap", twin, "Alice"))
		c := newConversion(in, Options{})
		c.subjects.count[alice] = 1
		c.nameAll()
		if p := c.subjects.known[alice]; p.effective() != "" {
			t.Errorf("got %+v", p)
		}
	})
}

// CVE-2024-22031: projects with the same name in two clusters share a namespace in Rancher.
func TestASecretOfASharedNamespaceIsOfTheProjectThatItNames(t *testing.T) {
	in := Objects{}
	for _, name := range []string{"c-1", "c-2"} {
		in.Clusters = append(in.Clusters, Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}})
		p := Project{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "p-web"}}
		p.Status.BackingNamespace = "p-web"
		in.Projects = append(in.Projects, p)
	}
	for of, want := range map[string]string{"c-1": "c-1-p-web", "c-2": "c-2-p-web", "": "", "c-3": ""} {
		for range 20 { // the order of projects in memory varies
			secret := secretOf("p-web", "registry", "p-web")
			secret.Labels[LabelSecretCluster] = of
			in.Secrets = in.Secrets[:0]
			in.Secrets = append(in.Secrets, secret)
			r, got := Convert(in, Options{Workspace: "team-a", SecretValues: true}), ""
			for _, o := range r.Secrets {
				got += o.Object.(metav1.Object).GetLabels()[v1.LabelProject]
			}
			if got != want || want == "" && r.Report.Count(Decide)+r.Report.Count(LeftOut) == 0 {
				t.Fatalf("one of cluster %q is exported for %q, want %q", of, got, want)
			}
		}
	}
}

// Users of Rancher choose the names of their bindings. No name may stop an export or overwrite the file of another
// binding.
func TestBindingsOfTwoKindsWithOneNameAreExported(t *testing.T) {
	in := Objects{
		Clusters: []Cluster{{ObjectMeta: metav1.ObjectMeta{Name: "c-1"}}}, Users: []User{user("u-1", "alice")},
		Projects: []Project{{ObjectMeta: metav1.ObjectMeta{Namespace: "c-1", Name: "web"}}},
		RoleTemplates: []RoleTemplate{
			template("r", "", func(rt *RoleTemplate) { rt.Rules = []rbacv1.PolicyRule{rule("get", "", "pods")} }),
		},
		ClusterBindings: []ClusterBinding{{ObjectMeta: metav1.ObjectMeta{Namespace: "c-1", Name: "web-x"}, Subject: Subject{UserName: "u-1"}, ClusterName: "c-1", RoleTemplateName: "r"}},
		ProjectBindings: []ProjectBinding{{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "x"}, Subject: Subject{UserName: "u-1"}, ProjectName: "c-1:web", RoleTemplateName: "r"}},
	}
	r := Convert(in, Options{Workspace: "team-a"})
	files, err := r.Files()
	if err != nil {
		t.Fatal(err)
	}
	for name, kind := range map[string]string{"c-1-web-x.yaml": "ClusterRoleTemplateBinding", "c-1-web-x.projectroletemplatebinding.yaml": "ProjectRoleTemplateBinding"} {
		if text := string(files["clusters/c-1/bindings/"+name]); !strings.Contains(text, "\nkind: "+kind+"\n") {
			t.Errorf("%s is %q", name, text)
		}
		if !strings.Contains(string(files["clusters/c-1/bindings/kustomization.yaml"]), name) {
			t.Errorf("%s is not in the kustomization", name)
		}
	}
}
