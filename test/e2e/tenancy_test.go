// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

// team is a hub with two members, each with its own API server.
type team struct {
	*system
	t          *testing.T
	prod, edge *framework.Plane
	agent      *framework.Agent // of prod
}

func TestATeamWorksInTwoMembers(t *testing.T) {
	t.Parallel()
	s := start(t)
	edge, err := s.plane("edge")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = edge.Kill() })
	w := &team{system: s, t: t, prod: s.member, edge: edge}
	prod, agent := s.imported(t, "prod", s.member, protocol.AgentNamespace)
	w.agent = agent
	other, _ := s.imported(t, "edge", edge, protocol.AgentNamespace)
	s.await(t, prod, 30*time.Second, framework.Ready)
	s.await(t, other, 30*time.Second, framework.Ready)
	for _, step := range []struct {
		name string
		test func(*team, *testing.T)
	}{
		{"a binding lets its principal in, and no other user, until it is removed", testTeamBinding},
		{"a project has its namespaces, people and secrets in both members", testTeamProject},
		{"an agent that was away takes away what was taken from it", testTeamAway},
		{"what the team had is gone everywhere", testTeamGone},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.test(w, t) }) {
			t.Logf("manager log:\n%s\nagent log:\n%s", tail(s.hub.Manager.LogFile()), tail(agent.Log))
			return
		}
	}
}

// may waits until the member's API server reports that a user has, or does not have, a right.
func may(t *testing.T, plane *framework.Plane, want bool, user string, a authorizationv1.ResourceAttributes) {
	t.Helper()
	testkit.Eventually(t, 10*time.Second, func(ctx context.Context) error {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &a}}
		if err := plane.Client.Create(ctx, review); err != nil {
			return err
		}
		if review.Status.Allowed != want {
			return fmt.Errorf("%s may %s %s in %q of %s: %t, want %t", user, a.Verb, a.Resource, a.Namespace, plane.Name(), review.Status.Allowed, want)
		}
		return nil
	})
}

func onHub(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}
}

func cluster(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: name}
}

func getNodes() authorizationv1.ResourceAttributes {
	return authorizationv1.ResourceAttributes{Verb: "get", Resource: "nodes"}
}

func testTeamBinding(w *team, t *testing.T) {
	if _, err := w.kubectl(t, cluster("prod"), strangerToken, "get", "nodes"); err == nil || !strings.Contains(err.Error(), "may not reach cluster") {
		t.Fatal(err)
	}
	b := &v1.ClusterRoleTemplateBinding{ObjectMeta: onHub("stranger"), Spec: v1.ClusterRoleTemplateBindingSpec{
		ClusterTarget: v1.ClusterTarget{ClusterName: "prod"}, RoleTemplateName: "cluster-viewer", Subject: v1.Subject{Kind: v1.SubjectUser, Name: "hub:stranger"}}}
	create(t, w.hub.Plane, b)
	may(t, w.prod, true, "hub:stranger", getNodes())
	may(t, w.edge, false, "hub:stranger", getNodes())
	testkit.Eventually(t, 15*time.Second, func(context.Context) error { // the refusal is remembered for five seconds
		_, err := w.kubectl(t, cluster("prod"), strangerToken, "get", "nodes")
		return err
	})
	if _, err := w.kubectl(t, cluster("prod"), strangerToken, "create", "namespace", "mine"); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Error(err)
	}
	if _, err := w.kubectl(t, cluster("edge"), strangerToken, "get", "nodes"); err == nil || !strings.Contains(err.Error(), "may not reach cluster") {
		t.Error(err)
	}
	w.applied(t, b, func() []metav1.Condition { return b.Status.Conditions })
	if err := w.hub.Client.Delete(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	may(t, w.prod, false, "hub:stranger", getNodes())
	if _, err := w.kubectl(t, cluster("prod"), strangerToken, "get", "nodes"); err == nil || !strings.Contains(err.Error(), "may not reach cluster") {
		t.Error(err)
	}
}

// applied waits until an object is Ready.
func (w *team) applied(t *testing.T, object client.Object, conditions func() []metav1.Condition) {
	t.Helper()
	testkit.Eventually(t, 15*time.Second, func(ctx context.Context) error {
		if err := w.hub.Client.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		for _, c := range conditions() {
			if c.Type == v1.ConditionReady && c.Reason == v1.ReasonApplied && c.ObservedGeneration == object.GetGeneration() {
				return nil
			}
		}
		return fmt.Errorf("%s: %+v", object.GetName(), conditions())
	})
}

func podsIn(namespace, verb string) authorizationv1.ResourceAttributes {
	return authorizationv1.ResourceAttributes{Verb: verb, Resource: "pods", Namespace: namespace}
}

