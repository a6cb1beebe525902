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

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

// allMembers contains the parts of the section "Wait for all members" of docs/guide/gitops.md.
type allMembers struct{ wait, flux, argoCD string }

func guideToAllMembers(t *testing.T) (found allMembers) {
	t.Helper()
	text, err := os.ReadFile(testkit.Path(t, "docs/guide/gitops.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Wait for all members\n")
	blocks := regexp.MustCompile("(?ms)^```(?:sh|yaml)\n(.*?)^```$").FindAllStringSubmatch(section, 3)
	if len(blocks) != 3 || !strings.HasPrefix(blocks[0][1], "kubectl ") {
		t.Fatalf("the guide has %q, want a command and two manifests", blocks)
	}
	return allMembers{blocks[0][1], blocks[1][1], blocks[2][1]}
}

// sharedFiles are the Project and the binding of that section, for the members web and edge.
func sharedFiles() map[string]string {
	return map[string]string{
		"shared/project.yaml": `apiVersion: cluster.drover.dev/v1
kind: Project
metadata: {name: shared, namespace: team}
spec:
  clusterSelector: {matchExpressions: [{key: env, operator: In, values: [prod, edge]}]}
  namespaces: [shared]
`,
		"shared/devs.yaml": `apiVersion: cluster.drover.dev/v1
kind: ProjectRoleTemplateBinding
metadata: {name: shared-devs, namespace: team}
spec:
  projectName: shared
  roleTemplateName: project-viewer
  subject: {kind: Group, name: "github:acme/shared"}
`,
	}
}

// everyMember delivers sharedFiles while the Cluster edge has no agent. waits checks that the tool is not satisfied
// when only the other member is ready. done checks that the tool is satisfied after edge has joined at the given time.
func (g *gitOps) everyMember(t *testing.T, deliver, waits func(), done func(joined time.Time)) {
	t.Helper()
	name := types.NamespacedName{Namespace: teamSpace, Name: "edge"}
	edge := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: name.Namespace, Name: name.Name, Labels: map[string]string{"env": "edge"},
	}}
	create(t, g.hub.Plane, edge)
	deliver()
	testkit.Eventually(t, time.Minute, g.sharedWithoutEdge)
	guide := guideToAllMembers(t)
	wait := strings.Fields(guide.wait)[1:]
	impatient := strings.Fields(strings.Replace(guide.wait, "--timeout=10m", "--timeout=0", 1))[1:]
	if out, err := g.hub.Kubectl(t.Context(), nil, impatient...); err == nil {
		t.Errorf("kubectl is satisfied while a member is missing: %s", out)
	}
	waits()
	g.show(t, g.hub.Plane, "-n", teamSpace, "get", "clusters,projects,prtb")

	g.note("The other member joins.")
	plane, err := g.plane("edge")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Kill() })
	manifest, err := g.hub.Manifest(within(t, time.Minute), name, edge.UID)
	if err != nil {
		t.Fatal(err)
	}
	joined := time.Now()
	g.agent(t, manifest, edge.Name, plane, protocol.AgentNamespace)
	g.await(t, name, time.Minute, framework.Ready)
	g.show(t, g.hub.Plane, wait...)
	done(joined)
}

// sharedWithoutEdge returns nil when the Project shared is Ready, because the member web has it, but not Complete.
func (g *gitOps) sharedWithoutEdge(ctx context.Context) error {
	var project v1.Project
	name := types.NamespacedName{Namespace: teamSpace, Name: "shared"}
	if err := g.hub.Client.Get(ctx, name, &project); err != nil {
		return err
	}
	conditions := project.Status.Conditions
	ready := meta.IsStatusConditionTrue(conditions, v1.ConditionReady)
	if !ready || !meta.IsStatusConditionFalse(conditions, v1.ConditionComplete) {
		return fmt.Errorf("the Project shared is %+v, want it Ready and not Complete", conditions)
	}
	return nil
}

// withoutEdge removes the Cluster edge.
func (g *gitOps) withoutEdge(t *testing.T) {
	t.Helper()
	g.show(t, g.hub.Plane, "-n", teamSpace, "delete", "cluster", "edge", "--wait=false")
	for _, o := range []client.Object{
		&v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: "edge"}},
		&v1.Project{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: "shared"}},
	} {
		if err := g.hub.AwaitGone(within(t, time.Minute), o); err != nil {
			t.Fatal(err)
		}
	}
}

func (f *flux) everyMember(t *testing.T) {
	deliver := func() {
		f.push(t, "A project for a member that has not joined", with(with(teamFiles(), app(2)), sharedFiles()))
		f.apply(t, strings.Replace(guideToAllMembers(t).flux, "timeout: 1h", "timeout: 10s", 1))
	}
	waits := func() {
		f.await(t, "shared", "False", "HealthCheckFailed", "Project/team/shared status: 'InProgress'")
		f.apply(t, guideToAllMembers(t).flux)
		f.await(t, "shared", "Unknown", "Progressing", "")
	}
	f.gitOps.everyMember(t, deliver, waits, func(joined time.Time) {
		ready := condition(f.await(t, "shared", "True", "ReconciliationSucceeded", ""), v1.ConditionReady)
		since, err := time.Parse(time.RFC3339, fmt.Sprint(ready["lastTransitionTime"]))
		if err != nil || since.Before(joined.Truncate(time.Second)) {
			t.Errorf("the Kustomization is Ready since %s (%v), before the member joined at %s", since, err, joined)
		}
	})
	f.show(t, f.hub.Plane, "-n", teamSpace, "get", "kustomizations,clusters,projects,prtb")
	f.show(t, f.hub.Plane, "-n", teamSpace, "delete", "kustomization.kustomize.toolkit.fluxcd.io", "shared")
	f.withoutEdge(t)
}

func (a *argoCD) everyMember(t *testing.T) {
	deliver := func() {
		patch := filepath.Join(t.TempDir(), "complete.yaml")
		if err := os.WriteFile(patch, []byte(guideToAllMembers(t).argoCD), 0o600); err != nil {
			t.Fatal(err)
		}
		a.show(t, a.hub.Plane, "-n", argoNamespace, "patch", "configmap", "argocd-cm", "--type", "merge",
			"--patch-file", patch)
		files := with(with(teamFiles(), app(2)), sharedFiles())
		a.push(t, "A project for a member that has not joined", files, "web", "fleet")
		a.deliver(t, "shared", "https://kubernetes.default.svc", teamSpace)
	}
	waits := func() {
		a.refresh(t, "shared") // so that it has looked since the other member has the Project
		a.await(t, "shared", "Progressing")
	}
	a.gitOps.everyMember(t, deliver, waits, func(time.Time) { a.await(t, "shared", "Healthy") })
	a.show(t, a.hub.Plane, "get", "applications,clusters,projects,prtb", "--all-namespaces")
	a.remove(t, "shared")
	a.withoutEdge(t)
}
