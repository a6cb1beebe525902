// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/rancher"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// rancherServer is an API server with Rancher's kinds and the objects in
// cmd/kubectl-drover/rancher/testdata/server.yaml. It is also a hub.
type rancherServer struct {
	*testkit.Env
	kubeconfig string
	kubectl    string
}

func newRancherServer(t *testing.T) *rancherServer {
	t.Helper()
	env := testkit.Start(t)
	s := &rancherServer{Env: env, kubeconfig: testkit.Kubeconfig(t, testkit.Context{Name: "rancher-local", Env: env})}
	want := "does not serve clusters.management.cattle.io: select the cluster that Rancher runs in"
	if code, _, complaints := s.export(t, "nowhere", "-w", "team-a"); code != cli.ExitError || !strings.Contains(complaints, want) {
		t.Errorf("a cluster without Rancher: exit code %d: %s, want %d and %q", code, complaints, cli.ExitError, want)
	}
	if _, err := envtest.InstallCRDs(env.Config, envtest.CRDInstallOptions{
		Paths: []string{testkit.Path(t, "cmd/kubectl-drover/rancher/testdata/crds")}, ErrorIfPathMissing: true, MaxTime: testkit.Patience * time.Minute}); err != nil {
		t.Fatal(err)
	}
	assets, err := lab.Binaries(t.Context(), os.Stderr, lab.Kubectl)
	if err != nil {
		t.Fatal(err)
	}
	s.kubectl = assets[lab.Kubectl]
	for _, name := range []string{"fleet-default", "system-upgrade", "c-m-2x7kq9wd", "c-4hq8t", "c-m-2x7kq9wd-p-web01", "p-web02", "p-def77"} {
		env.Apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	s.create(t, testkit.Path(t, "cmd/kubectl-drover/rancher/testdata/server.yaml"))
	return s
}

// create creates the objects of a file in their order.
func (s *rancherServer) create(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i, document := range bytes.Split(text, []byte("\n---\n")) {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &o.Object); err != nil {
			t.Fatalf("%s, document %d: %v", file, i, err)
		}
		// The API server serves a kind a moment after its CRD is established.
		testkit.Eventually(t, 10*time.Second, func(ctx context.Context) error { return s.Client.Create(ctx, o) })
	}
}

// run runs a command line of the commands of this package.
func run(ctx context.Context, args []string, out, complaints io.Writer) int {
	commands := func(o *cli.Options) []*cobra.Command { return []*cobra.Command{New(o)} }
	return cli.Run(ctx, "test", commands, args, out, complaints)
}

// export runs the command and returns the exit code and the output.
func (s *rancherServer) export(t *testing.T, args ...string) (int, string, string) {
	t.Helper()
	var out, complaints strings.Builder
	code := run(t.Context(), append([]string{"--kubeconfig", s.kubeconfig, "rancher", "export"}, args...), &out, &complaints)
	return code, out.String(), complaints.String()
}

// apply runs "kubectl apply -k" and returns its output.
func (s *rancherServer) apply(t *testing.T, dir string, flags ...string) string {
	t.Helper()
	args := append([]string{"--kubeconfig", s.kubeconfig, "apply", "-k", dir}, flags...)
	out, err := exec.CommandContext(t.Context(), s.kubectl, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (s *rancherServer) mustExport(t *testing.T, args ...string) string {
	t.Helper()
	code, out, complaints := s.export(t, args...)
	if code != 0 {
		t.Fatalf("exit code %d: %s%s", code, out, complaints)
	}
	return out
}

// files returns the files of a folder with their modes.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		info, infoErr := entry.Info()
		rel, relErr := filepath.Rel(dir, path)
		if err := errors.Join(err, infoErr, relErr); err != nil {
			return err
		}
		found[filepath.ToSlash(rel)] = fmt.Sprintf("%s\n%s", info.Mode(), content)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func same(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s:\n%s\nwant:\n%s", name, got[name], want[name])
		}
	}
	for name := range got {
		if _, expected := want[name]; !expected {
			t.Errorf("%s is there", name)
		}
	}
}

