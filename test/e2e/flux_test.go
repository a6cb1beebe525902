// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

var (
	kustomization = schema.GroupVersionKind{Group: "kustomize.toolkit.fluxcd.io", Version: "v1", Kind: "Kustomization"}
	gitRepository = schema.GroupVersionKind{Group: "source.toolkit.fluxcd.io", Version: "v1", Kind: "GitRepository"}
)

// flux is a hub with Flux's source-controller and kustomize-controller.
type flux struct{ *gitOps }

// TestLong_FluxDeliversFromGitToHubAndMember runs Flux itself. It delivers Drover's objects to the hub, and an
// application to a member through the hub's proxy.
func TestLong_FluxDeliversFromGitToHubAndMember(t *testing.T) {
	t.Parallel()
	f := &flux{startGitOps(t, "Flux", lab.Flux)}
	f.startControllers(t)
	f.git.commit(t, "A fleet", teamFiles())
	f.step(t, "what Git has is delivered at the first try, and Ready when the member has it", f.firstTry)
	f.step(t, "Flux finds no drift, and nothing is written while nothing changes", func(t *testing.T) {
		f.unchanged(t, func() { f.reconcile(t, "fleet") })
		f.idle(t)
	})
	f.step(t, "what a person must mend fails the Kustomization at once, and it is Ready again when that is mended", f.failure)
	f.step(t, "an application is delivered into the member with a token for that member, as the guide says", f.application)
	f.step(t, "it waits for a member that has not joined, as the guide says", f.everyMember)
	f.step(t, "objects may be pruned in any order", f.pruned)
}

