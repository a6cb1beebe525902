// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

func testWaves(f *fleet, t *testing.T) {
	for _, plane := range f.members {
		create(t, plane, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "app"}, Spec: corev1.PodSpec{NodeName: "node-1",
			Containers: []corev1.Container{{Name: "main", Image: "app"}}, TerminationGracePeriodSeconds: new(int64(1)), AutomountServiceAccountToken: new(false)}})
	}
	pluginDir(t) // built before the plan begins: the watch is to see its waves
	if out, err := f.hub.Kubectl(t.Context(), []byte(fleetPlan), "apply", "-f", "-"); err != nil {
		t.Fatalf("apply the plan: %v, %v", out, err)
	}
	w := f.watch(t, "k3s")
	p := f.plan(t, "k3s", planPatience, is(v1.ReasonComplete))
	w.expect(t, 0, "Complete: clusters 3/3, nodes 9/9; canary 1/1; rest 2/2")
	if !strings.Contains(w.out.String(), "Soaking: clusters 1/3") {
		t.Errorf("it does not show the soak:\n%s", w.out.String())
	}
	f.expectOrder(t)
	f.expectDone(t, p, "v1.36.3-k3s1")
	if most := f.expectNoHarm(t); most.cordoned < len(memberNodes) || most.clusters != 1 || most.nodes != 1 {
		t.Errorf("the monitor has seen %+v", most)
	}
	out, err := f.hub.Kubectl(t.Context(), nil, "get", "plans", "k3s")
	shown := regexp.MustCompile(`^NAME +IMAGE +CHANNEL +VERSION +CLUSTERS +NODES +COMPLETE +REASON +AGE\nk3s +rancher/k3s-upgrade +v1\.36\.3\+k3s1 +3/3 +9/9 +True +Complete +\S+\n$`)
	if err != nil || !shown.MatchString(out) {
		t.Errorf("%v\n%s", err, out)
	}
	f.backup = f.backUp(t, p)
}

// expectOrder fails unless the nodes of the second wave began when the first wave had been complete for its soak time.
func (f *fleet) expectOrder(t *testing.T) {
	t.Helper()
	claims := map[string]rollout.ClusterClaim{}
	for name := range f.members {
		var claim rollout.ClusterClaim
		if err := json.Unmarshal([]byte(f.cluster(t, cluster(name)).Annotations[v1.PlanLabel("k3s")]), &claim); err != nil || claim.Complete == nil {
			t.Fatalf("the claim of %s is %+v: %v", name, claim, err)
		}
		claims[name] = claim
	}
	first := claims["alpha"]
	for _, name := range []string{"beta", "home"} {
		if after := claims[name].Since.Sub(*first.Complete); after < soak {
			t.Errorf("%s began %s after the canary was complete, want %s", name, after, soak)
		}
	}
	if claims["home"].Since.Before(*claims["beta"].Complete) {
		t.Error("home began before beta was complete")
	}
}

// expectDone fails unless all members and all their nodes are in the state in which a completed plan leaves them.
func (f *fleet) expectDone(t *testing.T, p *v1.Plan, version string) {
	t.Helper()
	for name, plane := range f.members {
		in := &v1.Plan{}
		if err := plane.Client.Get(t.Context(), types.NamespacedName{Namespace: v1.PlansNamespace, Name: p.Name}, in); err != nil {
			t.Fatal(err)
		}
		if in.Spec.ClusterSelector != nil || in.Spec.Rollout != nil || in.Annotations[v1.AnnotationRevision] != p.Status.Revision || in.Labels[v1.LabelSet] == "" {
			t.Errorf("the plan in %s: %+v %+v", name, in.ObjectMeta, in.Spec.PlanTarget)
		}
		for _, s := range in.Spec.Secrets {
			if got := secret(t, plane, v1.PlansNamespace, s.Name); s.Name != p.Name+".token" || string(got.Data["token"]) != "fleet-secret" {
				t.Errorf("Secret %s in %s is %v", s.Name, name, got.Data)
			}
		}
		for _, node := range memberNodes {
			f.expectNode(t, name, node, p, version)
		}
		if got := f.cluster(t, cluster(name)).Labels[v1.PlanLabel(p.Name)]; got == "" {
			t.Errorf("Cluster %s has no label of the plan", name)
		}
	}
}

func (f *fleet) expectNode(t *testing.T, member, name string, p *v1.Plan, version string) {
	t.Helper()
	n := &corev1.Node{}
	if err := f.members[member].Client.Get(t.Context(), types.NamespacedName{Name: name}, n); err != nil {
		t.Fatal(err)
	}
	key := v1.PlanLabel(p.Name)
	if n.Labels[key] == "" || p.Name == "k3s" && n.Labels["example.org/version"] != version || n.Annotations[key] != "" {
		t.Errorf("%s/%s: labels %v, claim %q", member, name, n.Labels, n.Annotations[key])
	}
	if theirs := member+"/"+name == cordoned; n.Spec.Unschedulable != theirs {
		t.Errorf("%s/%s: unschedulable is %t, want %t", member, name, n.Spec.Unschedulable, theirs)
	}
	jobs := &batchv1.JobList{}
	wanted := client.MatchingLabels{"upgrade.cattle.io/controller": "drover", "upgrade.cattle.io/plan": p.Name, "upgrade.cattle.io/node": name,
		"upgrade.cattle.io/version": version, "plan.upgrade.cattle.io/" + p.Name: n.Labels[key], v1.LabelManagedBy: v1.ManagedBy}
	if err := f.members[member].Client.List(t.Context(), jobs, client.InNamespace(v1.PlansNamespace), wanted); err != nil {
		t.Fatal(err)
	}
	upgrades := slices.DeleteFunc(jobs.Items, func(j batchv1.Job) bool { return !strings.HasPrefix(j.Name, "apply-") })
	if len(upgrades) != 1 || upgrades[0].Status.Succeeded != 1 {
		t.Errorf("%s/%s has %d Jobs with the labels %v", member, name, len(upgrades), wanted)
	}
}

