// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

const argoNamespace = "argocd"

var application = schema.GroupVersionKind{Group: "argoproj.io", Version: "v1alpha1", Kind: "Application"}

// argoCD is a hub with Argo CD's application-controller and repo-server, and a Redis.
type argoCD struct {
	*gitOps
	sources string
}

// TestLong_ArgoCDDeliversFromGitToHubAndMember runs Argo CD itself. It delivers Drover's objects to the hub, and an
// application to a member through the hub's proxy.
func TestLong_ArgoCDDeliversFromGitToHubAndMember(t *testing.T) {
	t.Parallel()
	redis, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("no redis-server is installed")
	}
	a := &argoCD{gitOps: startGitOps(t, "Argo CD", lab.ArgoCDTool)}
	a.startControllers(t, redis)
	a.step(t, "Argo CD's own interpreter says what the tests of the health script expect", a.health)
	a.git.commit(t, "A fleet", teamFiles())
	a.step(t, "what Git has is delivered at the first try, Progressing until the member has it, then Healthy", a.firstTry)
	a.step(t, "Argo CD finds no drift, and nothing is written while nothing changes", func(t *testing.T) {
		a.unchanged(t, func() { a.refresh(t, "fleet") })
		a.idle(t)
	})
	a.step(t, "what a person changes is put back", a.selfHeal)
	a.step(t, "what a person must mend, and a member that is lost, are Degraded, and Healthy again when that is over", a.degraded)
	a.step(t, "an application is delivered into the member with tokens for that member and no stored credential", a.application)
	a.step(t, "it waits for a member that has not joined, as the guide says", a.everyMember)
	a.step(t, "objects may be pruned in any order", a.pruned)
}

// startControllers starts Argo CD with the commands of its Procfile, but without its server.
func (a *argoCD) startControllers(t *testing.T, redis string) {
	t.Helper()
	const module = "github.com/argoproj/argo-cd/v3"
	kubeconfig := a.install(t, argoNamespace, "argocd-application-controller", map[string]string{module: "manifests/crds"})
	a.note("Argo CD %s: application-controller and repo-server, Git over HTTP by git http-backend.", a.tool.Version)
	var err error
	if a.sources, err = a.tool.Sources(t.Context(), module); err != nil {
		t.Fatal(err)
	}
	a.configure(t)
	address := func() (string, string) {
		free, err := lab.FreeAddress("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(free)
		return free, port
	}
	store, storePort := address()
	repo, repoPort := address()
	_, repoMetrics := address()
	_, metrics := address()
	folders := t.TempDir()
	env := append(os.Environ(), gitEnv()...)
	env = append(env, "KUBECONFIG="+kubeconfig, "ARGOCD_FAKE_IN_CLUSTER=true", "ARGOCD_GPG_ENABLED=false", "TMPDIR="+folders, "HOME="+folders)
	for variable, folder := range map[string]string{"ARGOCD_TLS_DATA_PATH": "tls", "ARGOCD_SSH_DATA_PATH": "ssh", "ARGOCD_GNUPGHOME": "gpg", "ARGOCD_GPG_DATA_PATH": "keys", "ARGOCD_PLUGINSOCKFILEPATH": "plugins"} {
		if err := os.Mkdir(filepath.Join(folders, folder), 0o700); err != nil {
			t.Fatal(err)
		}
		env = append(env, variable+"="+filepath.Join(folders, folder))
	}
	env = append(env, "PATH="+a.scripts(t)+":"+pluginDir(t)+":"+os.Getenv("PATH"))
	program := a.tool.Assets[lab.ArgoCD]
	a.run(t, lab.Command{Name: "redis", Path: redis, WorkDir: folders, Args: []string{"--bind", "127.0.0.1", "--port", storePort, "--save", "", "--appendonly", "no"}})
	a.run(t, lab.Command{Name: "argocd-repo-server", Path: program, WorkDir: folders, Env: append(env, "ARGOCD_BINARY_NAME=argocd-repo-server"),
		Args: []string{"--address=127.0.0.1", "--port=" + repoPort, "--metrics-address=127.0.0.1", "--metrics-port=" + repoMetrics, "--redis=" + store, "--disable-tls", "--client-ca-path="}})
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", repo)
		if err == nil {
			err = connection.Close()
		}
		return err
	})
	a.run(t, lab.Command{Name: "argocd-application-controller", Path: program, WorkDir: folders, Env: append(env, "ARGOCD_BINARY_NAME=argocd-application-controller"),
		Args: []string{"--kubeconfig=" + kubeconfig, "--namespace=" + argoNamespace, "--metrics-port=" + metrics, "--redis=" + store,
			"--repo-server=" + repo, "--repo-server-plaintext", "--app-resync=86400", "--app-resync-jitter=0", "--self-heal-timeout-seconds=1"}})
}

