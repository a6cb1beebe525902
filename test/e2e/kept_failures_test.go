// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

// agentPatience is the maximum time until an agent that is restarted leads and has checked everything.
const agentPatience = time.Minute

func namespaceIn(project, name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelProject: project}}}
}

func in(d time.Duration) *metav1.Time {
	end := metav1.NewTime(time.Now().Add(d).Truncate(time.Second))
	return &end
}

func testAlone(k *kept, t *testing.T) {
	soon := k.bind(t, metav1.NamespaceDefault, "soon", "prod", "github:soon", in(12*time.Second))
	later := k.bind(t, metav1.NamespaceDefault, "later", "prod", "github:later", in(20*time.Second))
	may(t, k.prod, true, "github:soon", getNodes())
	may(t, k.prod, true, "github:later", getNodes())
	k.killManagers(t)

	create(t, k.prod, namespaceIn("web", "web-alone"))
	testkit.Eventually(t, 10*time.Second, func(ctx context.Context) error { return equipped(ctx, k.prod, "web-alone", "near-secret") })
	may(t, k.prod, true, "github:near", podsIn("web-alone", "create"))
	k.harm(t, "web-alone")
	testkit.Eventually(t, 10*time.Second, func(ctx context.Context) error { return equipped(ctx, k.prod, "web-alone", "near-secret") })
	ends(t, k, soon)

	k.restartAgent(t, k.prodAgent)
	create(t, k.prod, namespaceIn("web", "web-restarted"))
	testkit.Eventually(t, agentPatience, func(ctx context.Context) error { return equipped(ctx, k.prod, "web-restarted", "near-secret") })
	k.harm(t, "web-restarted")
	testkit.Eventually(t, 10*time.Second, func(ctx context.Context) error { return equipped(ctx, k.prod, "web-restarted", "near-secret") })
	ends(t, k, later)

	k.startManagers(t)
	k.await(t, cluster("prod"), time.Minute, framework.Ready)
	k.reason(t, 30*time.Second, soon, v1.ReasonExpired)
	k.reason(t, 30*time.Second, later, v1.ReasonExpired)
	for _, b := range []*v1.ClusterRoleTemplateBinding{soon, later} {
		testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error {
			if err := k.hub.Client.Get(ctx, client.ObjectKeyFromObject(b), b); err != nil || meta.IsStatusConditionTrue(b.Status.Conditions, v1.ConditionComplete) {
				return err
			}
			return fmt.Errorf("binding %s is not known to be taken away: %+v", b.Name, b.Status.Conditions)
		})
	}
}

// ends waits until a binding expires. Before this its subject must have the right, and soon after it must not.
func ends(t *testing.T, k *kept, b *v1.ClusterRoleTemplateBinding) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		if time.Until(b.Spec.ExpiresAt.Time) > 0 {
			return fmt.Errorf("binding %s is in force", b.Name)
		}
		return nil
	})
	may(t, k.prod, false, b.Spec.Subject.Name, getNodes())
}

