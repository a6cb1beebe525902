// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

const (
	// alice signs in with a password.
	alice = "alice"
	// keptUser has had a binding since before the upgrade.
	keptUser, keptToken = "kept", "kept-0123456789abcdef"
)

// keptObject is an object that was created before the upgrade.
type keptObject struct {
	client.Object
	// conditions are the conditions of the object, or nil.
	conditions *[]metav1.Condition
	// reason of the condition Ready.
	reason string
	uid    types.UID
	// generation increases with every change of the spec.
	generation int64
}

// createKept creates an object of each kind.
func (s *skew) createKept(t *testing.T) {
	t.Helper()
	nodes := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}}}
	template := &v1.RoleTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "kept"},
		Spec:       v1.RoleTemplateSpec{Context: v1.ContextCluster, Rules: nodes},
	}
	if err := s.hub.Client.Create(t.Context(), template); err != nil {
		t.Fatal(err)
	}
	s.bind(t, keptUser, "hub:"+keptUser)
	s.bind(t, alice, "local:"+alice)
	s.runProject(t, "kept")
	s.runPlan(t, "kept", "v0")
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: workspace, Name: name} }
	cluster := &v1.Cluster{ObjectMeta: named(s.cluster.Name)}
	binding := &v1.ClusterRoleTemplateBinding{ObjectMeta: named(keptUser)}
	project, plan := &v1.Project{ObjectMeta: named("kept")}, &v1.Plan{ObjectMeta: named("kept")}
	s.kept = []keptObject{
		{Object: template},
		{Object: cluster, reason: v1.ReasonConnected, conditions: &cluster.Status.Conditions},
		{Object: binding, reason: v1.ReasonApplied, conditions: &binding.Status.Conditions},
		{Object: project, reason: v1.ReasonApplied, conditions: &project.Status.Conditions},
		{Object: plan, reason: v1.ReasonComplete, conditions: &plan.Status.Conditions},
	}
	for i := range s.kept {
		k := &s.kept[i]
		if err := s.hub.Client.Get(t.Context(), client.ObjectKeyFromObject(k), k.Object); err != nil {
			t.Fatal(err)
		}
		k.uid, k.generation = k.GetUID(), k.GetGeneration()
	}
}

// changed is a built-in role template that an administrator changes after the upgrade, and changedRules are its rules.
var (
	changed      = types.NamespacedName{Name: "volumes-view"}
	changedRules = []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"endpoints"}, Verbs: []string{"get"}},
	}
)

func (s *skew) changeTemplate(t *testing.T) {
	t.Helper()
	template := &v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: changed.Name}}
	testkit.Update(t, s.hub.Client, template, func(r *v1.RoleTemplate) {
		r.Annotations, r.Spec.Rules = map[string]string{v1.AnnotationAutoUpdate: "false"}, changedRules
	})
}

// checkTemplate checks that a downgrade keeps the changed template, unless the manifests of the older version contain
// it, as docs/operations/upgrade.md says.
func (s *skew) checkTemplate(t *testing.T) {
	t.Helper()
	template := &v1.RoleTemplate{}
	if err := s.hub.Client.Get(t.Context(), changed, template); err != nil {
		t.Fatal(err)
	}
	want := !bytes.Contains(render(t, s.before.Programs), []byte("\nkind: RoleTemplate\n"))
	if got := reflect.DeepEqual(template.Spec.Rules, changedRules); got != want {
		t.Errorf("the changed template is kept: %t, want %t; its rules are %v", got, want, template.Spec.Rules)
	}
}

// createUser creates the user alice with a password.
func (s *skew) createUser(t *testing.T) {
	t.Helper()
	out, err := s.drover(t, s.administrator(), "user", "create", alice, "--context", "hub")
	if err != nil {
		t.Fatal(err)
	}
	s.password, _, _ = strings.Cut(out, "\n")
	s.signIn(t, s.home)
}