// scripts returns a folder with the script that is in the PATH of Argo CD's image.
func (a *argoCD) scripts(t *testing.T) string {
	t.Helper()
	const name = "git-verify-wrapper.sh"
	folder := t.TempDir()
	script, err := os.ReadFile(filepath.Join(a.sources, "hack", name))
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, name), script, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

// configure applies Argo CD's own configuration, with the health checks of Drover's kinds from config/argocd.
func (a *argoCD) configure(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{
		{"apply", "-n", argoNamespace, "-k", filepath.Join(a.sources, "manifests/base/config")},
		{"-n", argoNamespace, "patch", "secret", "argocd-secret", "-p", `{"stringData": {"server.secretkey": "of-a-test"}}`},
		{"-n", argoNamespace, "patch", "configmap", "argocd-cm", "--type", "merge", "--patch-file", "config/argocd/argocd-cm.yaml"},
		// In the member, the deployer may not list all kinds.
		{"-n", argoNamespace, "patch", "configmap", "argocd-cm", "--type", "merge", "-p", `{"data": {"resource.respectRBAC": "strict"}}`},
	} {
		if _, err := a.hub.Kubectl(t.Context(), nil, args...); err != nil {
			t.Fatal(err)
		}
	}
	project := `{"apiVersion": "argoproj.io/v1alpha1", "kind": "AppProject", "metadata": {"name": "default", "namespace": "argocd"}, "spec": {
		"sourceRepos": ["*"], "destinations": [{"server": "*", "namespace": "*"}], "clusterResourceWhitelist": [{"group": "*", "kind": "*"}]}}`
	if _, err := a.hub.Kubectl(t.Context(), []byte(project), "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// deliver creates an Application that delivers a folder of the repository.
func (a *argoCD) deliver(t *testing.T, name, server, namespace string) {
	t.Helper()
	manifest := `apiVersion: argoproj.io/v1alpha1
kind: Application
metadata:
  name: ` + name + `
  namespace: argocd
  finalizers: [resources-finalizer.argocd.argoproj.io]
spec:
  project: default
  source: {repoURL: "` + a.git.url + `", path: ` + name + `, targetRevision: main}
  destination: {server: "` + server + `", namespace: ` + namespace + `}
  syncPolicy:
    automated: {prune: true, selfHeal: true, allowEmpty: true}
    syncOptions: [ServerSideApply=true]
`
	if _, err := a.hub.Kubectl(t.Context(), []byte(manifest), "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(a.transcript, "\n```yaml\n%s```\n", manifest)
}

// health runs the health script with Argo CD's command for each object in health_test.yaml.
func (a *argoCD) health(t *testing.T) {
	folder := filepath.Join(a.programs.Root, "config", "argocd", "resource_customizations", "cluster.drover.dev", "_")
	raw, err := os.ReadFile(filepath.Join(folder, "health_test.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Tests []struct {
			InputPath    string `json:"inputPath"`
			HealthStatus struct{ Status, Message string }
		} `json:"tests"`
	}
	if err := yaml.Unmarshal(raw, &file); err != nil || len(file.Tests) == 0 {
		t.Fatalf("there are %d tests (%v)", len(file.Tests), err)
	}
	for _, tt := range file.Tests {
		command := exec.CommandContext(t.Context(), a.tool.Assets[lab.ArgoCD], "admin", "settings", "resource-overrides", "health", filepath.Join(folder, tt.InputPath),
			"--argocd-cm-path", filepath.Join(a.programs.Root, "config", "argocd", "argocd-cm.yaml"))
		command.Env = append(os.Environ(), "ARGOCD_BINARY_NAME=argocd", "HOME="+a.dir)
		out, err := command.Output()
		if want := "STATUS: " + tt.HealthStatus.Status + "\nMESSAGE: " + tt.HealthStatus.Message; err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%s: Argo CD says %q (%v), want %q", tt.InputPath, out, err, want)
		}
	}
	a.note("%d objects have the health that is expected.", len(file.Tests))
}

func (a *argoCD) firstTry(t *testing.T) {
	a.deliver(t, "fleet", "https://kubernetes.default.svc", teamSpace)
	a.await(t, "fleet", "Progressing")
	a.note("No agent has joined yet.")
	a.show(t, a.hub.Plane, "get", "applications,clusters", "--all-namespaces")
	a.join(t)
	a.await(t, "fleet", "Healthy")
	a.show(t, a.hub.Plane, "get", "applications,clusters,projects,plans,prtb,crtb", "--all-namespaces")
	a.succeededAtOnce(t, "fleet")
}

// succeededAtOnce checks that an Application was synced once, and that the sync never failed.
func (a *argoCD) succeededAtOnce(t *testing.T, name string) {
	t.Helper()
	o, err := a.object(t.Context(), application, types.NamespacedName{Namespace: argoNamespace, Name: name})
	if err != nil {
		t.Fatal(err)
	}
	history, _, _ := unstructured.NestedSlice(o.Object, "status", "history")
	phase, _, _ := unstructured.NestedString(o.Object, "status", "operationState", "phase")
	retries, _, _ := unstructured.NestedInt64(o.Object, "status", "operationState", "retryCount")
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	if len(history) != 1 || phase != "Succeeded" || retries != 0 || len(conditions) != 0 {
		t.Errorf("the Application %s was synced %d times, with the phase %s after %d retries and the conditions %v", name, len(history), phase, retries, conditions)
	}
}

// await waits until an Application has synced the latest commit and has the given health. It returns the Application.
func (a *argoCD) await(t *testing.T, name, health string) {
	t.Helper()
	head := a.git.head(t)
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		o, err := a.object(ctx, application, types.NamespacedName{Namespace: argoNamespace, Name: name})
		if err != nil {
			return err
		}
		status, _, _ := unstructured.NestedMap(o.Object, "status")
		field := func(path ...string) string {
			value, _, _ := unstructured.NestedString(status, path...)
			return value
		}
		if field("sync", "status") != "Synced" || field("sync", "revision") != head || field("health", "status") != health || field("operationState", "phase") != "Succeeded" {
			raw, _ := json.Marshal(map[string]any{"sync": status["sync"], "health": status["health"], "resources": status["resources"], "conditions": status["conditions"], "operation": status["operationState"]})
			return fmt.Errorf("the Application %s is %s, want Synced with %s and %s", name, raw, head, health)
		}
		return nil
	})
}