func testBadImage(f *fleet, t *testing.T) {
	f.setVersion(t, "k3s", "v1.36.4-"+badTag)
	w := f.watch(t, "k3s")
	p := f.plan(t, "k3s", time.Minute, func(p *v1.Plan) bool {
		return meta.IsStatusConditionTrue(p.Status.Conditions, v1.ConditionStalled)
	})
	w.expect(t, 1, "TooManyFailures: clusters 0/3")
	if len(p.Status.Failures) != 1 {
		t.Fatalf("the failures are %+v", p.Status.Failures)
	}
	if failure := p.Status.Failures[0]; failure.Cluster != "alpha" || failure.Node != "node-1" || !failure.Final || failure.Attempt != 2 || failure.Reason != v1.ReasonUpgradeFailed || failure.Log != badLog {
		t.Errorf("the failure is %+v", failure)
	}
	if !is(v1.ReasonTooManyFailures)(p) || p.Status.Clusters.Failed != 1 {
		t.Errorf("the status is %+v", p.Status)
	}
	for name, plane := range f.members {
		nodes := &corev1.NodeList{}
		if err := plane.Client.List(t.Context(), nodes); err != nil {
			t.Fatal(err)
		}
		for i := range nodes.Items {
			n := &nodes.Items[i]
			if theirs := name+"/"+n.Name == cordoned; n.Spec.Unschedulable != theirs || n.Labels["example.org/version"] != "v1.36.3-k3s1" {
				t.Errorf("%s/%s: unschedulable is %t, labels %v", name, n.Name, n.Spec.Unschedulable, n.Labels)
			}
		}
	}
	f.expectNoHarm(t)
}

func testRetried(f *fleet, t *testing.T) {
	f.repaired.Store(true)
	manifest := []byte(strings.Replace(fleetPlan, "v1.36.3+k3s1", "v1.36.4-"+badTag, 1))
	if out, err := f.hub.Kubectl(t.Context(), manifest, "apply", "-f", "-"); err != nil {
		t.Fatalf("apply the plan: %v, %v", out, err)
	}
	out, err := f.planCommand(t, "retry", "k3s").CombinedOutput()
	if err != nil || string(out) != "plan.cluster.drover.dev/k3s retried\n" {
		t.Fatalf("plan retry: %v\n%s", err, out)
	}
	w := f.watch(t, "k3s") // the failure is over, so the watch does not end at once
	p := f.plan(t, "k3s", planPatience, is(v1.ReasonComplete))
	w.expect(t, 0, "Complete: clusters 3/3, nodes 9/9")
	f.expectDone(t, p, "v1.36.4-"+badTag)
	f.expectNoHarm(t)
	if out, err := f.hub.Kubectl(t.Context(), manifest, "diff", "-f", "-"); err != nil || out != "" {
		t.Errorf("kubectl diff: %v\n%s", err, out)
	}
}

func testMended(f *fleet, t *testing.T) {
	f.setVersion(t, "k3s", "v1.36.5")
	w := f.watch(t, "k3s")
	p := f.plan(t, "k3s", planPatience, is(v1.ReasonComplete))
	w.expect(t, 0, "Complete: clusters 3/3, nodes 9/9")
	if len(p.Status.Failures) > 0 {
		t.Errorf("it has failures still: %+v", p.Status.Failures)
	}
	f.expectOrder(t)
	f.expectDone(t, p, "v1.36.5")
	f.expectNoHarm(t)
}

func testPlanDeleted(f *fleet, t *testing.T) {
	if _, err := f.hub.Kubectl(t.Context(), nil, "delete", "plan.cluster.drover.dev", "k3s"); err != nil {
		t.Fatal(err)
	}
	key := v1.PlanLabel("k3s")
	testkit.Eventually(t, 20*time.Second, func(ctx context.Context) error {
		var errs []error
		for name, plane := range f.members {
			errs = append(errs, f.expectCleared(ctx, name, plane))
			if c := f.cluster(t, cluster(name)); c.Annotations[key] != "" {
				errs = append(errs, fmt.Errorf("Cluster %s has the claim %s", name, c.Annotations[key]))
			}
		}
		return errors.Join(errs...)
	})
	for name, plane := range f.members {
		nodes := &corev1.NodeList{}
		if err := plane.Client.List(t.Context(), nodes); err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes.Items {
			if n.Labels[key] == "" || n.Annotations[key] != "" {
				t.Errorf("%s/%s: %v, want a label and no annotation of the plan", name, n.Name, slices.Collect(maps.Keys(n.Labels)))
			}
		}
		if c := f.cluster(t, cluster(name)); c.Labels[key] != "" {
			t.Errorf("Cluster %s has the label of a deleted plan", name)
		}
	}
	f.expectNoHarm(t)
}

// expectCleared fails if a member still has objects of plans.
func (f *fleet) expectCleared(ctx context.Context, name string, plane *framework.Plane) error {
	for _, list := range []client.ObjectList{&v1.PlanList{}, &batchv1.JobList{}, &corev1.PodList{}, &corev1.SecretList{}} {
		if err := plane.Client.List(ctx, list, client.InNamespace(v1.PlansNamespace)); err != nil {
			return err
		}
		if n := meta.LenList(list); n > 0 {
			return fmt.Errorf("%s has %d of %T", name, n, list)
		}
	}
	return nil
}
