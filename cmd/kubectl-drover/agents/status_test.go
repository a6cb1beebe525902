// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/kinds"
	"github.com/drover-dev/drover/test/testkit"
)

func TestTheLeaderIsKnownByItsLease(t *testing.T) {
	at := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	seconds, renewed := int32(15), metav1.NewMicroTime(at)
	held := func(holder string) coordinationv1.LeaseSpec {
		return coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &renewed}
	}
	for name, tt := range map[string]struct {
		spec  coordinationv1.LeaseSpec
		after time.Duration
		alive bool
	}{
		"renewed":                      {held("pod-a"), 14 * time.Second, true},
		"a killed manager":             {held("pod-a"), 15 * time.Second, false},
		"a manager that gave it up":    {held(""), 0, false},
		"a Lease that no one ever had": {coordinationv1.LeaseSpec{}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := leaderOf(&coordinationv1.Lease{Spec: tt.spec}, at.Add(tt.after)); got.Alive != tt.alive {
				t.Errorf("the leader is %+v, want alive %v", got, tt.alive)
			}
		})
	}
}

// secretWord must not be in a bundle.
const secretWord = "hunterxsecret"

// reporter runs commands against a hub whose manager is only a Deployment and a Lease.
type reporter struct {
	hub        *testkit.Env
	workspace  string
	kubeconfig string
	lease      *coordinationv1.Lease
}

func TestMain(m *testing.M) { testkit.Main(m) }

func newReporter(t *testing.T) reporter {
	t.Helper()
	r := reporter{hub: testkit.Start(t)}
	r.workspace = r.hub.Workspace(t)
	r.kubeconfig = testkit.Kubeconfig(t, testkit.Context{Name: "hub", Namespace: r.workspace, Env: r.hub})
	place := metav1.ObjectMeta{Namespace: "drover-system", Name: managerName}
	err := r.hub.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: place.Namespace}})
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"app": "manager"}
	deployment := &appsv1.Deployment{ObjectMeta: place, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "manager", Image: "drover:v9", Args: []string{"--token=" + secretWord},
				Env: []corev1.EnvVar{{Name: "PASSWORD", Value: secretWord}},
			}}}},
	}}
	holder, seconds, now := "pod-a", int32(15), metav1.NowMicro()
	r.lease = &coordinationv1.Lease{ObjectMeta: place, Spec: coordinationv1.LeaseSpec{
		HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &now}}
	for _, object := range []client.Object{deployment, r.lease} {
		if err := r.hub.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	deployment.Status = appsv1.DeploymentStatus{Replicas: 1, ReadyReplicas: 1}
	if err := r.hub.Client.Status().Update(t.Context(), deployment); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r reporter) run(t *testing.T, args ...string) (int, string) {
	t.Helper()
	var out strings.Builder
	commands := func(o *cli.Options) []*cobra.Command { return []*cobra.Command{NewStatus(o), NewList(o)} }
	code := cli.Run(t.Context(), "test", commands, append(args, "--kubeconfig", r.kubeconfig), &out, &out)
	return code, out.String()
}

// renew renews the Lease as a manager did that long ago.
func (r reporter) renew(t *testing.T, ago time.Duration) {
	t.Helper()
	testkit.Update(t, r.hub.Client, r.lease, func(l *coordinationv1.Lease) {
		at := metav1.NewMicroTime(time.Now().Add(-ago))
		l.Spec.RenewTime = &at
	})
}

// TestStatus runs both tests with one API server.
func TestStatus(t *testing.T) {
	r := newReporter(t)
	t.Run("it tells a dead manager within its Lease", r.tellsADeadManager)
	t.Run("a bundle has no secrets", r.bundleHasNoSecrets)
}