// writeAdmin writes a kubeconfig with the contexts hub, member and guest.
func (s *skew) writeAdmin(t *testing.T) string {
	t.Helper()
	all := clientcmdapi.NewConfig()
	for name, plane := range map[string]*framework.Plane{"hub": s.hub.Plane, "member": s.member, "guest": s.guest} {
		file := filepath.Join(s.dir, name+".kubeconfig")
		if err := plane.WriteKubeconfig(file); err != nil {
			t.Fatal(err)
		}
		one, err := clientcmd.LoadFromFile(file)
		if err != nil {
			t.Fatal(err)
		}
		current := one.Contexts[one.CurrentContext]
		all.Clusters[name], all.AuthInfos[name] = one.Clusters[current.Cluster], one.AuthInfos[current.AuthInfo]
		all.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: workspace}
	}
	all.CurrentContext = "hub"
	file := filepath.Join(s.dir, "admin.kubeconfig")
	if err := clientcmd.WriteToFile(*all, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// administrator is the environment of the administrator.
func (s *skew) administrator() []string { return []string{"KUBECONFIG=" + s.admin, "HOME=" + s.dir} }

// command returns a program with the plugin of this situation in its PATH.
func (s *skew) command(t *testing.T, env []string, program string, args ...string) *exec.Cmd {
	t.Helper()
	path := strings.Join([]string{s.release(s.now.plugin).dir, filepath.Dir(s.programs.Kubectl), "/usr/bin", "/bin"}, ":")
	command := exec.CommandContext(within(t, time.Minute), program, args...)
	command.Env, command.Dir = append([]string{"PATH=" + path}, env...), s.dir
	return command
}

// plugin returns a command of the plugin.
func (s *skew) plugin(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	return s.command(t, env, s.release(s.now.plugin).program("kubectl-drover"), args...)
}

// drover runs a command of the plugin and returns its output.
func (s *skew) drover(t *testing.T, env []string, args ...string) (string, error) {
	t.Helper()
	return output(s.plugin(t, env, args...))
}

// output runs a command and returns its standard output. The error contains its standard error.
func output(command *exec.Cmd) (string, error) {
	var out, complaints bytes.Buffer
	command.Stdout, command.Stderr = &out, &complaints
	if err := command.Run(); err != nil {
		return out.String(), fmt.Errorf("%v: %w: %s", command.Args, err, complaints.String())
	}
	return out.String(), nil
}

// says checks that a command of the plugin succeeds and prints a text.
func (s *skew) says(t *testing.T, text string, env []string, args ...string) {
	t.Helper()
	if out, err := s.drover(t, env, args...); err != nil || !strings.Contains(out, text) {
		t.Errorf("kubectl drover %v prints %q (%v), want %q in it", args, out, err, text)
	}
}

// testImportByPlugin imports the guest and removes it.
func testImportByPlugin(t *testing.T, s *skew) {
	cluster := types.NamespacedName{Namespace: workspace, Name: fmt.Sprintf("guest-%d", s.round)}
	var says bytes.Buffer
	command := s.plugin(t, s.administrator(), "import", cluster.Name, "--to-context", "guest", "--context", "hub")
	command.Stderr = &says
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		_, err := s.guest.Kubectl(ctx, nil, "-n", protocol.AgentNamespace, "get", "deployment", protocol.AgentName)
		return err
	})
	c := &v1.Cluster{}
	if err := s.hub.Client.Get(t.Context(), cluster, c); err != nil {
		t.Fatal(err)
	}
	manifest, err := s.hub.Manifest(within(t, time.Minute), cluster, c.UID)
	if err != nil {
		t.Fatal(err)
	}
	s.guest.Use(s.release(s.now.agent).Programs)
	agent, err := framework.InstallAgent(within(t, time.Minute), s.guest, manifest, cluster.Name, protocol.AgentNamespace)
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			_ = agent.Process.Kill()
			raw, _ := os.ReadFile(agent.Log)
			t.Logf("%s:\n%s", agent.Log, raw)
		}
	})
	if err := <-ended; err != nil || !strings.Contains(says.String(), "Connected: ") {
		t.Fatalf("import: %v, %q; want it to end when the Cluster is ready", err, says.String())
	}
	s.says(t, cluster.Name, s.administrator(), "agents", "--context", "hub")
	testRemoval(t, &system{hub: s.hub, member: s.guest, agent: agent, cluster: cluster})
}

