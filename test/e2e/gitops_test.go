// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// envGitOpsTranscripts is the environment variable with a folder for transcripts of the runs with Flux and Argo CD.
// There is one Markdown file for each.
const envGitOpsTranscripts = "DROVER_GITOPS_TRANSCRIPTS"

// teamSpace is the workspace of the tests of GitOps tools, and web the Cluster in it, as in docs/guide/gitops.md.
const teamSpace = "team"

// gitOps is a hub and a member, with a GitOps tool that runs beside the hub and reads a repository on the loopback
// address.
type gitOps struct {
	*system
	tool       *lab.Tool
	git        *repository
	cluster    types.NamespacedName
	transcript io.Writer
	// joined is the Cluster's agent.
	joined *framework.Agent
}

// startGitOps starts everything except the tool's processes. It builds the tool before it takes one of the slots for
// hubs.
func startGitOps(t *testing.T, name string, build func(context.Context, io.Writer) (*lab.Tool, error)) *gitOps {
	t.Helper()
	g := &gitOps{git: serveGit(t), cluster: types.NamespacedName{Namespace: teamSpace, Name: "web"}, transcript: io.Discard}
	var err error
	if g.tool, err = build(t.Context(), os.Stderr); err != nil {
		t.Skipf("%s cannot be built here: %v", name, err)
	}
	if folder := os.Getenv(envGitOpsTranscripts); folder != "" {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		file, err := os.Create(filepath.Join(folder, strings.ToLower(strings.ReplaceAll(name, " ", ""))+".md"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = file.Close() })
		g.transcript = file
		fmt.Fprintf(file, "# Drover and %s\n\nWhat `%s` did, written by the test itself: `%s=FOLDER go test ./test/e2e -run %s`.\n", name, t.Name(), envGitOpsTranscripts, t.Name())
	}
	g.system = start(t)
	create(t, g.hub.Plane, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: teamSpace}})
	return g
}

// note writes a sentence into the transcript.
func (g *gitOps) note(format string, args ...any) {
	fmt.Fprintf(g.transcript, "\n"+format+"\n", args...)
}

// step runs a subtest, and adds a section with its name to the transcript.
func (g *gitOps) step(t *testing.T, name string, run func(t *testing.T)) {
	t.Helper()
	fmt.Fprintf(g.transcript, "\n## %s\n", name)
	if !t.Run(name, run) {
		t.FailNow() // the next steps build on this one
	}
}

// show runs kubectl as the hub's administrator, and writes the command and its output into the transcript.
func (g *gitOps) show(t *testing.T, plane *framework.Plane, args ...string) string {
	t.Helper()
	out, err := plane.Kubectl(t.Context(), nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	where := "hub"
	if plane == g.member {
		where = "member"
	}
	fmt.Fprintf(g.transcript, "\n```\n%s$ kubectl %s\n%s```\n", where, strings.Join(args, " "), out)
	return out
}

// install applies the CRDs in a folder of the tool's sources, and creates a ServiceAccount with the rights of an
// administrator. It returns the path of a kubeconfig of the ServiceAccount.
func (g *gitOps) install(t *testing.T, namespace, account string, crds map[string]string) string {
	t.Helper()
	for module, folder := range crds {
		sources, err := g.tool.Sources(t.Context(), module)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.hub.Kubectl(t.Context(), nil, "apply", "--server-side", "-k", filepath.Join(sources, folder)); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error { // kubectl gives up on an object without a status
		_, err := g.hub.Kubectl(ctx, nil, "wait", "--for=condition=Established", "crd", "--all")
		return err
	})
	create(t, g.hub.Plane, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	create(t, g.hub.Plane, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}})
	create(t, g.hub.Plane, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: account},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}}})
	file := filepath.Join(g.dir, account+".kubeconfig")
	if err := framework.WriteKubeconfig(file, g.hub.Plane.URL(), g.hub.CA(), g.token(t, namespace, account)); err != nil {
		t.Fatal(err)
	}
	return file
}

// token returns a token of a ServiceAccount of the hub, for the given audiences or for the API server.
func (g *gitOps) token(t *testing.T, namespace, account string, audiences ...string) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
	object := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}}
	if err := g.hub.Client.SubResource("token").Create(t.Context(), object, request); err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}

