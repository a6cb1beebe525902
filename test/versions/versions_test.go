// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package versions tests hubs and members of the oldest and the newest Kubernetes that Drover supports, and the
// previous version of Drover together with this one (docs/versions.md).
package versions

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/nodesim"
	"github.com/drover-dev/drover/test/testkit"
)

const (
	// envRun enables the tests, which build an old Kubernetes once: make test-versions.
	envRun = "DROVER_TEST_VERSIONS"

	demoToken = "demo-0123456789abcdef"
	workspace = metav1.NamespaceDefault
)

// planNamed returns a Plan with a name and a version. It has one Job on each node.
const planNamed = `
apiVersion: cluster.drover.dev/v1
kind: Plan
metadata: {name: %s, namespace: default}
spec:
  clusterName: member
  version: %s
  upgrade: {image: rancher/k3s-upgrade}
  postCompleteLabels: {example.org/version: $(LATEST_VERSION)}
`

// projectNamed returns a Project with everything that a project can deliver to a namespace of a member, and with the
// guard that rejects changes to it. Its namespace has the same name.
const projectNamed = `
apiVersion: cluster.drover.dev/v1
kind: Project
metadata: {name: %[1]s, namespace: default}
spec:
  clusterName: member
  namespaces: [%[1]s]
  networkIsolation: Project
  podSecurity: restricted
  resourceQuota: {pods: "7"}
  namespaceDefaultResourceQuota: {pods: "3"}
`

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	m.Run()
}

func TestAHubAndAMemberOfDifferentVersions(t *testing.T) {
	if os.Getenv(envRun) == "" {
		t.Skipf("it builds an old Kubernetes, once: make test-versions, or %s=1", envRun)
	}
	root, err := framework.Sources()
	if err != nil {
		t.Fatal(err)
	}
	newest, err := framework.Build(t.Context(), root, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	oldest := newest
	if oldest.PlaneAssets, err = lab.OldestBinaries(t.Context(), os.Stderr); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name        string
		hub, member framework.Programs
		version     string // of the member
	}{
		{"the hub is the oldest, the member the newest", oldest, newest, "v1.36"},
		{"the hub is the newest, the member the oldest", newest, oldest, "v1.30"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := start(t, c.hub, c.member)
			for _, step := range []struct {
				name string
				test func(*testing.T, *system)
			}{
				{"the hub's API server takes every object of the installer", testInstaller},
				{"the member is imported", func(t *testing.T, s *system) { testImport(t, s, c.version) }},
				{"a binding lets its user in", testBinding},
				{"a project has its namespace", testProject},
				{"a plan runs a Job", testPlan},
				{"a Cluster that is deleted leaves nothing", testRemoval},
			} {
				if !t.Run(step.name, func(t *testing.T) { step.test(t, s) }) {
					s.logState(t)
					return
				}
			}
		})
	}
}

// system is a hub and a member, each with its own version.
type system struct {
	programs framework.Programs
	dir      string
	hub      *framework.Hub
	member   *framework.Plane
	agent    *framework.Agent
	cluster  types.NamespacedName
	sim      *nodesim.Sim
}

func start(t *testing.T, ofHub, ofMember framework.Programs) *system {
	t.Helper()
	s := &system{programs: ofHub, dir: t.TempDir(), cluster: types.NamespacedName{Namespace: workspace, Name: "member"}}
	plane := startPlane(t, ofHub, "hub", s.dir, lab.User{Name: "demo", Token: demoToken})
	s.member = startPlane(t, ofMember, "member", s.dir)
	var err error
	s.hub, err = framework.InstallHub(within(t, 2*time.Minute), plane)
	t.Cleanup(func() { _ = s.hub.StopManagers() })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func startPlane(t *testing.T, programs framework.Programs, name, dir string, users ...lab.User) *framework.Plane {
	t.Helper()
	plane, err := framework.StartPlane(within(t, time.Minute), programs, name, dir, users...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Kill() })
	return plane
}

// logState logs the output of the processes.
func (s *system) logState(t *testing.T) {
	files := []string{s.hub.Manager.LogFile()}
	if s.agent != nil {
		files = append(files, s.agent.Log)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		t.Logf("%s: %v\n%s", file, err, raw[max(0, len(raw)-4000):])
	}
}