// refresh makes Argo CD compare an Application with the hub, and waits until this is done.
func (a *argoCD) refresh(t *testing.T, name string) {
	t.Helper()
	const annotation = "argocd.argoproj.io/refresh"
	if _, err := a.hub.Kubectl(t.Context(), nil, "-n", argoNamespace, "annotate", "--overwrite", "applications.argoproj.io", name, annotation+"=hard"); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		o, err := a.object(ctx, application, types.NamespacedName{Namespace: argoNamespace, Name: name})
		if err == nil && o.GetAnnotations()[annotation] != "" {
			err = fmt.Errorf("the Application %s was not compared yet", name)
		}
		return err
	})
}

// push pushes a commit, and makes Argo CD read it now.
func (a *argoCD) push(t *testing.T, message string, files map[string]string, names ...string) {
	t.Helper()
	a.git.commit(t, message, files)
	a.note("Commit: %s.", message)
	for _, name := range names {
		a.refresh(t, name)
	}
}

func (a *argoCD) selfHeal(t *testing.T) {
	a.show(t, a.hub.Plane, "-n", teamSpace, "patch", "project", "web", "--type=merge", "-p", `{"spec":{"resourceQuota":{"limits.cpu":"16"}}}`)
	project := &v1.Project{}
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		err := a.hub.Client.Get(ctx, types.NamespacedName{Namespace: teamSpace, Name: "web"}, project)
		if quota := project.Spec.ResourceQuota["limits.cpu"]; err == nil && quota.String() != "8" {
			err = fmt.Errorf("the quota is %s", quota.String())
		}
		return err
	})
	a.await(t, "fleet", "Healthy")
}

func (a *argoCD) degraded(t *testing.T) {
	taken := strings.ReplaceAll(teamFiles()["fleet/project.yaml"], "name: web", "name: shop")
	a.push(t, "A second project with the namespace of the first", with(teamFiles(), map[string]string{"fleet/shop.yaml": taken}), "fleet")
	a.await(t, "fleet", "Degraded")
	a.show(t, a.hub.Plane, "get", "applications,projects", "--all-namespaces")
	a.push(t, "Without the second project", teamFiles(), "fleet")
	a.await(t, "fleet", "Healthy")
	a.note("The agent is stopped.")
	kill(t, a.joined.Process)
	a.await(t, "fleet", "Degraded")
	a.show(t, a.hub.Plane, "get", "applications,clusters", "--all-namespaces")
	a.note("It is started again.")
	a.startAgent(t, a.joined)
	a.await(t, "fleet", "Healthy")
}

