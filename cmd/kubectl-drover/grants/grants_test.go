// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package grants

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// operator runs "grant" and "revoke" in a workspace of a real API server.
type operator struct {
	hub                   *testkit.Env
	workspace, kubeconfig string
	roles                 map[string]string
}

func newOperator(t *testing.T) operator {
	t.Helper()
	o := operator{hub: testkit.Shared(t), roles: map[string]string{}}
	o.workspace = o.hub.Workspace(t)
	o.kubeconfig = testkit.Kubeconfig(t, testkit.Context{Name: "hub", Namespace: o.workspace, Env: o.hub})
	for name, context := range map[string]v1.RoleContext{"viewer": v1.ContextCluster, "deployer": v1.ContextProject} {
		o.roles[name] = o.workspace + "-" + name
		o.hub.Apply(t, &v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: o.roles[name]},
			Spec: v1.RoleTemplateSpec{Context: context, External: "view"}})
	}
	o.hub.Apply(t, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: o.workspace, Name: "prod"}})
	o.hub.Apply(t, &v1.Project{ObjectMeta: metav1.ObjectMeta{Namespace: o.workspace, Name: "web"},
		Spec: v1.ProjectSpec{ClusterTarget: v1.ClusterTarget{ClusterName: "prod"}}})
	return o
}

func (o operator) run(t *testing.T, args ...string) (int, string) {
	t.Helper()
	var out strings.Builder
	commands := func(o *cli.Options) []*cobra.Command { return []*cobra.Command{NewGrant(o), NewRevoke(o)} }
	for i, arg := range args {
		if role := o.roles[arg]; role != "" {
			args[i] = role
		}
	}
	code := cli.Run(t.Context(), "test", commands, append([]string{"--kubeconfig", o.kubeconfig}, args...), &out, &out)
	return code, out.String()
}

func (o operator) does(t *testing.T, what string, args ...string) string {
	t.Helper()
	code, out := o.run(t, args...)
	if code != cli.ExitAllowed || !strings.Contains(out, what) {
		t.Fatalf("kubectl drover %v: exit code %d: %s, want %q", args, code, out, what)
	}
	return out
}

func (o operator) refuses(t *testing.T, what string, args ...string) {
	t.Helper()
	if code, out := o.run(t, args...); code != cli.ExitError || !strings.Contains(out, what) {
		t.Errorf("kubectl drover %v: exit code %d: %s, want an error with %q", args, code, out, what)
	}
}

