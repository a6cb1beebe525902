// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// demoToken is the token of user "demo" on the hub. The user "stranger" can be authenticated but has no rights.
const (
	demoToken     = "demo-0123456789abcdef"
	strangerToken = "stranger-0123456789abcdef"
)

// programs are built once for all tests.
var programs framework.Programs

// plugin builds kubectl-drover once (see pluginDir).
var plugin func() (string, error)

// hubs has an element for each test that currently runs control planes. Their memory limits how many of these tests run
// at once. Subtests that share a hub do not need an element of their own.
var hubs = make(chan struct{}, testkit.Hubs())

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	if os.Getenv(browserAddress) != "" { // a process of a test that needs no programs
		m.Run()
		return
	}
	testkit.Parallel(4 * cap(hubs))
	if err := buildPrograms(m); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
}

func buildPrograms(m *testing.M) error {
	root, err := framework.Sources()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "drover-e2e-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if programs, err = framework.Build(context.Background(), root, dir); err != nil {
		return err
	}
	// Without this setting, garbage collection would use a fifth of the CPU time of an API server that runs only for a
	// short time.
	programs.PlaneEnv = []string{"GOGC=300", "GOMEMLIMIT=320MiB"}
	plugin = sync.OnceValues(func() (string, error) {
		build := exec.Command("go", "build", "-ldflags=-s -w", "-o", filepath.Join(dir, "plugin", "kubectl-drover"), "./cmd/kubectl-drover")
		build.Dir = root
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build kubectl-drover: %w\n%s", err, out)
		}
		return filepath.Join(dir, "plugin"), nil
	})
	m.Run()
	return nil
}

// pluginDir returns the folder of kubectl-drover. The first call builds it for all tests.
func pluginDir(t *testing.T) string {
	t.Helper()
	dir, err := plugin()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// system is a hub and a member for a test and its subtests.
type system struct {
	t        *testing.T // the test that owns the processes; subtests come and go
	programs framework.Programs
	dir      string
	hub      *framework.Hub
	member   *framework.Plane
}

// start starts the hub and the member. Nothing is imported yet.
func start(t *testing.T) *system {
	t.Helper()
	return startWith(t, (*system).startHub)
}

// startWith is like start, with the given hub.
func startWith(t *testing.T, startHub func(*system, *testing.T)) *system {
	t.Helper()
	s := build(t)
	member := make(chan *framework.Plane, 1)
	failed := make(chan error, 1)
	go func() {
		plane, err := s.plane("member")
		member <- plane
		failed <- err
	}()
	startHub(s, t)
	s.member = <-member
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.member.Kill() })
	s.grant(t)
	return s
}

// startAlone starts a hub that is its own member. Nothing is imported yet.
func startAlone(t *testing.T) *system {
	t.Helper()
	s := build(t)
	s.startHub(t)
	s.member = s.hub.Plane
	s.grant(t)
	return s
}

func build(t *testing.T) *system {
	t.Helper()
	hubs <- struct{}{}
	t.Cleanup(func() { <-hubs })
	return &system{t: t, programs: programs, dir: t.TempDir()}
}

// buildForLargeSchemas is build for control planes with the kinds of Cluster API. Their schemas alone use 230 MB of an
// API server's heap. With the memory limit of the other control planes, such an API server would collect garbage all
// the time.
func buildForLargeSchemas(t *testing.T) *system {
	t.Helper()
	s := build(t)
	s.programs.PlaneEnv = []string{"GOMEMLIMIT=1GiB"}
	return s
}

func (s *system) startHub(t *testing.T) {
	t.Helper()
	plane, err := s.plane("hub", lab.User{Name: "demo", Token: demoToken}, lab.User{Name: "stranger", Token: strangerToken})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Kill() })
	if s.hub, err = framework.InstallHub(within(t, 2*time.Minute), plane); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.hub.Manager.Kill() })
}

func (s *system) plane(name string, users ...lab.User) (*framework.Plane, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	defer cancel()
	return framework.StartPlane(ctx, s.programs, name, s.dir, users...)
}

// grant gives demo access to every Cluster of namespace default, and all rights in the member.
func (s *system) grant(t *testing.T) {
	t.Helper()
	create(t, s.member, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "demo"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "hub:demo"}}})
	s.allow(t, "demo", rbacv1.PolicyRule{APIGroups: []string{v1.Group}, Resources: []string{"clusters", "clusters/proxy"}, Verbs: []string{"get"}})
}

// allow grants a user of the hub rights in its namespace default.
func (s *system) allow(t *testing.T, user string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	object := metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: user}
	create(t, s.hub.Plane, &rbacv1.Role{ObjectMeta: object, Rules: rules})
	create(t, s.hub.Plane, &rbacv1.RoleBinding{ObjectMeta: object,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}})
}