func (r reporter) tellsADeadManager(t *testing.T) {
	r.renew(t, 0)
	code, out := r.run(t, "status")
	if code != cli.ExitAllowed || !strings.Contains(out, "pod-a") || !strings.Contains(out, "drover:v9") ||
		!strings.Contains(out, "No problems were found") {
		t.Errorf("exit code %d: %s, want a hub without problems", code, out)
	}
	if _, out := r.run(t, "agents"); strings.Contains(out, "Warning") {
		t.Errorf("agents warns while a manager leads: %s", out)
	}
	if _, out := r.run(t, "status", "--manager-namespace", "default"); !strings.Contains(out, "manager        unknown\n") {
		t.Errorf("without a Deployment the status is %s, want an unknown manager", out)
	}
	code, out = r.run(t, "status", "--as", "stranger")
	if code != cli.ExitError || !strings.Contains(out, "found in the parts that were read") ||
		!strings.Contains(out, "it is not known whether a manager leads") {
		t.Errorf("without rights: exit code %d: %s, want an error, because the Lease was not read", code, out)
	}
	if !strings.Contains(out, "agents         unknown") || strings.Contains(out, "no Cluster") {
		t.Errorf("without rights: %s, want the number of agents to be unknown", out)
	}
	r.mayReadTheManager(t, "operator")
	code, out = r.run(t, "status", "--as", "operator")
	if code != cli.ExitError || !strings.Contains(out, "the states of the agents are not known") ||
		strings.Contains(out, "whether a manager leads") {
		t.Errorf("without the right to read Clusters: exit code %d: %s, want an error", code, out)
	}
	r.renew(t, 20*time.Second)
	code, out = r.run(t, "status", "-o", "json")
	var status hubStatus
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		t.Fatal(err, out)
	}
	if code != cli.ExitDenied || status.Leader.Alive || len(status.Problems) != 1 ||
		!strings.Contains(status.Problems[0], "no one watches the fleet") {
		t.Errorf("exit code %d: %+v, want the problem that no manager leads", code, status)
	}
	if _, out := r.run(t, "agents"); !strings.Contains(out, "no manager leads") {
		t.Errorf("agents does not warn that its states are out of date: %s", out)
	}
}

// mayReadTheManager gives a user the right to read the Deployment and the Lease of the manager, but no Clusters.
func (r reporter) mayReadTheManager(t *testing.T, user string) {
	t.Helper()
	place := metav1.ObjectMeta{Namespace: "drover-system", Name: user}
	rules := []rbacv1.PolicyRule{
		{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"get"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get"}},
	}
	r.hub.Apply(t, &rbacv1.Role{ObjectMeta: place, Rules: rules})
	r.hub.Apply(t, &rbacv1.RoleBinding{ObjectMeta: place,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}})
	r.hub.AwaitRights(t, user, place.Namespace, rules...)
}

// plant creates objects of the bundle's kinds, with a secret wherever a person or program could write one.
func (r reporter) plant(t *testing.T) {
	t.Helper()
	place := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name,
			Labels:      map[string]string{"x": secretWord, secretWord: "x"},
			Annotations: map[string]string{"x": secretWord}}
	}
	subject := v1.Subject{Kind: v1.SubjectUser, Name: "local:" + secretWord}
	chosen := v1.ClusterTarget{ClusterSelector: &metav1.LabelSelector{
		MatchLabels: map[string]string{secretWord: secretWord}}}
	cluster := &v1.Cluster{ObjectMeta: place(r.workspace, "prod")}
	plan := &v1.Plan{ObjectMeta: place(r.workspace, "k3s")}
	plan.Spec.PostCompleteLabels = map[string]v1.LabelTemplate{"secretkey": "x"}
	plan.Spec.ClusterSelector, plan.Spec.Version = chosen.ClusterSelector, "v1"
	plan.Spec.Upgrade = v1.PlanContainer{Image: "registry.example.com/" + secretWord, Args: []string{secretWord},
		Envs: []corev1.EnvVar{{Name: "X", Value: secretWord}}}
	event := &corev1.Event{ObjectMeta: place("drover-system", "e"), Message: "x " + secretWord,
		Reason: "Failed", Type: "Warning",
		InvolvedObject: corev1.ObjectReference{Namespace: "drover-system", Name: "x", Kind: "Pod"}}
	pod := &corev1.Pod{ObjectMeta: place("drover-system", "p")}
	pod.Spec.Containers = []corev1.Container{{Name: "x",
		Image: "x", Command: []string{secretWord}, Env: []corev1.EnvVar{{Name: "x", Value: secretWord}}}}
	binding := v1.ClusterRoleTemplateBindingSpec{ClusterTarget: chosen, RoleTemplateName: "viewer", Subject: subject}
	inProject := v1.ProjectRoleTemplateBindingSpec{ProjectName: "web", RoleTemplateName: "viewer", Subject: subject}
	for _, object := range []client.Object{
		cluster, plan, event, pod,
		&corev1.Secret{ObjectMeta: place(r.workspace, "s"), StringData: map[string]string{"x": secretWord}},
		&corev1.ConfigMap{ObjectMeta: place("drover-system", "c"), Data: map[string]string{"x": secretWord}},
		&v1.Host{ObjectMeta: place(r.workspace, "rack")},
		&v1.Project{ObjectMeta: place(r.workspace, "web"),
			Spec: v1.ProjectSpec{ClusterTarget: chosen, Namespaces: []string{secretWord}}},
		&v1.ClusterRoleTemplateBinding{ObjectMeta: place(r.workspace, "b"), Spec: binding},
		&v1.ProjectRoleTemplateBinding{ObjectMeta: place(r.workspace, "b"), Spec: inProject},
		&v1.RoleTemplate{ObjectMeta: place("", "viewer"),
			Spec: v1.RoleTemplateSpec{Context: v1.ContextCluster, External: secretWord}},
		&v1.User{ObjectMeta: place("", "alice")},
		&v1.AuthProvider{ObjectMeta: place("", "corp"), Spec: v1.AuthProviderSpec{GitHub: &v1.GitHubProvider{
			ClientID: secretWord, AnyUser: true, ClientSecret: v1.ProviderSecret{Name: secretWord, Key: secretWord}}}},
	} {
		if err := r.hub.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	cluster.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "False", Reason: "Lost",
		Message:            "see " + secretWord,
		LastTransitionTime: metav1.Now()}}
	if err := r.hub.Client.Status().Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
}