func TestARancherServerIsExported(t *testing.T) {
	s := newRancherServer(t)
	for _, folder := range []string{"config/policy", "config/roles", "config/roles/templates"} {
		s.apply(t, testkit.Path(t, folder), "--server-side")
	}
	s.Apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}})
	dir := filepath.Join(t.TempDir(), "fleet")
	summary := s.mustExport(t, dir, "-w", "team-a")
	if !strings.Contains(summary, "4 Cluster\n") || !strings.Contains(summary, "need a decision") {
		t.Errorf("the summary is %q", summary)
	}
	first := files(t, dir)

	t.Run("what the real API server gave is exported as what the tables have", func(t *testing.T) {
		want := files(t, testkit.Path(t, "cmd/kubectl-drover/rancher/testdata/golden"))
		for name, got := range first {
			_, content, _ := strings.Cut(got, "\n")
			_, golden, found := strings.Cut(want[name], "\n")
			if name != sumsFile && (!found || content != golden) {
				t.Errorf("%s:\n%s\nwant:\n%s", name, content, golden)
			}
		}
		if len(first) != len(want)+1 {
			t.Errorf("%d files, want %d and %s", len(first), len(want), sumsFile)
		}
	})
	t.Run("a second export changes nothing", func(t *testing.T) {
		s.mustExport(t, dir, "-w", "team-a")
		same(t, files(t, dir), first)
	})
	t.Run("no value of a Secret and no variable of an agent is in it", func(t *testing.T) {
		for name, content := range first {
			if strings.Contains(content, "swordfish") || strings.Contains(content, "c3dvcmRmaXNo") {
				t.Errorf("%s has it:\n%s", name, content)
			}
		}
	})
	t.Run("the hub takes all of it, and applying it again changes nothing", func(t *testing.T) {
		s.apply(t, dir, "--server-side", "--dry-run=server")
		s.apply(t, dir)
		for line := range strings.Lines(s.apply(t, dir)) {
			if !strings.HasSuffix(line, " unchanged\n") {
				t.Error(line)
			}
		}
		var bindings v1.ProjectRoleTemplateBindingList
		if err := s.Client.List(t.Context(), &bindings, client.InNamespace("team-a")); err != nil || len(bindings.Items) != 3 {
			t.Errorf("%d bindings of projects, %v", len(bindings.Items), err)
		}
	})
	t.Run("names that a person completed bring their bindings", func(t *testing.T) { testPrincipals(t, s, dir) })
	t.Run("namespaces and Plans of a member are read there", func(t *testing.T) { testMemberContext(t, s) })
	t.Run("CVE-2021-36782: Secrets are written if they are asked for, and for their owner only", func(t *testing.T) { testSecrets(t, s) })
	t.Run("what may not be read keeps the folder as it is", func(t *testing.T) { testForbidden(t, s, dir) })
	t.Run("the ClusterRole of the docs is enough, and nothing of it can go", func(t *testing.T) { testRights(t, s) })
	t.Run("answers to wrong command lines", func(t *testing.T) { testWrongLines(t, s) })
}

func testPrincipals(t *testing.T, s *rancherServer, dir string) {
	file := filepath.Join(dir, "principals.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	edited := strings.Replace(string(text), "name: \"\"\n  rancher: github_team://3001", "name: github:acme/web\n  rancher: github_team://3001", 1)
	if edited == string(text) {
		t.Fatalf("the team is not open in\n%s", text)
	}
	put(t, file, edited)
	code, _, complaints := s.export(t, dir, "-w", "team-a")
	if code != cli.ExitError || !strings.Contains(complaints, "principals.yaml was changed since the last export") {
		t.Fatalf("exit code %d: %s", code, complaints)
	}
	s.mustExport(t, dir, "-w", "team-a", "--principals", file)
	binding, err := os.ReadFile(filepath.Join(dir, "clusters/prod-eu/bindings/prod-eu-web-shop-prtb-web.yaml"))
	if err != nil || !strings.Contains(string(binding), "kind: Group\n    name: github:acme/web\n") {
		t.Errorf("%v:\n%s", err, binding)
	}
	again, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(again), "name: github:acme/web\n  rancher: github_team://3001") {
		t.Errorf("%v:\n%s", err, again)
	}
	s.apply(t, dir)
	before := files(t, dir)
	s.mustExport(t, dir, "-w", "team-a", "--principals", file)
	same(t, files(t, dir), before)
}