func (o operator) bindings(t *testing.T) []v1.ClusterRoleTemplateBinding {
	t.Helper()
	var list v1.ClusterRoleTemplateBindingList
	if err := o.hub.Client.List(t.Context(), &list, client.InNamespace(o.workspace)); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func TestAGrantIsABindingUntilItIsRevoked(t *testing.T) {
	o := newOperator(t)
	o.does(t, " created", "grant", "alice", "viewer", "--cluster", "prod", "--until", "8h")
	found := o.bindings(t)
	if len(found) != 1 {
		t.Fatalf("%d bindings, want 1", len(found))
	}
	spec := found[0].Spec
	if spec.ClusterName != "prod" || spec.Subject != (v1.Subject{Kind: v1.SubjectUser, Name: "local:alice"}) {
		t.Errorf("the binding grants %+v", spec)
	}
	if left := time.Until(spec.ExpiresAt.Time); left < 7*time.Hour || left > 8*time.Hour {
		t.Errorf("it ends in %s, want 8h", left)
	}
	o.does(t, " unchanged, ends at "+spec.ExpiresAt.UTC().Format(time.RFC3339), "grant", "alice", "viewer", "--cluster",
		"prod")
	if end := o.bindings(t)[0].Spec.ExpiresAt; end == nil || !end.Equal(spec.ExpiresAt) {
		t.Errorf("without --until the grant ends at %v, want %v", end, spec.ExpiresAt)
	}
	o.does(t, " configured", "grant", "alice", "viewer", "--cluster", "prod", "--until", "never")
	o.does(t, " unchanged", "grant", "alice", "viewer", "--cluster", o.workspace+"/prod")
	if found := o.bindings(t); len(found) != 1 || found[0].Spec.ExpiresAt != nil {
		t.Errorf("the bindings are %+v, want a single binding without an end", found)
	}
	o.does(t, "created (server dry run)", "grant", "bob", "viewer", "--cluster", "prod", "--dry-run=server")
	o.does(t, "deleted (dry run)", "revoke", "alice", "viewer", "--cluster", "prod", "--dry-run=client")
	if found := o.bindings(t); len(found) != 1 {
		t.Errorf("after dry runs there are %d bindings, want 1", len(found))
	}
	o.refuses(t, "no binding in workspace", "revoke", "alice", "viewer", "-l", "env=prod")
	o.refuses(t, "no binding in workspace", "revoke", "local:alice", "viewer", "--cluster", "prod", "--kind", "Group")
	o.does(t, " deleted", "revoke", "alice", "viewer", "--cluster", "prod")
	if found := o.bindings(t); len(found) != 0 {
		t.Errorf("after revoke there are %d bindings", len(found))
	}
}

func TestAGrantThatHasEndedNeedsANewEnd(t *testing.T) {
	o := newOperator(t)
	o.does(t, " created", "grant", "alice", "viewer", "--cluster", "prod", "--until", "8h")
	binding := o.bindings(t)[0]
	testkit.Update(t, o.hub.Client, &binding, func(b *v1.ClusterRoleTemplateBinding) {
		b.Spec.ExpiresAt = &metav1.Time{Time: time.Now().Add(-time.Hour)}
	})
	o.refuses(t, ": set --until", "grant", "alice", "viewer", "--cluster", "prod")
	o.does(t, " configured", "grant", "alice", "viewer", "--cluster", "prod", "--until", "1h")
}

func TestAGrantInAProjectIsForAGroup(t *testing.T) {
	o := newOperator(t)
	o.does(t, " created", "grant", "github:acme/web", "deployer", "--kind", "Group", "--project", "web",
		"--name", "web-devs")
	binding := &v1.ProjectRoleTemplateBinding{}
	key := client.ObjectKey{Namespace: o.workspace, Name: "web-devs"}
	if err := o.hub.Client.Get(t.Context(), key, binding); err != nil {
		t.Fatal(err)
	}
	who := v1.Subject{Kind: v1.SubjectGroup, Name: "github:acme/web"}
	if binding.Spec.ProjectName != "web" || binding.Spec.Subject != who {
		t.Errorf("the binding grants %+v", binding.Spec)
	}
	o.refuses(t, "grants something else", "grant", "carol", "deployer", "--project", "web", "--name", "web-devs")
	o.does(t, " deleted", "revoke", "github:acme/web", "deployer", "--kind", "Group", "--project", "web")
	if err := o.hub.Client.Get(t.Context(), key, binding); !apierrors.IsNotFound(err) {
		t.Errorf("after revoke: %v, want the binding to be gone", err)
	}
}

func TestADryRunPrintsWhatAGitRepositoryHolds(t *testing.T) {
	o := newOperator(t)
	out := o.does(t, "kind: ClusterRoleTemplateBinding", "grant", "github:alice", "viewer", "-l", "env=prod",
		"--dry-run=client", "-o", "yaml")
	for _, field := range []string{"status", "creationTimestamp", "uid"} {
		if strings.Contains(out, field) {
			t.Errorf("%s is in the manifest:\n%s", field, out)
		}
	}
	if len(o.bindings(t)) != 0 {
		t.Fatal("the dry run created a binding")
	}
	binding := &v1.ClusterRoleTemplateBinding{}
	if err := yaml.UnmarshalStrict([]byte(out), binding); err != nil {
		t.Fatal(err)
	}
	if err := o.hub.Client.Create(t.Context(), binding); err != nil {
		t.Fatalf("the hub refuses the manifest: %v\n%s", err, out)
	}
	o.does(t, " unchanged", "grant", "github:alice", "viewer", "-l", "env=prod")
}

func TestADryRunWarnsOfMissingObjects(t *testing.T) {
	o := newOperator(t)
	unreachable := clientcmdapi.NewConfig()
	unreachable.Clusters["hub"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}
	unreachable.Contexts["hub"], unreachable.CurrentContext = &clientcmdapi.Context{Cluster: "hub"}, "hub"
	away := filepath.Join(t.TempDir(), "config")
	if err := clientcmd.WriteToFile(*unreachable, away); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		line string
		want []string // in the warnings, of which there is one for each
	}{
		"nothing is missing": {"github:alice ROLE --cluster prod", nil},
		"a user":             {"no-such-user ROLE --cluster prod", []string{"the hub has no User no-such-user"}},
		"a group":            {"local:no-such-group ROLE --cluster prod --kind Group", nil},
		"a role":             {"github:alice nosuch --cluster prod", []string{"the hub has no RoleTemplate nosuch"}},
		"a Cluster":          {"github:alice ROLE --cluster nosuch", []string{`"nosuch" not found`}},
		"a role and a target": {"github:alice nosuch --project nosuch", []string{
			`"nosuch" not found`, "no RoleTemplate nosuch"}},
		"the rights to read": {"github:alice ROLE --cluster prod --as mallory", []string{
			"you may not read " + o.workspace + "/prod", "you may not read RoleTemplate"}},
		"the hub": {"alice ROLE --cluster prod --kubeconfig " + away, []string{
			"the hub was not read, so that nothing more was checked"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out, warnings strings.Builder
			args := []string{"grant", "--kubeconfig", o.kubeconfig, "--dry-run=client", "-o", "name"}
			args = append(args, strings.Fields(strings.ReplaceAll(tt.line, "ROLE", o.roles["viewer"]))...)
			code := cli.Run(t.Context(), "test", func(o *cli.Options) []*cobra.Command { return []*cobra.Command{NewGrant(o)} },
				args, &out, &warnings)
			if code != cli.ExitAllowed || strings.Count(out.String(), "\n") != 1 {
				t.Errorf("exit code %d: %s, want only the name of the binding", code, &out)
			}
			for _, want := range tt.want {
				if !strings.Contains(warnings.String(), want) {
					t.Errorf("the warnings are %s, want %q", &warnings, want)
				}
			}
			if n := strings.Count(warnings.String(), "Warning: "); n != len(tt.want) {
				t.Errorf("there are %d warnings, want %d:\n%s", n, len(tt.want), &warnings)
			}
		})
	}
	if found := o.bindings(t); len(found) != 0 {
		t.Errorf("dry runs created %d bindings", len(found))
	}
}

