// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// kept is a hub with two managers, and two members in two workspaces, each with a project of the same name.
type kept struct {
	*system
	prod, edge           *framework.Plane
	prodAgent, edgeAgent *framework.Agent
}

// farWorkspace is the workspace of the second member, edgeCluster.
const farWorkspace = "far"

var edgeCluster = types.NamespacedName{Namespace: farWorkspace, Name: "edge"}

// TestLong_DeliveredObjectsAreKept kills, stops and changes managers and agents, and checks the objects in the members.
func TestLong_DeliveredObjectsAreKept(t *testing.T) {
	t.Parallel()
	s := startWith(t, (*system).startPair)
	edge, err := s.plane("edge")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = edge.Kill() })
	k := &kept{system: s, prod: s.member, edge: edge}
	cluster, agent := s.imported(t, "prod", k.prod, protocol.AgentNamespace)
	k.prodAgent = agent
	s.await(t, cluster, 30*time.Second, framework.Ready)
	k.importEdge(t, v1.ProfileFull)
	k.steps(t, []step{
		{"two projects of one name in two workspaces share nothing", testNamesakes},
		{"the agent alone ends a binding, equips namespaces and repairs, also after a restart", testAlone},
		{"managers that come back send nothing that is there, and remove what was deleted meanwhile", testManagersReturn},
		{"a leader that is killed in the midst of changes loses nothing and removes nothing wrongly", testLeaderDies},
		{"a quota that is divided anew never exceeds the total", testQuotaChurn},
		{"nothing is left anywhere", testNothingLeft},
	})
}

// TestRulesOfTheMemberBoundDeliveries removes the agent's rights and restores them, and undoes deliveries in the
// member.
func TestRulesOfTheMemberBoundDeliveries(t *testing.T) {
	t.Parallel()
	s := startAlone(t)
	create(t, s.hub.Plane, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: farWorkspace}})
	k := &kept{system: s, edge: s.member}
	k.importEdge(t, v1.ProfileReadOnly)
	k.steps(t, []step{
		{"an agent that only reads serves reads, refuses the rest, and takes all with another manifest", testProfile},
		{"a field manager that changes an object back is named, and no longer when it stops", testFight},
		{"CVE-2021-36782: a live agent whose Cluster is patched to ReadOnly opens nothing, and nothing of the agent's is readable later", testProfilePatched},
	})
}

type step struct {
	name string
	test func(*kept, *testing.T)
}

// Each step continues from the previous one, so the test stops at the first step that fails.
func (k *kept) steps(t *testing.T, all []step) {
	for _, step := range all {
		if t.Run(step.name, func(t *testing.T) { step.test(k, t) }) {
			continue
		}
		for _, replica := range k.hub.Replicas {
			t.Logf("%s:\n%s", replica.Name, tail(replica.Process.LogFile()))
		}
		for _, agent := range []*framework.Agent{k.prodAgent, k.edgeAgent} {
			if agent != nil {
				t.Logf("an agent:\n%s", tail(agent.Log))
			}
		}
		return
	}
}

// importEdge imports the second member into another workspace.
func (k *kept) importEdge(t *testing.T, profile v1.AgentProfile) {
	t.Helper()
	c := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: edgeCluster.Namespace, Name: edgeCluster.Name}}
	c.Spec.Agent.Profile = profile
	create(t, k.hub.Plane, c)
	k.edgeAgent = k.agent(t, k.manifest(t, c), "edge", k.edge, protocol.AgentNamespace)
	k.await(t, edgeCluster, 30*time.Second, framework.Ready)
}

// startPair starts a hub with two managers that take over leadership from each other sooner than usual.
func (s *system) startPair(t *testing.T) {
	t.Helper()
	plane, err := s.plane("hub", lab.User{Name: "demo", Token: demoToken}, lab.User{Name: "stranger", Token: strangerToken})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Kill() })
	s.hub, err = framework.InstallReplicas(within(t, 2*time.Minute), plane, framework.Layout{Replicas: 2, Configure: func(c *config.Config) {
		c.Drain = config.Drain{Delay: &metav1.Duration{}, Sessions: &metav1.Duration{Duration: time.Second}}
		c.LeaderElection.LeaseDuration, c.LeaderElection.RenewDeadline, c.LeaderElection.RetryPeriod = seconds(6), seconds(4), seconds(1)
	}})
	t.Cleanup(func() { _ = s.hub.StopManagers() })
	if err != nil {
		t.Fatal(err)
	}
	create(t, plane, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: farWorkspace}})
}

func seconds(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Second} }

// killManagers ends both managers as a power failure does. startManagers starts them again.
func (s *system) killManagers(t *testing.T) {
	t.Helper()
	for _, replica := range s.hub.Replicas {
		kill(t, replica.Process)
	}
}