// startControllers starts Flux with the arguments of its install manifest, but without leader election.
func (f *flux) startControllers(t *testing.T) {
	t.Helper()
	const source = "github.com/fluxcd/"
	kubeconfig := f.install(t, "flux-system", "flux", map[string]string{source + lab.SourceController: "config/crd", source + lab.KustomizeController: "config/crd"})
	f.note("Flux: source-controller and kustomize-controller %s, Git over HTTP by git http-backend.", f.tool.Version)
	free := func() string {
		address, err := lab.FreeAddress("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		return address
	}
	storage := free()
	common := []string{"--enable-leader-election=false", "--metrics-addr=0", "--watch-all-namespaces=true", "--log-level=debug"}
	env := append(os.Environ(), "KUBECONFIG="+kubeconfig, "RUNTIME_NAMESPACE=flux-system")
	f.run(t, lab.Command{Name: lab.SourceController, Path: f.tool.Assets[lab.SourceController], Env: env,
		Args: append([]string{"--health-addr=" + free(), "--storage-path=" + t.TempDir(), "--storage-addr=" + storage, "--storage-adv-addr=" + storage}, common...)})
	f.run(t, lab.Command{Name: lab.KustomizeController, Path: f.tool.Assets[lab.KustomizeController], Env: env,
		Args: append([]string{"--health-addr=" + free(), "--feature-gates=ObjectLevelWorkloadIdentity=true"}, common...)})
}

func (f *flux) apply(t *testing.T, manifest string) {
	t.Helper()
	if _, err := f.hub.Kubectl(t.Context(), []byte(manifest), "apply", "--server-side", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(f.transcript, "\n```yaml\n%s\n```\n", strings.TrimSpace(regexp.MustCompile(`(?s)    -----BEGIN.*?-----END CERTIFICATE-----\n+`).ReplaceAllString(manifest, "    …\n")))
}

func (f *flux) firstTry(t *testing.T) {
	f.apply(t, `apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: web, namespace: team}
spec:
  interval: 10m
  url: `+f.git.url+`
  ref: {branch: main}
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: fleet, namespace: team}
spec:
  interval: 10m
  timeout: 5m
  path: ./fleet
  prune: true
  wait: true
  sourceRef: {kind: GitRepository, name: web}`)
	f.await(t, "fleet", "Unknown", "Progressing", "Reconciliation in progress")
	f.note("No agent has joined yet, so Flux waits.")
	f.show(t, f.hub.Plane, "-n", teamSpace, "get", "kustomizations,clusters")
	f.join(t)
	fleet := f.await(t, "fleet", "True", "ReconciliationSucceeded", "")
	f.show(t, f.hub.Plane, "-n", teamSpace, "get", "kustomizations,clusters,projects,plans,prtb,crtb")
	f.succeededAtOnce(t, fleet, 1)
	f.noWarnings(t)
}

// succeededAtOnce checks that a Kustomization never failed.
func (f *flux) succeededAtOnce(t *testing.T, o *unstructured.Unstructured, attempts int64) {
	t.Helper()
	history, _, err := unstructured.NestedSlice(o.Object, "status", "history")
	if err != nil || len(history) == 0 {
		t.Fatalf("the Kustomization has no history (%v)", err)
	}
	for _, entry := range history {
		snapshot, ok := entry.(map[string]any)
		if !ok || snapshot["lastReconciledStatus"] != "ReconciliationSucceeded" || snapshot["totalReconciliations"] != attempts {
			t.Errorf("the Kustomization's history is %v, want %d attempts that succeeded", history, attempts)
		}
	}
}

// noWarnings checks that Flux has reported no warnings.
func (f *flux) noWarnings(t *testing.T) {
	t.Helper()
	events := &corev1.EventList{}
	if err := f.hub.Client.List(t.Context(), events, client.InNamespace(teamSpace)); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for i := range events.Items {
		e := &events.Items[i]
		if e.InvolvedObject.Kind != kustomization.Kind && e.InvolvedObject.Kind != gitRepository.Kind {
			continue
		}
		if seen++; e.Type != corev1.EventTypeNormal {
			t.Errorf("Flux says of %s: %s %s", e.InvolvedObject.Name, e.Reason, e.Message)
		}
	}
	if seen == 0 {
		t.Error("Flux has written no event at all")
	}
}

// await waits until a Kustomization is Ready, or is not Ready for the given reason, for the latest commit. It returns
// the Kustomization.
func (f *flux) await(t *testing.T, name, status, reason, text string) *unstructured.Unstructured {
	t.Helper()
	var o *unstructured.Unstructured
	testkit.Eventually(t, time.Minute, func(ctx context.Context) (err error) {
		if o, err = f.object(ctx, kustomization, types.NamespacedName{Namespace: teamSpace, Name: name}); err != nil {
			return err
		}
		ready := condition(o, v1.ConditionReady)
		if ready["status"] != status || ready["reason"] != reason || !strings.Contains(fmt.Sprint(ready["message"]), text) {
			return fmt.Errorf("the Kustomization %s is %v, want %s %s %q", name, ready, status, reason, text)
		}
		// While Flux is working, this is the previous commit.
		if revision, _, _ := unstructured.NestedString(o.Object, "status", "lastAttemptedRevision"); status != "Unknown" && !strings.HasSuffix(revision, f.git.head(t)) {
			return fmt.Errorf("the Kustomization %s is about %s", name, revision)
		}
		return nil
	})
	return o
}

// condition returns one of an object's conditions.
func condition(o *unstructured.Unstructured, name string) map[string]any {
	conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == name {
			return c
		}
	}
	return nil
}

// request annotates an object of Flux so that Flux processes it now. It returns the value of the annotation.
func (f *flux) request(t *testing.T, kind schema.GroupVersionKind, name string) string {
	t.Helper()
	mark := time.Now().Format(time.RFC3339Nano)
	if _, err := f.hub.Kubectl(t.Context(), nil, "-n", teamSpace, "annotate", "--overwrite", strings.ToLower(kind.Kind)+"."+kind.Group, name, "reconcile.fluxcd.io/requestedAt="+mark); err != nil {
		t.Fatal(err)
	}
	return mark
}

// reconcile makes Flux compare a Kustomization with the hub, and waits until this is done.
func (f *flux) reconcile(t *testing.T, name string) {
	t.Helper()
	mark := f.request(t, kustomization, name)
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		o, err := f.object(ctx, kustomization, types.NamespacedName{Namespace: teamSpace, Name: name})
		if err != nil {
			return err
		}
		handled, _, _ := unstructured.NestedString(o.Object, "status", "lastHandledReconcileAt")
		if ready := condition(o, v1.ConditionReady); handled != mark || ready["status"] != "True" {
			return fmt.Errorf("the Kustomization %s was looked at %s, and is %v", name, handled, ready)
		}
		return nil
	})
}

// push pushes a commit, and makes Flux fetch it now.
func (f *flux) push(t *testing.T, message string, files map[string]string) {
	t.Helper()
	f.git.commit(t, message, files)
	f.note("Commit: %s.", message)
	f.request(t, gitRepository, "web")
}