// within returns a context for an operation that takes less than limit on an idle machine.
func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit*testkit.Patience)
	t.Cleanup(cancel)
	return ctx
}

// strictly applies objects in a server-side dry run. A field that the API server does not know is an error.
func strictly(t *testing.T, plane *framework.Plane, manifest []byte) {
	t.Helper()
	out, err := plane.Kubectl(t.Context(), manifest, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-")
	if err != nil {
		t.Error(err)
	}
	if got, want := strings.Count(out, "serverside-applied"), strings.Count("\n"+string(manifest), "\nkind: "); got != want {
		t.Errorf("%d of %d objects were taken:\n%s", got, want, out)
	}
}

func testInstaller(t *testing.T, s *system) { strictly(t, s.hub.Plane, render(t, s.programs)) }

// render returns the manifests that "make deploy" applies.
func render(t *testing.T, programs framework.Programs) []byte {
	t.Helper()
	render := exec.CommandContext(t.Context(), "hack/deploy.sh", "render")
	render.Dir, render.Env = programs.Root, append(os.Environ(), "IMG=registry.test/drover:v9", "URL=https://hub.test")
	manifest, err := render.Output()
	if err != nil {
		t.Fatal(err)
	}
	return manifest
}

func testImport(t *testing.T, s *system, version string) {
	manifest, err := s.hub.CreateCluster(within(t, 20*time.Second), s.cluster)
	if err != nil {
		t.Fatal(err)
	}
	if s.agent, err = framework.InstallAgent(within(t, time.Minute), s.member, manifest, s.cluster.Name, protocol.AgentNamespace); err != nil {
		t.Fatal(err)
	}
	strictly(t, s.member, manifest)
	if err := s.agent.Start(); err != nil {
		t.Fatal(err)
	}
	process := s.agent.Process
	t.Cleanup(func() {
		if t.Failed() {
			_ = process.Kill()
		}
	})
	if _, err := s.hub.AwaitCluster(within(t, 30*time.Second), s.cluster, framework.Ready); err != nil {
		t.Fatal(err)
	}
	if out, err := s.hub.Kubectl(t.Context(), nil, "get", "clusters", s.cluster.Name); err != nil || !strings.Contains(out, "True    Connected   "+version) {
		t.Errorf("%v\n%s\nwant version %s", err, out, version)
	}
}

func testBinding(t *testing.T, s *system) {
	get := s.getNodes(t)
	if err := get(t.Context()); !refused(err) {
		t.Fatalf("without a binding the answer is %v", err)
	}
	s.bind(t, "demo", "hub:demo")
	testkit.Eventually(t, 30*time.Second, get)
}

// getNodes returns a function in which the user demo lists the nodes of the member through the hub.
func (s *system) getNodes(t *testing.T) func(context.Context) error {
	t.Helper()
	kubeconfig, err := s.hub.ProxyKubeconfig(t.Context(), s.cluster, demoToken, filepath.Join(t.TempDir(), "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context) error {
		_, err := framework.Kubectl(ctx, s.programs, kubeconfig, nil, "get", "nodes")
		return err
	}
}

// refused reports whether the hub rejected the request of a user without a binding.
func refused(err error) bool {
	return err != nil && strings.Contains(err.Error(), "may not reach cluster")
}

// bind binds cluster-viewer to a user and waits until the member has the binding.
func (s *system) bind(t *testing.T, name, user string) {
	t.Helper()
	binding := &v1.ClusterRoleTemplateBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: name},
		Spec: v1.ClusterRoleTemplateBindingSpec{
			ClusterTarget:    v1.ClusterTarget{ClusterName: s.cluster.Name},
			RoleTemplateName: "cluster-viewer", Subject: v1.Subject{Kind: v1.SubjectUser, Name: user},
		},
	}
	if err := s.hub.Client.Create(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	s.awaitReady(t, binding, v1.ReasonApplied, func() []metav1.Condition { return binding.Status.Conditions })
}

// awaitReady waits until the Ready condition of an object has the given reason.
func (s *system) awaitReady(t *testing.T, object client.Object, reason string, conditions func() []metav1.Condition) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		if err := s.hub.Client.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		if ready := meta.FindStatusCondition(conditions(), v1.ConditionReady); ready == nil || ready.Reason != reason {
			return fmt.Errorf("%s has the conditions %+v, want Ready for the reason %s", object.GetName(), conditions(), reason)
		}
		return nil
	})
}