func (s *system) startManagers(t *testing.T) {
	t.Helper()
	started := make(chan error, len(s.hub.Replicas))
	for _, replica := range s.hub.Replicas {
		go func() { started <- replica.Start(within(t, time.Minute)) }()
	}
	for range s.hub.Replicas {
		if err := <-started; err != nil {
			t.Fatal(err)
		}
	}
	if err := s.hub.AwaitBalanced(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
}

// restartAgent kills an agent and starts it again. The Lease of the killed agent has to expire before the new one
// leads.
func (k *kept) restartAgent(t *testing.T, agent *framework.Agent) {
	t.Helper()
	kill(t, agent.Process)
	k.startAgent(t, agent)
}

func (k *kept) bind(t *testing.T, workspace, name, cluster, user string, end *metav1.Time) *v1.ClusterRoleTemplateBinding {
	t.Helper()
	b := &v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: name}, Spec: v1.ClusterRoleTemplateBindingSpec{
		ClusterTarget: v1.ClusterTarget{ClusterName: cluster}, RoleTemplateName: "cluster-viewer",
		Subject: v1.Subject{Kind: v1.SubjectUser, Name: user}, ExpiresAt: end}}
	create(t, k.hub.Plane, b)
	return b
}

// reason waits until an object's Ready condition has the given reason, and returns the condition's message.
func (k *kept) reason(t *testing.T, limit time.Duration, object client.Object, reason string) (message string) {
	t.Helper()
	testkit.Eventually(t, limit, func(context.Context) error {
		if err := k.hub.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		var conditions []metav1.Condition
		switch o := object.(type) {
		case *v1.ClusterRoleTemplateBinding:
			conditions = o.Status.Conditions
		case *v1.ProjectRoleTemplateBinding:
			conditions = o.Status.Conditions
		case *v1.Project:
			conditions = o.Status.Conditions
		case *v1.Baseline:
			conditions = o.Status.Conditions
		}
		c := meta.FindStatusCondition(conditions, v1.ConditionReady)
		if c == nil || c.Reason != reason || c.ObservedGeneration != object.GetGeneration() {
			return fmt.Errorf("%s: %+v, want %s", object.GetName(), c, reason)
		}
		message = c.Message
		return nil
	})
	return message
}

// setProfile changes the profile of the second member's agent, applies the new manifest and starts the agent with the
// new settings.
func (k *kept) setProfile(t *testing.T, profile v1.AgentProfile) {
	t.Helper()
	c := k.cluster(t, edgeCluster)
	before := k.manifest(t, c)
	testkit.Update(t, k.hub.Client, c, func(c *v1.Cluster) { c.Spec.Agent.Profile = profile })
	var manifest []byte
	testkit.Eventually(t, 20*time.Second, func(context.Context) error {
		if manifest = k.manifest(t, c); string(manifest) == string(before) {
			return errors.New("the manifest is the former one")
		}
		return nil
	})
	kill(t, k.edgeAgent.Process)
	k.edgeAgent = k.agent(t, manifest, "edge", k.edge, protocol.AgentNamespace)
}

func (k *kept) manifest(t *testing.T, c *v1.Cluster) []byte {
	t.Helper()
	manifest, err := k.hub.Manifest(within(t, 20*time.Second), client.ObjectKeyFromObject(c), c.UID)
	if err != nil {
		t.Fatal(err)
	}
	return manifest
}