// harm deletes or empties the objects that were delivered to a namespace.
func (k *kept) harm(t *testing.T, namespace string) {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: namespace, Name: "drover-project"}
	quota := &corev1.ResourceQuota{ObjectMeta: meta}
	changed := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "registry"}}
	ctx := within(t, 10*time.Second)
	if err := errors.Join(
		k.prod.Client.DeleteAllOf(ctx, &rbacv1.RoleBinding{}, client.InNamespace(namespace)),
		k.prod.Client.Delete(ctx, &corev1.LimitRange{ObjectMeta: meta}),
		k.prod.Client.Patch(ctx, quota, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"hard":{"limits.cpu":"99"}}}`))),
		k.prod.Client.Patch(ctx, changed, client.RawPatch(types.MergePatchType, []byte(`{"data":{"password":"d3Jvbmc="}}`))),
	); err != nil {
		t.Fatal(err)
	}
	if hard := quota.Spec.Hard["limits.cpu"]; hard.String() != "99" {
		t.Fatalf("the quota was not changed: %s", hard.String())
	}
}

func testManagersReturn(k *kept, t *testing.T) {
	removed := k.bind(t, metav1.NamespaceDefault, "removed", "prod", "github:removed", nil)
	stays := k.bind(t, metav1.NamespaceDefault, "stays", "prod", "github:stays", nil)
	k.reason(t, 30*time.Second, removed, v1.ReasonApplied)
	k.reason(t, 30*time.Second, stays, v1.ReasonApplied)
	k.killManagers(t)
	near, far, before := versions(t.Context(), k.prod), versions(t.Context(), k.edge), k.statuses(t)
	watch := testkit.StartStopwatch()
	if err := k.hub.Client.Delete(t.Context(), removed); err != nil {
		t.Fatal(err)
	}
	k.startManagers(t)
	testkit.Eventually(t, agentPatience, func(ctx context.Context) error { // what no binding wants is removed only when all bindings are known
		return gone(ctx, k.prod, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "drover:crtb:removed:drover:cluster:cluster-viewer"}})
	})
	maps.DeleteFunc(near, func(name, _ string) bool { return strings.Contains(name, "crtb:removed:") })
	if now := versions(t.Context(), k.prod); !maps.Equal(near, now) {
		t.Errorf("written in the member: %s", difference(near, now))
	}
	if now := versions(t.Context(), k.edge); !maps.Equal(far, now) {
		t.Errorf("written in the other member: %s", difference(far, now))
	}
	k.sameStatuses(t, before, watch)
	k.restartAgent(t, k.prodAgent)
	k.await(t, cluster("prod"), time.Minute, framework.Ready)
	probe := k.bind(t, metav1.NamespaceDefault, "probe", "prod", "github:probe", nil)
	k.reason(t, agentPatience, probe, v1.ReasonApplied) // the agent leads again, and has reported its sets
	now := versions(t.Context(), k.prod)
	maps.DeleteFunc(now, func(name, _ string) bool { return strings.Contains(name, "crtb:probe:") })
	if !maps.Equal(near, now) {
		t.Errorf("written after the agent's restart: %s", difference(near, now))
	}
}

// statuses are the versions of all bindings and projects in both workspaces, and the contents of their statuses.
type statuses struct{ versions, contents map[string]string }

func (k *kept) statuses(t *testing.T) statuses {
	t.Helper()
	all := statuses{map[string]string{}, map[string]string{}}
	add := func(kind string, o client.Object, status any, conditions []metav1.Condition) {
		for i := range conditions {
			conditions[i].LastTransitionTime = metav1.Time{}
		}
		name := kind + " " + o.GetNamespace() + " " + o.GetName()
		content, err := json.Marshal(status)
		if err != nil {
			t.Fatal(err)
		}
		all.versions[name], all.contents[name] = o.GetResourceVersion(), string(content)
	}
	var clusterBindings v1.ClusterRoleTemplateBindingList
	var projectBindings v1.ProjectRoleTemplateBindingList
	var projects v1.ProjectList
	for _, list := range []client.ObjectList{&clusterBindings, &projectBindings, &projects} {
		if err := k.hub.Client.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range clusterBindings.Items {
		add("crtb", &b, b.Status, b.Status.Conditions)
	}
	for _, b := range projectBindings.Items {
		add("prtb", &b, b.Status, b.Status.Conditions)
	}
	for _, p := range projects.Items {
		add("project", &p, p.Status, p.Status.Conditions)
	}
	return all
}

// sameStatuses fails the test if any status other than the status of the removed binding was written. If agents had to
// wait because the machine is busy, a status may have reported this, but it must then return to its previous state.
func (k *kept) sameStatuses(t *testing.T, before statuses, watch testkit.Stopwatch) {
	t.Helper()
	const removed = "crtb default removed"
	delete(before.versions, removed)
	delete(before.contents, removed)
	now, lost := k.statuses(t), watch.Lost()
	if maps.Equal(before.versions, now.versions) {
		return
	}
	if written := difference(before.versions, now.versions); lost < time.Second {
		t.Errorf("written on the hub: %s", written)
	} else {
		t.Logf("written on the hub, while processes waited %s for the machine: %s", lost, written)
	}
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if now := k.statuses(t); !maps.Equal(before.contents, now.contents) {
			return fmt.Errorf("statuses are not what they were: %s", difference(before.contents, now.contents))
		}
		return nil
	})
}

// difference returns what differs between two maps.
func difference(before, after map[string]string) string {
	var all []string
	for name, version := range before {
		if after[name] != version {
			all = append(all, fmt.Sprintf("%s: %q, then %q", name, version, after[name]))
		}
	}
	for name, version := range after {
		if _, known := before[name]; !known {
			all = append(all, fmt.Sprintf("%s: new, %q", name, version))
		}
	}
	return strings.Join(all, "; ")
}

func testLeaderDies(k *kept, t *testing.T) {
	const count = 24
	before := versions(t.Context(), k.prod)
	wanted := map[string]bool{}
	name := func(i int) string { return fmt.Sprintf("many-%d", i) }
	for i := range count {
		k.bind(t, metav1.NamespaceDefault, name(i), "prod", "github:"+name(i), nil)
		wanted[name(i)] = true
		switch {
		case i == count/3:
			kill(t, k.hub.Replicas[0].Process)
		case i == 2*count/3: // one of the two has led
			if err := k.hub.Replicas[0].Start(within(t, time.Minute)); err != nil {
				t.Fatal(err)
			}
			kill(t, k.hub.Replicas[1].Process)
		case i%4 == 3:
			if err := k.hub.Client.Delete(t.Context(), &v1.ClusterRoleTemplateBinding{ObjectMeta: onHub(name(i - 2))}); err != nil {
				t.Fatal(err)
			}
			delete(wanted, name(i-2))
		}
	}
	if err := errors.Join(k.hub.Replicas[1].Start(within(t, time.Minute)), k.hub.AwaitBalanced(within(t, time.Minute))); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, agentPatience, func(ctx context.Context) error {
		got := map[string]bool{}
		for object := range versions(ctx, k.prod) {
			if _, rest, found := strings.Cut(object, "drover:crtb:many-"); found {
				binding, _, _ := strings.Cut(rest, ":")
				got["many-"+binding] = true
			}
		}
		if !maps.Equal(got, wanted) {
			return fmt.Errorf("the member has %v, want %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(wanted)))
		}
		return nil
	})
	after := versions(t.Context(), k.prod)
	maps.DeleteFunc(after, func(object, _ string) bool { return strings.Contains(object, ":many-") })
	if !maps.Equal(before, after) {
		t.Errorf("what was there all the time has changed: %s", difference(before, after))
	}
	for i := range count {
		if !wanted[name(i)] {
			continue
		}
		b := &v1.ClusterRoleTemplateBinding{ObjectMeta: onHub(name(i))}
		k.reason(t, 30*time.Second, b, v1.ReasonApplied)
		if err := k.hub.Client.Delete(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
}

// testQuotaChurn watches all quotas of a project while namespaces join and leave the project and the share of each
// changes.
func testQuotaChurn(k *kept, t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	quotas := &corev1.ResourceQuotaList{}
	ours := client.MatchingLabels{v1.LabelSet: "project.web"}
	if err := k.prod.Client.List(ctx, quotas, ours); err != nil {
		t.Fatal(err)
	}
	events, err := k.prod.Client.Watch(ctx, &corev1.ResourceQuotaList{}, ours, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: quotas.ResourceVersion}})
	if err != nil {
		t.Fatal(err)
	}
	total := resource.MustParse("10")
	hard := map[string]resource.Quantity{}
	for i := range quotas.Items {
		hard[quotas.Items[i].Namespace] = quotas.Items[i].Spec.Hard["limits.cpu"]
	}
	var watching sync.WaitGroup
	seen, left := 0, departed{names: map[string]bool{}}
	watching.Go(func() {
		for event := range events.ResultChan() {
			quota, ok := event.Object.(*corev1.ResourceQuota)
			if !ok {
				continue
			}
			if seen++; event.Type == watch.Deleted {
				delete(hard, quota.Namespace)
			} else {
				hard[quota.Namespace] = quota.Spec.Hard["limits.cpu"]
			}
			sum := resource.Quantity{}
			for namespace, amount := range hard {
				if !left.has(namespace) {
					sum.Add(amount)
				}
			}
			if sum.Cmp(total) > 0 {
				t.Errorf("after %d events the namespaces have %s together: %v", seen, sum.String(), hard)
			}
		}
	})
	k.churnQuota(t, &left)
	stop()
	events.Stop()
	watching.Wait()
	t.Logf("%d changes of quotas", seen)
	if seen < 10 {
		t.Error("too few to show anything")
	}
}

// departed are namespaces that have left the project. Their quotas are removed after the quotas of the other namespaces
// are applied.
type departed struct {
	mu    sync.Mutex // guards names
	names map[string]bool
}

func (d *departed) add(namespace string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.names[namespace] = true
}

func (d *departed) has(namespace string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.names[namespace]
}

func (k *kept) churnQuota(t *testing.T, gone *departed) {
	t.Helper()
	project := &v1.Project{ObjectMeta: onHub("web")}
	for round, share := range []string{"1", "3", "2", "5", "1", "4"} {
		name := fmt.Sprintf("web-churn-%d", round)
		create(t, k.prod, namespaceIn("web", name))
		testkit.Update(t, k.hub.Client, project, func(p *v1.Project) { p.Spec.NamespaceDefaultResourceQuota = amounts(share) })
		if round > 1 { // one namespace leaves
			left := namespaceIn("", fmt.Sprintf("web-churn-%d", round-2))
			gone.add(left.Name)
			if err := k.prod.Client.Patch(t.Context(), left, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+v1.LabelProject+`":null}}}`))); err != nil {
				t.Fatal(err)
			}
		}
		testkit.Eventually(t, 10*time.Second, func(ctx context.Context) error { return equipped(ctx, k.prod, name, "near-secret") })
	}
	k.reason(t, 30*time.Second, project, v1.ReasonApplied)
}