func testTeamProject(w *team, t *testing.T) {
	project := &v1.Project{ObjectMeta: onHub("web"), Spec: v1.ProjectSpec{
		ClusterTarget: v1.ClusterTarget{ClusterSelector: &metav1.LabelSelector{}}, Namespaces: []string{"web"}, NetworkIsolation: v1.IsolationProject}}
	create(t, w.hub.Plane, project)
	create(t, w.hub.Plane, &v1.ProjectRoleTemplateBinding{ObjectMeta: onHub("web-devs"), Spec: v1.ProjectRoleTemplateBindingSpec{
		ProjectName: "web", RoleTemplateName: "project-member", Subject: v1.Subject{Kind: v1.SubjectUser, Name: "hub:stranger"}}})
	secret := &corev1.Secret{ObjectMeta: onHub("registry"), StringData: map[string]string{"password": "hunter2"}}
	secret.Labels = map[string]string{v1.LabelProject: "web"}
	create(t, w.hub.Plane, secret)
	for _, plane := range []*framework.Plane{w.prod, w.edge} {
		may(t, plane, true, "hub:stranger", podsIn("web", "create"))
		may(t, plane, false, "hub:stranger", podsIn("default", "create"))
		w.copied(t, plane, "web", "hunter2")
	}
	w.applied(t, project, func() []metav1.Condition { return project.Status.Conditions })
	if project.Status.NamespaceCount != 2 {
		t.Errorf("the status is %+v, want two namespaces", project.Status)
	}
	// When a user adds the label to a namespace in the member, the namespace receives all objects without a request to the
	// hub.
	more := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "web-staging", Labels: map[string]string{v1.LabelProject: "web"}}}
	create(t, w.prod, more)
	may(t, w.prod, true, "hub:stranger", podsIn("web-staging", "create"))
	w.copied(t, w.prod, "web-staging", "hunter2")
	secret.StringData = map[string]string{"password": "changed"}
	if err := w.hub.Client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	w.copied(t, w.prod, "web-staging", "changed")
	w.copied(t, w.edge, "web", "changed")
	testkit.Eventually(t, 15*time.Second, func(context.Context) error {
		_, err := w.kubectl(t, cluster("edge"), strangerToken, "-n", "web", "get", "pods")
		return err
	})
}

// copied waits until a namespace of a member has the Secret with the given password.
func (w *team) copied(t *testing.T, plane *framework.Plane, namespace, password string) {
	t.Helper()
	testkit.Eventually(t, 10*time.Second, func(ctx context.Context) error {
		copied := &corev1.Secret{}
		if err := plane.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: "registry"}, copied); err != nil {
			return err
		}
		if string(copied.Data["password"]) != password {
			return errors.New("the Secret holds another password")
		}
		return nil
	})
}

func testTeamAway(w *team, t *testing.T) {
	b := &v1.ClusterRoleTemplateBinding{ObjectMeta: onHub("away"), Spec: v1.ClusterRoleTemplateBindingSpec{
		ClusterTarget: v1.ClusterTarget{ClusterName: "prod"}, RoleTemplateName: "cluster-viewer", Subject: v1.Subject{Kind: v1.SubjectUser, Name: "github:away"}}}
	create(t, w.hub.Plane, b)
	may(t, w.prod, true, "github:away", getNodes())
	kill(t, w.agent.Process)
	if err := w.hub.Client.Delete(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	w.startAgent(t, w.agent)
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error { // the Lease of the killed agent has to expire
		if err := w.prod.Client.Get(ctx, types.NamespacedName{Name: "drover:crtb:away:drover:cluster:cluster-viewer"}, &rbacv1.ClusterRoleBinding{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
	may(t, w.prod, false, "github:away", getNodes())
}

func testTeamGone(w *team, t *testing.T) {
	for _, object := range []client.Object{
		&v1.Project{ObjectMeta: onHub("web")}, &v1.ProjectRoleTemplateBinding{ObjectMeta: onHub("web-devs")}, &corev1.Secret{ObjectMeta: onHub("registry")},
	} {
		if err := w.hub.Client.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	for _, plane := range []*framework.Plane{w.prod, w.edge} {
		may(t, plane, false, "hub:stranger", podsIn("web", "create"))
		testkit.Eventually(t, 15*time.Second, func(ctx context.Context) error { return leftIn(ctx, plane) })
		if err := plane.Client.Get(t.Context(), types.NamespacedName{Name: "web"}, &corev1.Namespace{}); err != nil {
			t.Errorf("the project's namespace is gone with it: %v", err)
		}
	}
	testkit.Eventually(t, 20*time.Second, func(ctx context.Context) error {
		role := &rbacv1.Role{ObjectMeta: onHub("drover:prtb:web-devs")}
		if err := w.hub.Client.Get(ctx, client.ObjectKeyFromObject(role), role); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the Role on the hub is there: %w", err)
		}
		return nil
	})
}

// leftIn returns an error if a member still has objects of the team. The guards remain.
func leftIn(ctx context.Context, plane *framework.Plane) error {
	ours := client.MatchingLabels{v1.LabelManagedBy: v1.ManagedBy}
	for _, list := range []client.ObjectList{&rbacv1.ClusterRoleList{}, &rbacv1.ClusterRoleBindingList{}, &rbacv1.RoleBindingList{}, &corev1.SecretList{}} {
		if err := plane.Client.List(ctx, list, ours, client.HasLabels{v1.LabelSet}); err != nil {
			return err
		}
		if raw := fmt.Sprintf("%+v", list); strings.Contains(raw, "UID:") {
			return fmt.Errorf("%s has %.600s", plane.Name(), raw)
		}
	}
	return nil
}