func testMemberContext(t *testing.T, s *rancherServer) {
	for name, project := range map[string]string{"shop": "c-m-2x7kq9wd:p-web01", "shop-db": "c-m-2x7kq9wd:p-web01", "foreign": "c-4hq8t:p-web01", "free": ""} {
		s.Apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"field.cattle.io/projectId": project}}})
	}
	dir := filepath.Join(t.TempDir(), "fleet")
	s.mustExport(t, dir, "-w", "team-a", "--cluster", "c-m-2x7kq9wd", "--member-context", "prod-eu=rancher-local")
	found := files(t, dir)
	if got := found["clusters/prod-eu/projects/prod-eu-web-shop.yaml"]; !strings.Contains(got, "  namespaces:\n  - shop\n  - shop-db\n") {
		t.Errorf("the Project is\n%s", got)
	}
	if got := found["clusters/prod-eu/plans/prod-eu-k3s-server.yaml"]; !strings.Contains(got, "clusterName: prod-eu") || !strings.Contains(got, "paused: true") {
		t.Errorf("the Plan is\n%s", got)
	}
	for name := range found {
		if strings.HasPrefix(name, "clusters/edge") {
			t.Errorf("%s is of a cluster that was not asked for", name)
		}
	}
	s.apply(t, dir, "--dry-run=server")
}

func testSecrets(t *testing.T, s *rancherServer) {
	dir := filepath.Join(t.TempDir(), "fleet")
	s.mustExport(t, dir, "-w", "team-a", "--with-secrets")
	found := files(t, dir)
	for name, text := range found {
		if inside := strings.HasPrefix(name, "secrets/"); inside != strings.HasPrefix(text, "-rw-------\n") || !inside && strings.Contains(text, "c3dvcmRmaXNo") {
			t.Errorf("%s is\n%s", name, text)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "secrets")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder has mode %v, %v", info.Mode(), err)
	}
	if strings.Contains(found[sumsFile], "secrets/") || strings.Contains(found["kustomization.yaml"], "secrets") || !strings.Contains(found["secrets/.gitignore"], "*") {
		t.Errorf("Secrets are with what is committed:\n%s\n%s", found[sumsFile], found["kustomization.yaml"])
	}
	s.apply(t, filepath.Join(dir, "secrets"))
	var secret corev1.Secret
	if err := s.Client.Get(t.Context(), client.ObjectKey{Namespace: "team-a", Name: "registry"}, &secret); err != nil {
		t.Fatal(err)
	}
	if string(secret.Data["password"]) != "swordfish" || secret.Labels[v1.LabelProject] != "prod-eu-web-shop" || secret.Annotations[v1.AnnotationExceptNamespaces] != "web-a,web-b" {
		t.Errorf("the Secret is %+v", secret)
	}
	s.mustExport(t, dir, "-w", "team-a", "--with-secrets")
	same(t, files(t, dir), found)
}

// exportRole returns the ClusterRole in docs/guide/from-rancher.md, without the commented part.
func exportRole(t *testing.T) *rbacv1.ClusterRole {
	t.Helper()
	page, err := os.ReadFile(testkit.Path(t, "docs/guide/from-rancher.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```yaml\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\n")
	text, _, _ = strings.Cut(text, "```")
	role := &rbacv1.ClusterRole{}
	if err := yaml.UnmarshalStrict([]byte(text), role); err != nil || len(role.Rules) == 0 {
		t.Fatalf("%+v, %v", role, err)
	}
	return role
}

// as grants a user the rules, and waits until they take effect.
func (s *rancherServer) as(t *testing.T, user string, rules []rbacv1.PolicyRule) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: user}
	s.Apply(t, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules})
	s.Apply(t, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}})
	s.AwaitRights(t, user, "", rules...)
}