// testFight makes another field manager revert a role in the member until the status names this manager.
func testFight(k *kept, t *testing.T) {
	b := k.bind(t, farWorkspace, "contested", edgeCluster.Name, "github:contested", nil)
	k.reason(t, 30*time.Second, b, v1.ReasonApplied)
	role := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "drover:crtb:contested:drover:cluster:cluster-viewer"}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"rival"}]}`))
	ctx, stop := context.WithCancel(t.Context())
	var fighting sync.WaitGroup
	changes := 0
	fighting.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			current := role.DeepCopy()
			if err := k.edge.Client.Get(ctx, client.ObjectKeyFromObject(role), current); err == nil && current.Subjects[0].Name != "rival" {
				if k.edge.Client.Patch(ctx, current, patch, client.FieldOwner("rival-operator")) == nil {
					changes++
				}
			}
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})
	message := k.reason(t, 30*time.Second, b, v1.ReasonFighting)
	if !strings.Contains(message, "rival-operator") && !strings.Contains(fmt.Sprint(b.Status.Failures), "rival-operator") {
		t.Errorf("the rival is not named: %s %v", message, b.Status.Failures)
	}
	testkit.Eventually(t, time.Minute, func(context.Context) error { // the budget is spent: the rival's change stays
		last := role.DeepCopy()
		if err := k.edge.Client.Get(t.Context(), client.ObjectKeyFromObject(role), last); err != nil || time.Since(lastChange(last)) < 3*time.Second {
			return fmt.Errorf("it is still being changed: %w", err)
		}
		return nil
	})
	stop()
	fighting.Wait()
	if changes > 12 {
		t.Errorf("it was repaired %d times", changes)
	}
	k.reason(t, 4*time.Minute, b, v1.ReasonApplied)
	may(t, k.edge, true, "github:contested", getNodes())
	may(t, k.edge, false, "rival", getNodes())
}

// lastChange returns the time of an object's last change.
func lastChange(o client.Object) time.Time {
	var last time.Time
	for _, f := range o.GetManagedFields() {
		if f.Time != nil && f.Time.After(last) {
			last = f.Time.Time
		}
	}
	return last
}

func testNothingLeft(k *kept, t *testing.T) {
	template := &v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: "doomed"}, Spec: v1.RoleTemplateSpec{Context: v1.ContextCluster,
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}}}}}
	create(t, k.hub.Plane, template)
	doomed := k.bind(t, metav1.NamespaceDefault, "doomed", "prod", "hub:stranger", nil)
	testkit.Update(t, k.hub.Client, doomed, func(b *v1.ClusterRoleTemplateBinding) { b.Spec.RoleTemplateName = "doomed" })
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "drover:cluster:doomed"}}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "drover:crtb:doomed:" + role.Name}}
	testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		return errors.Join(k.prod.Client.Get(ctx, client.ObjectKeyFromObject(role), role),
			k.prod.Client.Get(ctx, client.ObjectKeyFromObject(binding), binding))
	})
	if err := k.hub.Client.Delete(t.Context(), template); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 20*time.Second, func(ctx context.Context) error {
		return errors.Join(gone(ctx, k.prod, role), gone(ctx, k.prod, binding))
	})
	for _, workspace := range []string{metav1.NamespaceDefault, farWorkspace} {
		for _, kind := range []client.Object{&v1.ClusterRoleTemplateBinding{}, &v1.ProjectRoleTemplateBinding{}, &v1.Project{}} {
			if err := k.hub.Client.DeleteAllOf(t.Context(), kind, client.InNamespace(workspace)); err != nil {
				t.Fatal(err)
			}
		}
		if err := k.hub.Client.DeleteAllOf(t.Context(), &corev1.Secret{}, client.InNamespace(workspace), client.MatchingLabels{v1.LabelProject: "web"}); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		return errors.Join(onlyGuards(ctx, k.prod), onlyGuards(ctx, k.edge), k.leftOnHub(ctx, &rbacv1.RoleList{}, &rbacv1.RoleBindingList{}))
	})
	for _, name := range []types.NamespacedName{cluster("prod"), edgeCluster} {
		c := k.cluster(t, name)
		if err := k.hub.Client.Delete(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if err := k.hub.AwaitGone(within(t, time.Minute), c); err != nil {
			t.Error(err)
		}
	}
	for _, plane := range []*framework.Plane{k.prod, k.edge} {
		testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
			if all := versions(ctx, plane); len(all) > 0 {
				return fmt.Errorf("%s has %v", plane.Name(), all)
			}
			return gone(ctx, plane, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: protocol.AgentNamespace}})
		})
	}
	testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		return k.leftOnHub(ctx, &rbacv1.RoleList{}, &rbacv1.RoleBindingList{}, &corev1.SecretList{})
	})
	for namespace, plane := range map[string]*framework.Plane{"web": k.prod, "web-alone": k.prod, "far-web": k.edge} {
		ns := &corev1.Namespace{}
		if err := plane.Client.Get(t.Context(), types.NamespacedName{Name: namespace}, ns); err != nil || ns.DeletionTimestamp != nil {
			t.Errorf("namespace %s is gone with its project: %v", namespace, err)
		}
		for _, f := range ns.ManagedFields {
			if f.Manager == "drover" {
				t.Errorf("namespace %s has fields of ours: %s", namespace, f.FieldsV1)
			}
		}
	}
}

// onlyGuards returns an error if a member has other objects than the guards, or stored sets.
func onlyGuards(ctx context.Context, plane *framework.Plane) error {
	for _, o := range owned(ctx, plane) {
		if o.GetLabels()[v1.LabelSet] != "guards" {
			return fmt.Errorf("%s has %s %s/%s", plane.Name(), o.GetKind(), o.GetNamespace(), o.GetName())
		}
	}
	list := &corev1.SecretList{}
	if err := plane.Client.List(ctx, list, client.InNamespace(protocol.AgentNamespace)); err != nil {
		return err
	}
	sets := 0
	for _, s := range list.Items {
		if s.Type == v1.Group+"/set" && s.Name != "hub.checkpoint" {
			sets++
		}
	}
	if sets != 1 {
		return fmt.Errorf("%s stores %d sets", plane.Name(), sets)
	}
	return nil
}

// leftOnHub returns an error if the workspaces still have Drover objects.
func (k *kept) leftOnHub(ctx context.Context, lists ...client.ObjectList) error {
	for _, workspace := range []string{metav1.NamespaceDefault, farWorkspace} {
		for _, list := range lists {
			if err := k.hub.Client.List(ctx, list, client.InNamespace(workspace), client.MatchingLabels{v1.LabelManagedBy: v1.ManagedBy}); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
			if raw := fmt.Sprintf("%+v", list); strings.Contains(raw, "UID:") {
				return fmt.Errorf("workspace %s has %.400s", workspace, raw)
			}
		}
	}
	return nil
}