// run starts a program of the tool until the test ends.
func (g *gitOps) run(t *testing.T, command lab.Command) *lab.Process {
	t.Helper()
	command.LogFile = filepath.Join(g.dir, command.Name+".log")
	process, err := command.Start()
	if err != nil {
		t.Fatal(err)
	}
	g.t.Cleanup(func() {
		_ = process.Kill()
		if g.t.Failed() {
			g.t.Logf("%s:\n%s", command.Name, tail(command.LogFile))
		}
	})
	return process
}

// join starts the agent after the tool has delivered the Cluster.
func (g *gitOps) join(t *testing.T) {
	t.Helper()
	cluster := &v1.Cluster{}
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error { return g.hub.Client.Get(ctx, g.cluster, cluster) })
	manifest, err := g.hub.Manifest(within(t, time.Minute), g.cluster, cluster.UID)
	if err != nil {
		t.Fatal(err)
	}
	g.joined = g.agent(t, manifest, "web", g.member, protocol.AgentNamespace)
}

// object reads an object of the hub of any kind.
func (g *gitOps) object(ctx context.Context, kind schema.GroupVersionKind, key types.NamespacedName) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kind)
	return o, g.hub.Client.Get(ctx, key, o)
}

// versions returns the resourceVersions of all Drover objects on the hub.
func (g *gitOps) versions(t *testing.T) map[string]string {
	t.Helper()
	versions := map[string]string{}
	for _, list := range []client.ObjectList{&v1.ClusterList{}, &v1.ProjectList{}, &v1.RoleTemplateList{}, &v1.PlanList{},
		&v1.ClusterRoleTemplateBindingList{}, &v1.ProjectRoleTemplateBindingList{}} {
		if err := g.hub.Client.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		items, err := meta.ExtractList(list)
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range items {
			o := item.(client.Object)
			versions[fmt.Sprintf("%T %s", o, client.ObjectKeyFromObject(o))] = o.GetResourceVersion()
		}
	}
	return versions
}

// unchanged calls look, and fails if any component has written a Drover object since before.
func (g *gitOps) unchanged(t *testing.T, look func()) {
	t.Helper()
	before := g.versions(t)
	look()
	after := g.versions(t)
	for name, version := range after {
		if before[name] != version {
			t.Errorf("%s was written", name)
		}
	}
	g.note("%d objects of Drover have the resourceVersions that they had.", len(after))
}

// notCounted are requests that store nothing, and Argo CD's updates of its own object with the time of the last
// comparison.
var notCounted = regexp.MustCompile(`reviews/$|^PATCH applications/$`)

// idle fails if objects on the hub or in the member are written while nothing changes. No node runs the agent's
// Deployment here, so its deadline is exceeded once, and this is reported before idle starts to compare.
func (g *gitOps) idle(t *testing.T) {
	t.Helper()
	was := g.deployment(t)
	more := g.written(t)
	if g.deployment(t) != was {
		g.await(t, g.cluster, time.Minute, func(c *v1.Cluster) bool {
			up := meta.FindStatusCondition(c.Status.Conditions, v1.ConditionAgentUpToDate)
			return up != nil && up.Reason == v1.ReasonAgentNotReady
		})
		more = g.written(t)
	}
	for _, kind := range more {
		t.Errorf("in %s there were, though nothing changed: %s", idleFor, kind)
	}
	g.note("In %s neither the API server of the hub nor that of the member served a request that writes.", idleFor)
}

// deployment returns the resourceVersion of the agent's Deployment.
func (g *gitOps) deployment(t *testing.T) string {
	t.Helper()
	d := &appsv1.Deployment{}
	if err := g.member.Client.Get(t.Context(), types.NamespacedName{Namespace: protocol.AgentNamespace, Name: protocol.AgentName}, d); err != nil {
		t.Fatal(err)
	}
	return d.ResourceVersion
}