func testForbidden(t *testing.T, s *rancherServer, dir string) {
	rules := exportRole(t).Rules
	rules[0].Resources = slices.DeleteFunc(slices.Clone(rules[0].Resources), func(r string) bool { return r == "projectroletemplatebindings" })
	s.as(t, "half", rules)
	before := files(t, dir)
	principals := filepath.Join(dir, "principals.yaml")
	code, _, complaints := s.export(t, dir, "-w", "team-a", "--as", "half", "--principals", principals)
	if code != cli.ExitError || !strings.Contains(complaints, "nothing was written") || !strings.Contains(complaints, "projectroletemplatebindings.management.cattle.io: you may not list them") {
		t.Errorf("exit code %d: %s", code, complaints)
	}
	same(t, files(t, dir), before)
	other := filepath.Join(t.TempDir(), "fleet")
	code, _, complaints = s.export(t, other, "-w", "team-a", "--as", "half", "--partial")
	report := files(t, other)["REPORT.md"]
	if code != cli.ExitError || !strings.Contains(complaints, "not everything could be read") || !strings.Contains(report, "## Objects that could not be read") || !strings.Contains(report, "`projectroletemplatebindings.management.cattle.io`") {
		t.Errorf("exit code %d: %s\n%s", code, complaints, report)
	}
	code, _, complaints = s.export(t, other, "-w", "team-a", "--as", "no-one", "--partial")
	if code != cli.ExitError || !strings.Contains(complaints, "list clusters.management.cattle.io") {
		t.Errorf("exit code %d: %s", code, complaints)
	}
}

func testRights(t *testing.T, s *rancherServer) {
	s.as(t, "exporter", exportRole(t).Rules)
	dir := filepath.Join(t.TempDir(), "fleet")
	s.mustExport(t, dir, "-w", "team-a", "--as", "exporter")
	if report := files(t, dir)["REPORT.md"]; !strings.Contains(report, "You may not list Secrets") {
		t.Errorf("Secrets are not said to be unread:\n%s", report)
	}
	for i, rule := range exportRole(t).Rules {
		for j, resource := range rule.Resources {
			rules := exportRole(t).Rules
			rules[i].Resources = slices.Delete(rules[i].Resources, j, j+1)
			if len(rules[i].Resources) == 0 {
				rules = slices.Delete(rules, i, i+1)
			}
			user := "without-" + resource + "." + rule.APIGroups[0]
			s.as(t, user, rules)
			if code, _, complaints := s.export(t, filepath.Join(t.TempDir(), "fleet"), "-w", "team-a", "--as", user); code != cli.ExitError || !strings.Contains(complaints, resource+"."+rule.APIGroups[0]) {
				t.Errorf("without %s: exit code %d: %s", resource, code, complaints)
			}
		}
	}
}

func testWrongLines(t *testing.T, s *rancherServer) {
	dir := filepath.Join(t.TempDir(), "fleet")
	put(t, filepath.Join(dir, "bad.yaml"), "principals: [{rancher: x, kind: User, name: 'system:masters'}]")
	for line, want := range map[string]string{
		"":                                   "requires a folder",
		dir:                                  "set --workspace",
		dir + " -w ../x":                     "set --workspace",
		dir + " -w team-a -o xml":            "use text, json or yaml",
		dir + " -w team-a --cluster nope":    "rancher has no cluster nope",
		dir + " -w team-a --principals nope": "read principals",
		dir + " -w team-a --principals " + dir + "/bad.yaml":   "is not a valid name in a binding",
		dir + " -w team-a --member-context prod-eu":            "use CLUSTER=CONTEXT",
		dir + " -w team-a --member-context nope=rancher-local": "use CLUSTER=CONTEXT",
		dir + " -w team-a --member-context prod-eu=not-there":  "--member-context prod-eu=not-there: read kubeconfig",
	} {
		if code, _, complaints := s.export(t, strings.Fields(line)...); code != cli.ExitError || !strings.Contains(complaints, want) {
			t.Errorf("%q: exit code %d: %s, want %q", line, code, complaints, want)
		}
	}
	expectTree(t, dir, map[string]string{"bad.yaml": "principals: [{rancher: x, kind: User, name: 'system:masters'}]"})
	out := s.mustExport(t, dir, "-w", "team-a", "-o", "json")
	var report rancher.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil || report.Exported["Cluster"] != 4 || report.Count(rancher.Decide) == 0 {
		t.Errorf("%+v, %v", report, err)
	}
	if strings.ContainsAny(out, "\x1b\u202e") {
		t.Errorf("a terminal obeys what is printed: %q", out)
	}
}