// signIn signs alice in with the plugin, in her home.
func (s *skew) signIn(t *testing.T, home string) {
	t.Helper()
	bundle, err := s.hub.Bundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(home, "hub-ca.crt")
	visit, err := framework.NewVisitor(s.hub.URL(), s.hub.Address, bundle)
	if err = errors.Join(err, os.WriteFile(ca, bundle, 0o600)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, visit.Open)
	login := s.plugin(t, []string{"HOME=" + home}, "login", s.hub.URL(), "--ca", ca, "--device")
	err = framework.LogIn(login, func(page, code string) error {
		return visit.Confirm(t.Context(), page, code, alice, s.password)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// expire makes the token of alice's session expire now, so that the plugin renews it.
func (s *skew) expire(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.home, ".kube", "cache", "drover", "*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the sessions are in %v (%v), want one file", files, err)
	}
	raw, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	session := map[string]any{}
	if err := json.Unmarshal(raw, &session); err != nil {
		t.Fatal(err)
	}
	session["expires"] = time.Now()
	if raw, err = json.Marshal(session); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files[0], raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// testSignIn renews the session of a user who signed in before the upgrade, and signs in again elsewhere.
func testSignIn(t *testing.T, s *skew) {
	s.expire(t)
	s.says(t, "local:"+alice, []string{"HOME=" + s.home}, "whoami")
	elsewhere := t.TempDir()
	s.signIn(t, elsewhere)
	s.says(t, "local:"+alice, []string{"HOME=" + elsewhere}, "whoami")
	s.says(t, "", []string{"HOME=" + elsewhere}, "logout")
}

// testRequests sends requests to the member through each replica of the hub, and also as the plugin does.
func testRequests(t *testing.T, s *skew) {
	for _, replica := range s.hub.Replicas {
		if err := s.hub.AwaitServed(within(t, 30*time.Second), replica, s.cluster, keptToken); err != nil {
			t.Errorf("%s does not serve the member: %v", replica.Name, err)
		}
	}
	env := []string{"HOME=" + s.home}
	s.says(t, s.cluster.Name, env, "clusters")
	s.says(t, "Switched to context", env, "use", s.cluster.String())
	out, err := output(s.command(t, env, s.programs.Kubectl, "get", "nodes", "-o", "name"))
	if err != nil || out != "node/node\n" {
		t.Errorf("kubectl get nodes prints %q (%v)", out, err)
	}
	s.says(t, "node/node", env, "exec", s.cluster.String(), "--", s.programs.Kubectl, "get", "nodes", "-o", "name")
}

// testBindingChanges creates a binding and deletes it.
func testBindingChanges(t *testing.T, s *skew) {
	get := s.getNodes(t)
	if err := get(t.Context()); !refused(err) {
		t.Fatalf("without a binding the answer is %v", err)
	}
	target := []string{"hub:demo", "cluster-viewer", "--cluster", s.cluster.Name, "--context", "hub"}
	plugin := s.release(s.now.plugin).has("grants")
	if plugin {
		s.says(t, "", s.administrator(), append([]string{"grant"}, target...)...)
	} else {
		s.bind(t, "demo", "hub:demo")
	}
	testkit.Eventually(t, 30*time.Second, get)
	if plugin {
		s.says(t, "", s.administrator(), append([]string{"revoke"}, target...)...)
	} else {
		binding := &v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "demo"}}
		if err := s.hub.Client.Delete(t.Context(), binding); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		if err := get(ctx); !refused(err) {
			return fmt.Errorf("after the binding is deleted the answer is %w", err)
		}
		return nil
	})
}

// testAnotherProject creates a project. If the plugin manages projects, it also adds a namespace to the project.
func testAnotherProject(t *testing.T, s *skew) {
	name := fmt.Sprintf("web-%d", s.round)
	s.runProject(t, name)
	if !s.release(s.now.plugin).has("projects") {
		return
	}
	s.says(t, "", s.administrator(), "project", "add-namespace", name, name+"-more", "--context", "hub")
	testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		_, err := s.member.Kubectl(ctx, nil, "get", "namespace", name+"-more")
		return err
	})
}

// testAnotherPlan runs a plan, and follows it with the plugin.
func testAnotherPlan(t *testing.T, s *skew) {
	name := fmt.Sprintf("k3s-%d", s.round)
	s.runPlan(t, name, fmt.Sprintf("v%d", s.round))
	s.says(t, "", s.administrator(), "plan", "watch", name, "--context", "hub")
}

// testKept checks that the objects from before the upgrade are unchanged and in force.
func testKept(t *testing.T, s *skew) {
	for _, k := range s.kept {
		if err := s.hub.Client.Get(t.Context(), client.ObjectKeyFromObject(k), k.Object); err != nil {
			t.Error(err)
			continue
		}
		if k.GetUID() != k.uid || k.GetGeneration() != k.generation {
			t.Errorf("%T %s has the UID %s and the generation %d, want %s and %d as before",
				k.Object, k.GetName(), k.GetUID(), k.GetGeneration(), k.uid, k.generation)
		}
		if k.conditions != nil {
			s.awaitReady(t, k.Object, k.reason, func() []metav1.Condition { return *k.conditions })
		}
	}
}