func (r reporter) bundleHasNoSecrets(t *testing.T) {
	r.renew(t, 0)
	r.plant(t)
	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	if code, out := r.run(t, "status", "--bundle", file); code == cli.ExitError {
		t.Fatal(out)
	}
	files := unpack(t, file)
	for name, content := range files {
		if strings.Contains(content, secretWord) || strings.Contains(content, "secretkey") {
			t.Errorf("the secret is in %s:\n%s", name, content)
		}
	}
	for name, want := range map[string]string{
		"clusters.json": `"Lost"`, "plans.json": `"k3s"`, "hosts.json": `"rack"`, "projects.json": `"web"`,
		"users.json":                       `"alice"`,
		"clusterroletemplatebindings.json": `"viewer"`, "projectroletemplatebindings.json": `"viewer"`,
		"roletemplates.json": `"Cluster"`, "authproviders.json": `"corp"`, "deployments.json": managerName,
		"events.json": `"Failed"`,
		"leases.json": managerName, "pods.json": `"p"`, "status.json": "pod-a",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s is\n%s\nwant %s in it", name, files[name], want)
		}
	}
	for _, kind := range kinds.All() {
		name := strings.ToLower(kind.Name) + "s.json"
		if got := files[name]; got == "" || strings.HasPrefix(strings.TrimSpace(got), `"not read`) {
			t.Errorf("the bundle's %s is %q, want the objects of each kind in the registry", name, got)
		}
	}
	const others = 5 // status.json, and four kinds of objects in the manager's namespace
	if want := len(kinds.All()) + others; len(files) != want {
		t.Errorf("the bundle has %d files, want %d", len(files), want)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has the mode %v (%v), want 0600", info.Mode(), err)
	}
	if code, out := r.run(t, "status", "--bundle", file); code != cli.ExitError || !strings.Contains(out, "exists") {
		t.Errorf("exit code %d: %s, want an existing file to stay", code, out)
	}
}

func unpack(t *testing.T, name string) map[string]string {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	zipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(zipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(raw)
	}
}

func TestStatusDoesNotCallAConnectedAgentFailed(t *testing.T) {
	cluster := func(name, reason string) v1.Cluster {
		return v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}, Status: v1.ClusterStatus{
			Agent: &v1.AgentStatus{Version: "v1"}, Conditions: []metav1.Condition{
				{Type: v1.ConditionConnected, Status: metav1.ConditionTrue},
				{Type: v1.ConditionAgentUpToDate, Status: metav1.ConditionFalse, Reason: reason},
			}}}
	}
	for name, tt := range map[string]struct {
		clusters []v1.Cluster
		want     string
	}{
		"one with pods that are not ready": {
			[]v1.Cluster{cluster("a", v1.ReasonAgentNotReady)},
			`1 agent is connected, but not all of the pods are ready: team/a: "kubectl drover agents -A" says why`,
		},
		"two of them": {
			[]v1.Cluster{cluster("a", v1.ReasonAgentNotReady), cluster("b", v1.ReasonAgentNotReady)},
			`2 agents are connected, but not all of the pods are ready: team/a, team/b: "kubectl drover agents -A" says why`,
		},
		"one that restored its Deployment": {
			[]v1.Cluster{cluster("a", v1.ReasonAgentRolledBack)},
			`the upgrade of 1 agent failed: team/a: "kubectl drover agents -A" says why`,
		},
		"one that the hub cannot change, as in a demo": {[]v1.Cluster{cluster("a", v1.ReasonAgentUnmanaged)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := &statusReader{}
			r.count(tt.clusters)
			if got := strings.Join(r.status.Problems, "; "); got != tt.want {
				t.Errorf("the problems are %q, want %q", got, tt.want)
			}
		})
	}
}