func testProfile(k *kept, t *testing.T) {
	create(t, k.hub.Plane, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: farWorkspace, Name: "demo"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "demo"}}})
	b := k.bind(t, farWorkspace, "viewer", "edge", "github:viewer", nil)
	readOnly := func() {
		t.Helper()
		testkit.Eventually(t, 30*time.Second, func(context.Context) error {
			_, err := k.kubectl(t, edgeCluster, demoToken, "get", "configmaps", "-A")
			return err
		})
		for _, args := range [][]string{{"create", "namespace", "written"}, {"delete", "namespace", "default"}, {"get", "secrets", "-A"}} {
			if out, err := k.kubectl(t, edgeCluster, demoToken, args...); err == nil || !strings.Contains(err.Error(), "orbidden") {
				t.Errorf("%v: %v %s, want Forbidden", args, err, out)
			}
		}
		k.reason(t, 30*time.Second, b, v1.ReasonAgentReadOnly)
		may(t, k.edge, false, "system:serviceaccount:drover-agent:drover-agent", authorizationv1.ResourceAttributes{Verb: "impersonate", Resource: "users"})
		may(t, k.edge, false, "system:serviceaccount:drover-agent:drover-agent", authorizationv1.ResourceAttributes{Verb: "create", Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings"})
	}
	readOnly()
	may(t, k.edge, false, "github:viewer", getNodes())
	k.setProfile(t, v1.ProfileFull)
	k.reason(t, time.Minute, b, v1.ReasonApplied)
	may(t, k.edge, true, "github:viewer", getNodes())
	k.setProfile(t, v1.ProfileReadOnly)
	readOnly()
	k.setProfile(t, v1.ProfileFull)
	k.reason(t, time.Minute, b, v1.ReasonApplied)
	if out, err := k.kubectl(t, edgeCluster, demoToken, "create", "namespace", "written"); err != nil {
		t.Errorf("create a namespace: %v, %v", err, out)
	}
}

// testProfilePatched patches the profile of a running Full agent, as an attacker did, at first without applying the
// manifest, and later with it. The users called strangers may reach the member but have no rights in it.
func testProfilePatched(k *kept, t *testing.T) {
	rules := []rbacv1.PolicyRule{{APIGroups: []string{v1.Group}, Resources: []string{"clusters/proxy"}, Verbs: []string{"get"}}}
	create(t, k.hub.Plane, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: farWorkspace, Name: "stranger"}, Rules: rules})
	create(t, k.hub.Plane, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: farWorkspace, Name: "stranger"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "stranger"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "stranger"}}})
	refused := func(as string, args ...string) {
		t.Helper()
		testkit.Eventually(t, time.Minute, func(context.Context) error { // the hub knows the right to reach the member a moment later
			out, err := k.kubectl(t, edgeCluster, strangerToken, args...)
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("User %q cannot", as)) {
				return fmt.Errorf("%v: %w %s", args, err, out)
			}
			return nil
		})
	}
	key := []string{"get", "secret", protocol.IdentitySecret, "-n", protocol.AgentNamespace}
	refused("hub:stranger", key...)
	b := &v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: farWorkspace, Name: "viewer"}}
	k.reason(t, time.Minute, b, v1.ReasonApplied)
	c := k.cluster(t, edgeCluster)
	if err := k.hub.Client.Patch(t.Context(), c, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"agent":{"profile":"ReadOnly"}}}`))); err != nil {
		t.Fatal(err)
	}
	k.awaitAgent(t, edgeCluster, time.Minute, metav1.ConditionFalse, v1.ReasonAgentProfileDiffers)
	k.reason(t, time.Minute, b, v1.ReasonAgentReadOnly)
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		if left := owned(ctx, k.edge); len(left) > 0 {
			return fmt.Errorf("%d objects are left, such as %s %s", len(left), left[0].GetKind(), left[0].GetName())
		}
		return nil
	})
	refused("hub:stranger", key...)
	refused("hub:stranger", "get", "configmaps", "-A")
	if d := k.deployment(t); strings.Contains(d.Spec.Template.Spec.Containers[0].String(), protocol.EnvProfile) {
		t.Error("the profile came through the tunnel")
	}
	manifest := k.manifest(t, c)
	kill(t, k.edgeAgent.Process)
	k.edgeAgent = k.agent(t, manifest, "edge", k.edge, protocol.AgentNamespace)
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		_, err := k.kubectl(t, edgeCluster, strangerToken, "get", "configmaps", "-A")
		return err
	})
	refused(protocol.Viewer, key...)
	refused(protocol.Viewer, "get", "secrets", "-A")
	k.setProfile(t, v1.ProfileFull)
	k.reason(t, time.Minute, b, v1.ReasonApplied)
}

func amounts(cpu string) corev1.ResourceList {
	return corev1.ResourceList{"limits.cpu": resource.MustParse(cpu)}
}

// namesake creates project "web" in a workspace, with all settings that a project can have.
func (k *kept) namesake(t *testing.T, workspace, cluster, namespace, user, password string) {
	t.Helper()
	object := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: workspace, Name: name} }
	create(t, k.hub.Plane, &v1.Project{ObjectMeta: object("web"), Spec: v1.ProjectSpec{
		ClusterTarget: v1.ClusterTarget{ClusterName: cluster}, Namespaces: []string{namespace}, NetworkIsolation: v1.IsolationProject,
		ResourceQuota: amounts("10"), NamespaceDefaultResourceQuota: amounts("4"), PodSecurity: v1.PodSecurityBaseline,
		ContainerDefaults: &v1.ContainerDefaults{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m")}},
	}})
	create(t, k.hub.Plane, &v1.ProjectRoleTemplateBinding{ObjectMeta: object("devs"), Spec: v1.ProjectRoleTemplateBindingSpec{
		ProjectName: "web", RoleTemplateName: "project-member", Subject: v1.Subject{Kind: v1.SubjectUser, Name: user}}})
	secret := &corev1.Secret{ObjectMeta: object("registry"), StringData: map[string]string{"password": password}}
	secret.Labels = map[string]string{v1.LabelProject: "web"}
	create(t, k.hub.Plane, secret)
	k.reason(t, 30*time.Second, &v1.Project{ObjectMeta: object("web")}, v1.ReasonApplied)
}

// equipped returns an error that names the missing objects in a namespace of project "web".
func equipped(ctx context.Context, plane *framework.Plane, namespace, password string) error {
	var has []string
	for _, o := range ownedIn(ctx, plane, namespace) {
		has = append(has, o.GetKind())
	}
	slices.Sort(has)
	if want := []string{"LimitRange", "NetworkPolicy", "ResourceQuota", "RoleBinding", "Secret"}; !slices.Equal(has, want) {
		return fmt.Errorf("namespace %s has %v, want %v", namespace, has, want)
	}
	ns := &corev1.Namespace{}
	if err := plane.Client.Get(ctx, types.NamespacedName{Name: namespace}, ns); err != nil || ns.Labels["pod-security.kubernetes.io/enforce"] != "baseline" {
		return fmt.Errorf("labels of namespace %s: %v: %w", namespace, ns.Labels, err)
	}
	copied := &corev1.Secret{}
	if err := plane.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: "registry"}, copied); err != nil || string(copied.Data["password"]) != password {
		return fmt.Errorf("the Secret in namespace %s is another: %w", namespace, err)
	}
	return nil
}

// ownedIn returns the delivered objects in a namespace of a member.
func ownedIn(ctx context.Context, plane *framework.Plane, namespace string) []unstructured.Unstructured {
	return slices.DeleteFunc(owned(ctx, plane), func(o unstructured.Unstructured) bool { return o.GetNamespace() != namespace })
}

// owned returns all delivered objects of a member. Objects that cannot be listed are omitted.
func owned(ctx context.Context, plane *framework.Plane) []unstructured.Unstructured {
	var all []unstructured.Unstructured
	for _, kind := range []string{
		"v1 ResourceQuota", "v1 LimitRange", "v1 Secret", "networking.k8s.io/v1 NetworkPolicy", "rbac.authorization.k8s.io/v1 ClusterRole",
		"rbac.authorization.k8s.io/v1 ClusterRoleBinding", "rbac.authorization.k8s.io/v1 Role", "rbac.authorization.k8s.io/v1 RoleBinding",
		"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy", "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding",
	} {
		version, name, _ := strings.Cut(kind, " ")
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion(version)
		list.SetKind(name + "List")
		if plane.Client.List(ctx, list, client.HasLabels{v1.LabelSet}) == nil {
			all = append(all, list.Items...)
		}
	}
	return all
}

// versions returns the resource versions of all delivered objects of a member, by kind and name.
func versions(ctx context.Context, plane *framework.Plane) map[string]string {
	all := map[string]string{}
	for _, o := range owned(ctx, plane) {
		all[o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName()] = string(o.GetUID()) + " " + o.GetResourceVersion()
	}
	return all
}

func testNamesakes(k *kept, t *testing.T) {
	k.namesake(t, metav1.NamespaceDefault, "prod", "web", "github:near", "near-secret")
	k.namesake(t, farWorkspace, "edge", "far-web", "github:far", "far-secret")
	testkit.Eventually(t, 20*time.Second, func(ctx context.Context) error {
		return errors.Join(equipped(ctx, k.prod, "web", "near-secret"), equipped(ctx, k.edge, "far-web", "far-secret"))
	})
	may(t, k.prod, true, "github:near", podsIn("web", "create"))
	may(t, k.edge, true, "github:far", podsIn("far-web", "create"))
	may(t, k.prod, false, "github:far", podsIn("web", "get"))
	may(t, k.edge, false, "github:near", podsIn("far-web", "get"))
	before := versions(t.Context(), k.edge)
	if err := k.hub.Client.Delete(t.Context(), &v1.Project{ObjectMeta: onHub("web")}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 20*time.Second, func(ctx context.Context) error {
		if left := ownedIn(ctx, k.prod, "web"); len(left) > 0 {
			return fmt.Errorf("%d objects are left, such as %s %s", len(left), left[0].GetKind(), left[0].GetName())
		}
		return nil
	})
	if after := versions(t.Context(), k.edge); !maps.Equal(before, after) {
		t.Errorf("the other project has changed: before\n%v\nafter\n%v", before, after)
	}
	for _, object := range []client.Object{&v1.ProjectRoleTemplateBinding{ObjectMeta: onHub("devs")}, &corev1.Secret{ObjectMeta: onHub("registry")}} {
		if err := k.hub.Client.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	k.namesake(t, metav1.NamespaceDefault, "prod", "web", "github:near", "near-secret")
}

func gone(ctx context.Context, plane *framework.Plane, object client.Object) error {
	if err := plane.Client.Get(ctx, client.ObjectKeyFromObject(object), object); !apierrors.IsNotFound(err) {
		return fmt.Errorf("%T %s is there: %w", object, object.GetName(), err)
	}
	return nil
}