func (f *flux) failure(t *testing.T) {
	taken := strings.ReplaceAll(teamFiles()["fleet/project.yaml"], "name: web", "name: shop")
	f.push(t, "A second project with the namespace of the first", with(teamFiles(), map[string]string{"fleet/shop.yaml": taken}))
	f.await(t, "fleet", "False", "HealthCheckFailed", "Project/team/shop status: 'Failed'")
	f.show(t, f.hub.Plane, "-n", teamSpace, "get", "kustomizations,projects")
	f.push(t, "The second project has its own namespace", with(teamFiles(), map[string]string{"fleet/shop.yaml": strings.Replace(taken, "namespaces: [web]", "namespaces: [shop]", 1)}))
	f.await(t, "fleet", "True", "ReconciliationSucceeded", "")
	f.push(t, "Without the second project", teamFiles())
	f.await(t, "fleet", "True", "ReconciliationSucceeded", "")
	if err := f.hub.AwaitGone(within(t, time.Minute), &v1.Project{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: "shop"}}); err != nil {
		t.Error(err)
	}
}

func (f *flux) application(t *testing.T) {
	create(t, f.hub.Plane, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: "deployer"}})
	f.git.commit(t, "An application", with(teamFiles(), app(1)))
	f.request(t, gitRepository, "web")
	f.apply(t, f.guide(t))
	f.awaitSite(t, 1)
	f.await(t, "web", "True", "ReconciliationSucceeded", "")
	f.show(t, f.hub.Plane, "-n", teamSpace, "get", "kustomizations,prtb")
	f.show(t, f.member, "-n", "web", "get", "configmaps,services", "--field-selector", "metadata.name=site")
	f.push(t, "The next version", with(teamFiles(), app(2)))
	f.awaitSite(t, 2)
	f.await(t, "web", "True", "ReconciliationSucceeded", "")
	f.note("A person deletes a part of it in the member; Flux brings it back.")
	f.show(t, f.member, "-n", "web", "delete", "configmap", "site")
	f.reconcile(t, "web")
	f.awaitSite(t, 2)
	f.unchanged(t, func() { f.reconcile(t, "web") })
	f.idle(t)
}

// guide returns the Flux files of docs/guide/gitops.md, with the address and the CA of this hub.
func (f *flux) guide(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(f.programs.Root, "docs", "guide", "gitops.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)## Flux\n.*?```yaml\n(.*?)```").FindStringSubmatch(string(raw))
	if block == nil {
		t.Fatal("the guide has no manifest for Flux")
	}
	bundle, err := f.hub.Bundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	comment := regexp.MustCompile(`    # kubectl .*drover-ca.*\n`)
	if !comment.MatchString(block[1]) {
		t.Fatal("the guide's manifest has no place for the CA")
	}
	indented := "    " + strings.ReplaceAll(strings.TrimSpace(string(bundle)), "\n", "\n    ") + "\n"
	return comment.ReplaceAllLiteralString(strings.ReplaceAll(block[1], "https://hub.example.com", f.hub.URL()), indented)
}

func (f *flux) pruned(t *testing.T) {
	f.show(t, f.hub.Plane, "-n", teamSpace, "delete", "kustomization.kustomize.toolkit.fluxcd.io", "web")
	f.awaitSite(t, 0)
	// The objects that a binding needs come before the binding, and the Cluster comes before the objects that are
	// delivered to it. Flux waits for each object that it prunes.
	if _, err := f.hub.Kubectl(t.Context(), nil, "-n", teamSpace, "patch", "kustomizations.kustomize.toolkit.fluxcd.io", "fleet", "--type=merge", "-p", `{"spec":{"wait":false}}`); err != nil {
		t.Fatal(err)
	}
	left := teamFiles()
	for _, name := range []string{"fleet/role.yaml", "fleet/project.yaml", "fleet/cluster.yaml"} {
		delete(left, name)
		f.push(t, "Without "+name, left)
		f.await(t, "fleet", "True", "ReconciliationSucceeded", "")
	}
	f.show(t, f.hub.Plane, "-n", teamSpace, "get", "kustomizations,clusters,projects,plans,prtb,crtb")
	if _, err := f.hub.Kubectl(within(t, 2*time.Minute), nil, "-n", teamSpace, "delete", "kustomization.kustomize.toolkit.fluxcd.io", "fleet"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.hub.Kubectl(within(t, time.Minute), nil, "-n", teamSpace, "delete", "prtb", "deployer"); err != nil {
		t.Fatal(err)
	}
	f.gone(t)
	f.note("The Kustomizations are deleted, and with them all that they had delivered.")
}