func create(t *testing.T, plane *framework.Plane, object client.Object) {
	t.Helper()
	if err := plane.Client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

// imported creates a Cluster, installs its agent in a plane and starts it. Agents of several Clusters in one plane have
// separate namespaces.
func (s *system) imported(t *testing.T, name string, plane *framework.Plane, namespace string) (types.NamespacedName, *framework.Agent) {
	t.Helper()
	cluster, manifest := s.created(t, name)
	return cluster, s.agent(t, manifest, name, plane, namespace)
}

// ready imports the shared member as one more Cluster, with an agent in a separate namespace, and waits until it is
// Ready.
func (s *system) ready(t *testing.T, name string) (types.NamespacedName, *framework.Agent) {
	t.Helper()
	cluster, agent := s.imported(t, name, s.member, agentNamespace(name))
	s.await(t, cluster, 30*time.Second, framework.Ready)
	return cluster, agent
}

func agentNamespace(cluster string) string { return "agent-" + cluster }

// created creates a Cluster and returns the manifest for its agent.
func (s *system) created(t *testing.T, name string) (types.NamespacedName, []byte) {
	t.Helper()
	cluster := types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: name}
	manifest, err := s.hub.CreateCluster(within(t, 20*time.Second), cluster)
	if err != nil {
		t.Fatal(err)
	}
	return cluster, manifest
}

func (s *system) agent(t *testing.T, manifest []byte, name string, plane *framework.Plane, namespace string, env ...string) *framework.Agent {
	t.Helper()
	agent, err := framework.InstallAgent(within(t, time.Minute), plane, manifest, name, namespace)
	if err != nil {
		t.Fatal(err)
	}
	s.startAgent(t, agent, env...)
	return agent
}

func (s *system) startAgent(t *testing.T, agent *framework.Agent, env ...string) {
	t.Helper()
	if err := agent.Start(env...); err != nil {
		t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = agent.Process.Kill() }) // the test may have restarted it
}

func kill(t *testing.T, process *lab.Process) {
	t.Helper()
	if err := process.Kill(); err != nil {
		t.Fatal(err)
	}
}

// startAgain starts the first manager of a hub and its provisioner again after they have ended.
func startAgain(t *testing.T, hub *framework.Hub) {
	t.Helper()
	if err := hub.StartManager(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := hub.Provisioner.Start(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
}

// awaitWithin is like await, within a time that is itself tested. Waits for a processor do not count.
func (s *system) awaitWithin(t *testing.T, cluster types.NamespacedName, claim time.Duration, wanted func(*v1.Cluster) bool) time.Duration {
	t.Helper()
	watch := testkit.StartStopwatch()
	took := s.await(t, cluster, claim, wanted)
	if counted := watch.Took(); counted > claim {
		t.Errorf("cluster %s was as wanted after %s, %s without waits for a processor, not within %s", cluster, took, counted, claim)
	}
	return took
}

// await waits until a Cluster meets the given conditions, and returns how long this took. limit is the same as for
// within.
func (s *system) await(t *testing.T, cluster types.NamespacedName, limit time.Duration, wanted func(*v1.Cluster) bool) time.Duration {
	t.Helper()
	began := time.Now()
	if _, err := s.hub.AwaitCluster(within(t, limit), cluster, wanted); err != nil {
		t.Fatalf("%v\nmanager log:\n%s", err, tail(s.hub.Manager.LogFile()))
	}
	return time.Since(began)
}

// cluster reads a Cluster.
func (s *system) cluster(t *testing.T, name types.NamespacedName) *v1.Cluster {
	t.Helper()
	c := &v1.Cluster{}
	if err := s.hub.Client.Get(t.Context(), name, c); err != nil {
		t.Fatal(err)
	}
	return c
}

// secret reads a Secret of a plane.
func secret(t *testing.T, plane *framework.Plane, namespace, name string) *corev1.Secret {
	t.Helper()
	object := &corev1.Secret{}
	if err := plane.Client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, object); err != nil {
		t.Fatal(err)
	}
	return object
}

// awaitLog waits until an agent has logged a text, and returns everything that it has logged.
func awaitLog(t *testing.T, agent *framework.Agent, limit time.Duration, text string) string {
	t.Helper()
	var logged string
	testkit.Eventually(t, limit, func(context.Context) error {
		raw, err := os.ReadFile(agent.Log)
		if logged = string(raw); err == nil && !strings.Contains(logged, text) {
			err = fmt.Errorf("the agent's log has no %q:\n%s", text, tail(agent.Log))
		}
		return err
	})
	return logged
}

// kubectl runs kubectl in a member through the hub with a token.
func (s *system) kubectl(t *testing.T, cluster types.NamespacedName, token string, args ...string) (string, error) {
	t.Helper()
	return framework.Kubectl(within(t, 30*time.Second), s.programs, s.kubeconfig(t, cluster, token), nil, args...)
}

func (s *system) kubeconfig(t *testing.T, cluster types.NamespacedName, token string) string {
	t.Helper()
	kubeconfig, err := s.hub.ProxyKubeconfig(t.Context(), cluster, token, filepath.Join(t.TempDir(), "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// within ends after a limit that an idle machine never reaches. On a busy machine, the limit is multiplied by
// testkit.Patience.
func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit*testkit.Patience)
	t.Cleanup(cancel)
	return ctx
}

func tail(file string) string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	const most = 4000
	return string(raw[max(0, len(raw)-most):])
}

// exitCode returns the exit code of a command that has ended.
func exitCode(err error) int {
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return failed.ExitCode()
	}
	return 0
}