func TestAGrantThatWouldGrantNothingIsRefused(t *testing.T) {
	o := newOperator(t)
	for want, args := range map[string][]string{
		"the hub has no RoleTemplate nosuch":     {"alice", "nosuch", "--cluster", "prod"},
		`"nosuch" not found`:                     {"alice", "viewer", "--cluster", "nosuch"},
		"has the context Project":                {"alice", "deployer", "--cluster", "prod"},
		"has the context Cluster":                {"alice", "viewer", "--project", "web"},
		"is not in the future":                   {"alice", "viewer", "--cluster", "prod", "--until", "-1h"},
		"use a duration such as 8h or 7d":        {"alice", "viewer", "--cluster", "prod", "--until", "tomorrow"},
		"the group web has no provider":          {"web", "viewer", "--cluster", "prod", "--kind", "Group"},
		"set --cluster, --selector or --project": {"alice", "viewer"},
		"unknown value \"perhaps\" of --dry-run": {"alice", "viewer", "--cluster", "prod", "--dry-run=perhaps"},
		"is not in the workspace other: omit -w": {"alice", "viewer", "--cluster", o.workspace + "/prod", "-w", "other"},
		"unknown output format \"table\"":        {"alice", "viewer", "--cluster", "prod", "-o", "table"},
	} {
		o.refuses(t, want, append([]string{"grant"}, args...)...)
	}
	if found := o.bindings(t); len(found) != 0 {
		t.Errorf("there are %d bindings, want none", len(found))
	}
}

func TestTheNameOfABindingIsValidAndTellsItsParts(t *testing.T) {
	of := func(name, cluster string) *options {
		return &options{subject: v1.Subject{Kind: v1.SubjectUser, Name: name}, role: "cluster-member", cluster: cluster}
	}
	long := "github:" + strings.Repeat("x", 300)
	for _, subject := range []string{"local:alice", "oidc:Ålice@example.com", long, "x:###"} {
		o := of(subject, "prod.eu")
		name := o.bindingName()
		other := *o
		other.subject.Name += "."
		if len(name) > 63 || strings.Trim(name, "-") != name || unnamed.MatchString(strings.ReplaceAll(name, "-", "")) {
			t.Errorf("the name %q is not a DNS label", name)
		}
		if other.bindingName() == name {
			t.Errorf("two users have the binding %s", name)
		}
	}
	if name := of("local:alice", "prod-eu").bindingName(); !strings.HasPrefix(name, "alice-cluster-member-prod-eu-") {
		t.Errorf("the name is %s", name)
	}
}

// TestNamesOfBindingsAreStable compares names with a table. A test of the hub's page compares its names with the same
// table, because both must find each other's bindings.
func TestNamesOfBindingsAreStable(t *testing.T) {
	table, err := os.ReadFile("testdata/names.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct{ Case, Kind, Name, Role, Cluster, Selector, Project, Want string }
	if err := json.Unmarshal(table, &cases); err != nil || len(cases) == 0 {
		t.Fatalf("the table has %d cases (%v), want some", len(cases), err)
	}
	for _, tt := range cases {
		o := &options{subject: v1.Subject{Kind: v1.SubjectKind(tt.Kind), Name: tt.Name}, role: tt.Role, cluster: tt.Cluster,
			selector: tt.Selector, project: tt.Project}
		if got := o.bindingName(); got != tt.Want {
			t.Errorf("%s: got %s, want %s", tt.Case, got, tt.Want)
		}
	}
}

func TestTheEndOfAGrant(t *testing.T) {
	now := time.Date(2027, 1, 2, 3, 4, 5, 6, time.UTC)
	for until, want := range map[string]string{
		"8h": "2027-01-02T11:04:05Z", "7d": "2027-01-09T03:04:05Z", "2027-02-01T00:00:00+01:00": "2027-01-31T23:00:00Z",
	} {
		end, err := (&options{until: until}).ending(now)
		if err != nil || end.Format(time.RFC3339) != want {
			t.Errorf("--until %s: %v (%v), want %s", until, end, err, want)
		}
	}
	for _, until := range []string{"0d", "-1d", "xd", "2026-01-01T00:00:00Z", "8"} {
		if end, err := (&options{until: until}).ending(now); err == nil {
			t.Errorf("--until %s: %v, want an error", until, end)
		}
	}
}