// application delivers without a stored credential. Argo CD requests tokens of its ServiceAccount, which has the rights
// of a project-member in the member.
func (a *argoCD) application(t *testing.T) {
	manifest, member := a.guide(t)
	if _, err := a.hub.Kubectl(t.Context(), []byte(manifest), "apply", "--server-side", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(a.transcript, "\n```yaml\n%s```\n", regexp.MustCompile(`"caData": ".*?"`).ReplaceAllString(manifest, `"caData": "…"`))
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error { // else Argo CD finds that it may do nothing, and looks again minutes later
		binding := &v1.ProjectRoleTemplateBinding{}
		err := a.hub.Client.Get(ctx, types.NamespacedName{Namespace: teamSpace, Name: "argocd"}, binding)
		if err == nil && !meta.IsStatusConditionTrue(binding.Status.Conditions, v1.ConditionReady) {
			err = fmt.Errorf("the binding is %+v", binding.Status.Conditions)
		}
		return err
	})
	a.git.commit(t, "An application", with(teamFiles(), app(1)))
	a.deliver(t, "web", member, "web")
	a.awaitSite(t, 1)
	a.await(t, "web", "Healthy")
	a.show(t, a.hub.Plane, "get", "applications,prtb", "--all-namespaces")
	a.show(t, a.member, "-n", "web", "get", "configmaps,services", "--field-selector", "metadata.name=site")
	a.push(t, "The next version", with(teamFiles(), app(2)), "web", "fleet")
	a.awaitSite(t, 2)
	a.await(t, "web", "Healthy")
	a.note("A person deletes a part of it in the member; Argo CD brings it back.")
	a.show(t, a.member, "-n", "web", "delete", "configmap", "site")
	a.awaitSite(t, 2)
	a.await(t, "web", "Healthy")
	a.unchanged(t, func() { a.refresh(t, "web") })
	a.idle(t)
}

// guide returns the Argo CD files of docs/guide/gitops.md, with the address and the CA of this hub, and the address of
// the member.
func (a *argoCD) guide(t *testing.T) (manifest, member string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(a.programs.Root, "docs", "guide", "gitops.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)## Argo CD\n.*?```yaml\n(.*?)```").FindStringSubmatch(string(raw))
	bundle, err := a.hub.Bundle(t.Context())
	if err != nil || block == nil || !strings.Contains(block[1], `"caData": "…"`) {
		t.Fatalf("the guide has no manifest for Argo CD with a place for the CA (%v)", err)
	}
	manifest = strings.Replace(block[1], `"caData": "…"`, `"caData": "`+base64.StdEncoding.EncodeToString(bundle)+`"`, 1)
	return strings.ReplaceAll(manifest, "https://hub.example.com", a.hub.URL()), a.hub.URL() + "/k8s/clusters/" + a.cluster.String()
}

func (a *argoCD) pruned(t *testing.T) {
	a.remove(t, "web")
	a.awaitSite(t, 0)
	// The objects that a binding needs come before the binding, and the Cluster comes before the objects that are
	// delivered to it.
	left := teamFiles()
	for _, name := range []string{"fleet/role.yaml", "fleet/project.yaml", "fleet/cluster.yaml"} {
		delete(left, name)
		a.push(t, "Without "+name, left, "fleet")
		a.awaitSynced(t, "fleet")
	}
	a.show(t, a.hub.Plane, "get", "applications,clusters,projects,plans,prtb,crtb", "--all-namespaces")
	a.remove(t, "fleet")
	if _, err := a.hub.Kubectl(within(t, time.Minute), nil, "-n", teamSpace, "delete", "prtb", "argocd"); err != nil {
		t.Fatal(err)
	}
	a.gone(t)
	a.note("The Applications are deleted, and with them all that they had delivered.")
}

// awaitSynced waits until an Application has synced the latest commit, with any health.
func (a *argoCD) awaitSynced(t *testing.T, name string) {
	t.Helper()
	head := a.git.head(t)
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		o, err := a.object(ctx, application, types.NamespacedName{Namespace: argoNamespace, Name: name})
		if err != nil {
			return err
		}
		status, _, _ := unstructured.NestedString(o.Object, "status", "sync", "status")
		revision, _, _ := unstructured.NestedString(o.Object, "status", "sync", "revision")
		if status != "Synced" || revision != head {
			return fmt.Errorf("the Application %s is %s with %s, want Synced with %s", name, status, revision, head)
		}
		return nil
	})
}

// remove deletes an Application and the objects that it has delivered.
func (a *argoCD) remove(t *testing.T, name string) {
	t.Helper()
	a.show(t, a.hub.Plane, "-n", argoNamespace, "delete", "--wait=false", "applications.argoproj.io", name)
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(application)
	o.SetNamespace(argoNamespace)
	o.SetName(name)
	if err := a.hub.AwaitGone(within(t, 2*time.Minute), o); err != nil {
		t.Fatal(err)
	}
}