// written returns the write requests to the hub and the member within a period.
func (g *gitOps) written(t *testing.T) (requests []string) {
	t.Helper()
	planes := map[string]*framework.Plane{"hub": g.hub.Plane, "member": g.member}
	before := map[string]map[string]int{}
	for name, plane := range planes {
		before[name] = writes(t, plane)
	}
	<-time.After(idleFor)
	for name, plane := range planes {
		for kind, n := range writes(t, plane) {
			if more := n - before[name][kind]; more > 0 && !notCounted.MatchString(kind) {
				requests = append(requests, fmt.Sprintf("%s: %d times %s", name, more, kind))
			}
		}
	}
	return requests
}

// gone waits until the hub has no Drover objects except the role templates that are part of the installation.
func (g *gitOps) gone(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, 2*time.Minute, func(context.Context) error {
		left := slices.DeleteFunc(slices.Sorted(maps.Keys(g.versions(t))), func(name string) bool {
			return strings.Contains(name, "RoleTemplate /") && !strings.HasSuffix(name, "/deployer")
		})
		if len(left) > 0 {
			return fmt.Errorf("still there: %v", left)
		}
		return nil
	})
}

// teamFiles are the files that a team stores in Git: a Cluster, and the rights of the team's members.
func teamFiles() map[string]string {
	header := func(kind, name string) string {
		text := "apiVersion: cluster.drover.dev/v1\nkind: " + kind + "\nmetadata:\n  name: " + name + "\n"
		if kind != "RoleTemplate" {
			text += "  namespace: " + teamSpace + "\n"
		}
		return text
	}
	return map[string]string{
		"fleet/cluster.yaml": header("Cluster", "web") + "  labels: {env: prod}\nspec: {}\n",
		"fleet/role.yaml": header("RoleTemplate", "deployer") + "spec:\n  context: Project\n  inherits: [project-viewer]\n  rules:\n" +
			"  - {apiGroups: [apps], resources: [deployments], verbs: [\"*\"]}\n",
		"fleet/project.yaml": header("Project", "web") + "spec:\n  clusterSelector: {matchLabels: {env: prod}}\n  namespaces: [web]\n" +
			"  resourceQuota: {limits.cpu: \"8\"}\n  namespaceDefaultResourceQuota: {limits.cpu: \"4\"}\n  containerDefaults: {limits: {cpu: 500m}}\n",
		"fleet/devs.yaml": header("ProjectRoleTemplateBinding", "web-devs") +
			"spec: {projectName: web, roleTemplateName: deployer, subject: {kind: Group, name: \"github:acme/web\"}}\n",
		"fleet/alice.yaml": header("ClusterRoleTemplateBinding", "alice") +
			"spec: {clusterName: web, roleTemplateName: cluster-viewer, subject: {kind: User, name: \"github:alice\"}}\n",
		"fleet/plan.yaml": header("Plan", "upgrade") + "spec:\n  clusterSelector: {matchLabels: {env: prod}}\n" +
			"  nodeSelector: {matchLabels: {kubernetes.io/os: linux}}\n  version: v1.36.3\n  upgrade: {image: registry.example.com/upgrade}\n",
	}
}

// with returns a copy of files in which files are added or replaced, or removed if their content is empty.
func with(files, others map[string]string) map[string]string {
	all := maps.Clone(files)
	maps.Copy(all, others)
	maps.DeleteFunc(all, func(_, content string) bool { return content == "" })
	return all
}

// app is an application in namespace web of the member.
func app(version int) map[string]string {
	return map[string]string{"web/site.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: site, namespace: web}\ndata: {version: \"" + strconv.Itoa(version) + "\"}\n" +
		"---\napiVersion: v1\nkind: Service\nmetadata: {name: site, namespace: web}\nspec: {selector: {app: site}, ports: [{port: 80}]}\n"}
}

// awaitSite waits until the application in the member has the given version. Version 0 means that the application does
// not exist.
func (g *gitOps) awaitSite(t *testing.T, version int) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		site := &corev1.ConfigMap{}
		err := g.member.Client.Get(ctx, types.NamespacedName{Namespace: "web", Name: "site"}, site)
		switch {
		case client.IgnoreNotFound(err) != nil:
			return err
		case err != nil && version == 0:
			return nil
		case err != nil:
			return err
		case site.Data["version"] != strconv.Itoa(version): // none has version 0
			return fmt.Errorf("the member has version %q of the application, want %d", site.Data["version"], version)
		}
		return nil
	})
}