func (s *system) apply(t *testing.T, text string) {
	t.Helper()
	if _, err := s.hub.Kubectl(t.Context(), []byte(text), "apply", "--validate=strict", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

func testProject(t *testing.T, s *system) { s.runProject(t, "web") }

// runProject creates a Project and checks its namespace.
func (s *system) runProject(t *testing.T, name string) {
	t.Helper()
	s.apply(t, fmt.Sprintf(projectNamed, name))
	p := &v1.Project{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: name}}
	s.awaitReady(t, p, v1.ReasonApplied, func() []metav1.Condition { return p.Status.Conditions })
	quotas := &corev1.ResourceQuotaList{}
	if err := s.member.Client.List(t.Context(), quotas, client.InNamespace(name)); err != nil || len(quotas.Items) == 0 {
		t.Fatalf("the project's namespace has the quotas %v, %v", quotas.Items, err)
	}
	eve := "eve-" + name
	for _, args := range [][]string{
		{"create", "clusterrole", eve, "--verb=*", "--resource=resourcequotas"},
		{"create", "clusterrolebinding", eve, "--clusterrole=" + eve, "--user=" + eve},
	} {
		if _, err := s.member.Kubectl(t.Context(), nil, args...); err != nil {
			t.Fatal(err)
		}
	}
	// The API server enforces a policy a moment after it is created.
	testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		_, err := s.member.Kubectl(ctx, nil, "-n", name, "delete", "resourcequota", quotas.Items[0].Name,
			"--dry-run=server", "--as="+eve)
		if err == nil || !strings.Contains(err.Error(), "drover-guard") {
			return fmt.Errorf("the guard of the project lets a user delete its quota: %w", err)
		}
		return nil
	})
}

func testPlan(t *testing.T, s *system) {
	s.startNode(t)
	s.runPlan(t, "k3s", "v9")
	if seen := s.sim.Seen(); len(seen) != 1 {
		t.Errorf("pods ran on %v, want one", seen)
	}
}

// startNode adds a node to the member. The node runs the pods of Jobs until the test ends.
func (s *system) startNode(t *testing.T) {
	t.Helper()
	s.sim = nodesim.Start(context.WithoutCancel(t.Context()), s.member.Client, nil)
	t.Cleanup(s.sim.Close)
	if err := s.sim.AddNode(t.Context(), "node", nil); err != nil {
		t.Fatal(err)
	}
}

// runPlan creates a Plan and waits until it is complete.
func (s *system) runPlan(t *testing.T, name, version string) {
	t.Helper()
	s.apply(t, fmt.Sprintf(planNamed, name, version))
	p := &v1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: name}}
	s.awaitReady(t, p, v1.ReasonComplete, func() []metav1.Condition { return p.Status.Conditions })
	node := &corev1.Node{}
	if err := s.member.Client.Get(t.Context(), types.NamespacedName{Name: "node"}, node); err != nil {
		t.Fatal(err)
	}
	if got := node.Labels["example.org/version"]; got != version {
		t.Errorf("the node's label example.org/version is %q, want %q", got, version)
	}
}

func testRemoval(t *testing.T, s *system) {
	cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: s.cluster.Name}}
	if err := s.hub.Client.Delete(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	ctx := within(t, time.Minute)
	if err := s.hub.AwaitGone(ctx, cluster); err != nil {
		t.Fatal(err)
	}
	for _, left := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: protocol.AgentNamespace}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: protocol.AgentName}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: protocol.AgentName}},
	} {
		if err := s.member.AwaitGone(ctx, left); err != nil {
			t.Error(err)
		}
	}
	if err := s.hub.Client.Get(t.Context(), registration.AgentSecret(s.cluster), &corev1.Secret{}); !apierrors.IsNotFound(err) {
		t.Errorf("the hub still has the agent's Secret: %v", err)
	}
	select {
	case <-s.agent.Process.Exited():
	case <-ctx.Done():
		t.Error("the agent still runs")
	}
}
