// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/fleetsim/sim"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

// Members of the drill, in the order of their numbers: first the members to which something is sent after the backup,
// the last of which are revoked then, and after them the other members.
const (
	drillMembers   = 100
	drillRevoked   = 5
	drillUntouched = 10
	// drillAtOnce is the number of members on which the plan is running when the backup is made.
	drillAtOnce = 5
	// drillPatience is the maximum duration of each wait. Agents that have lost their hub wait up to half a minute before
	// they try again.
	drillPatience = 2 * time.Minute

	told          = "told" // the label of all members but those to which nothing is sent after the backup
	drillMemberOf = "fleet-00"
)

// drill is a hub with simulated members, which record what runs in them.
type drill struct {
	*system
	members *sim.Sim
	page    drillPage
}

// TestARestoreWith100Members is the drill of docs/operations/backup.md with a fleet. The hub's etcd is restored from a
// snapshot, and the test checks that nothing unwanted runs in the 100 members.
func TestARestoreWith100Members(t *testing.T) {
	if os.Getenv(envDrillPage) == "" {
		t.Skipf("it takes minutes: make drill, or %s=FILE", envDrillPage)
	}
	t.Parallel()
	d := startDrill(t)
	snapshot := d.liveUntilBackup(t)
	d.liveAfterBackup(t, snapshot)
	before := d.members.Runs()

	kill(t, d.hub.Manager)
	d.restoreEtcd(t, snapshot)
	d.revoke(t) // again, manually, before the manager starts
	d.members.Arrivals()
	began := time.Now()
	if err := d.hub.StartManager(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	d.page.step(t, d, "etcd is restored → the manager serves requests", began)
	t.Run("every member that knows more than the hub waits, and the list names what would change", d.testListed)
	t.Run("nothing was sent to a member, and nothing has run", func(t *testing.T) {
		d.expectNothing(t, before)
	})
	t.Run("what is corrected on the hub is no longer listed, and what is left is done once it is confirmed", func(t *testing.T) {
		d.testConfirmed(t, before)
	})
	t.Run("everything goes on", func(t *testing.T) { d.testGoesOn(t, before) })
	d.page.write(t)
}

func startDrill(t *testing.T) *drill {
	t.Helper()
	d := &drill{system: build(t)}
	d.startHub(t)
	ctx := within(t, drillPatience)
	bundle, err := d.hub.Bundle(ctx)
	if err != nil {
		t.Fatal(err)
	}
	members, err := sim.Enrolment{Hub: d.hub.Client, Server: d.hub.URL(), Bundle: bundle, Clusters: drillMembers, Workspaces: 1}.Do(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range drillMembers - drillUntouched {
		testkit.Update(t, d.hub.Client, drillCluster(i), func(c *v1.Cluster) { c.Labels = map[string]string{told: "yes"} })
	}
	if d.members, err = sim.New(sim.Options{Server: d.hub.URL(), Bundle: bundle, Members: members}); err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); d.members.Run(running) }()
	t.Cleanup(func() { stop(); <-ended })
	d.awaitClusters(t, "Ready", func(i int, c *v1.Cluster) bool { return framework.Ready(c) })
	create(t, d.hub.Plane, &v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: "watcher"}, Spec: v1.RoleTemplateSpec{
		Context: v1.ContextCluster, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}}}})
	return d
}

// liveUntilBackup returns a snapshot in which the plan "upgrade" to v1 is running, and the plan "forgotten" has not
// begun.
func (d *drill) liveUntilBackup(t *testing.T) etcdSnapshot {
	t.Helper()
	d.bind(t, "kept", &metav1.LabelSelector{})
	d.bind(t, "deleted", tellable())
	d.awaitSets(t, isUntouched, "crtb/kept")
	d.awaitSets(t, wasTold, "crtb/deleted", "crtb/kept")
	create(t, d.hub.Plane, drillPlan("upgrade", "v1", drillAtOnce, tellable()))
	testkit.Eventually(t, drillPatience, func(context.Context) error {
		if n := len(d.members.Runs()); n <= drillAtOnce {
			return fmt.Errorf("the plan has begun in %d members", n)
		}
		return nil
	})
	kill(t, d.hub.Manager)
	create(t, d.hub.Plane, drillPlan("forgotten", "v0", drillMembers, &metav1.LabelSelector{}))
	return d.snapshot(t)
}

// liveAfterBackup makes the changes that the restored hub does not have: a plan is deleted and another one changed, a
// binding is deleted and another one created, and agents are revoked.
func (d *drill) liveAfterBackup(t *testing.T, snapshot etcdSnapshot) {
	t.Helper()
	d.delete(t, drillPlan("forgotten", "", 1, nil))
	if err := d.hub.StartManager(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	awaitLease(t, d.hub.Plane, managerLease(), snapshot.lease)
	d.upgrade(t)
	d.delete(t, &v1.ClusterRoleTemplateBinding{ObjectMeta: inDrill("deleted")})
	d.bind(t, "created", tellable())
	d.awaitSets(t, wasTold, "crtb/created", "crtb/kept", "plan/upgrade")
	d.awaitPlan(t, "upgrade", v1.ReasonComplete)
	d.expectRuns(t, nil, map[string]int{"upgrade v2": drillMembers - drillUntouched})
	d.revoke(t)
	d.awaitClusters(t, "disconnected if it is revoked", func(i int, c *v1.Cluster) bool { return !isRevoked(i) || !framework.Ready(c) })
}

// testListed waits until all members that received something after the backup are waiting, and compares the command's
// list with them.
func (d *drill) testListed(t *testing.T) {
	began := time.Now()
	d.awaitClusters(t, "listed with what would change", func(i int, c *v1.Cluster) bool {
		r := c.Status.Restore
		if !waits(i) {
			return r == nil
		}
		return r != nil && meta.IsStatusConditionFalse(c.Status.Conditions, v1.ConditionRestoreConfirmed) &&
			slices.Equal(r.Add, []string{"crtb/deleted", "plan/forgotten"}) && slices.Contains(r.Remove, "crtb/created")
	})
	d.page.step(t, d, "the manager serves requests → every waiting member is fully listed", began)
	d.awaitPlan(t, "forgotten", v1.ReasonHubRestored)
	d.awaitPlan(t, "upgrade", v1.ReasonMemberAhead)
	out, code := d.restored(t, "--all")
	for _, line := range []string{"add     crtb/deleted\n", "add     plan/forgotten\n", "remove  crtb/created\n"} {
		if got := strings.Count(out, line); code != 1 || got != waiting {
			t.Errorf("the list ends with %d and has %q %d times, want it %d times:\n%.2000s", code, line, got, waiting, out)
		}
	}
	d.page.listed = strings.TrimSpace(out[:strings.Index(out, "\n\n")])
}

// testConfirmed corrects the hub, except for a binding, and confirms that the binding is removed.
func (d *drill) testConfirmed(t *testing.T, before []sim.Run) {
	began := time.Now()
	d.delete(t, drillPlan("forgotten", "", 1, nil))
	d.delete(t, &v1.ClusterRoleTemplateBinding{ObjectMeta: inDrill("deleted")})
	d.upgrade(t)
	d.awaitClusters(t, "listed with the binding that would be removed alone", func(i int, c *v1.Cluster) bool {
		r := c.Status.Restore
		return !waits(i) || r != nil && len(r.Add)+len(r.Change) == 0 && slices.Equal(r.Remove, []string{"crtb/created"})
	})
	d.expectNothing(t, before)
	d.page.step(t, d, "the hub is corrected → the list contains only the remaining changes", began)
	began = time.Now()
	testkit.Eventually(t, drillPatience, func(context.Context) error { // a Cluster that changed since it was listed is not confirmed
		if out, code := d.restored(t, "--all", "--yes"); code != 0 {
			return fmt.Errorf("it ends with %d:\n%s", code, out)
		}
		return nil
	})
	d.awaitClusters(t, "confirmed", func(_ int, c *v1.Cluster) bool { return c.Status.Restore == nil })
	d.awaitSets(t, waits, "crtb/kept", "plan/upgrade")
	d.page.step(t, d, "confirmed → every member has the state that the hub wants", began)
}

// testGoesOn sends something new to all members that are not revoked and have received nothing since the restore.
func (d *drill) testGoesOn(t *testing.T, before []sim.Run) {
	began := time.Now()
	d.awaitPlan(t, "upgrade", v1.ReasonMembersAway) // the revoked
	d.bind(t, "new", &metav1.LabelSelector{})
	create(t, d.hub.Plane, drillPlan("next", "v3", drillMembers, &metav1.LabelSelector{}))
	d.awaitSets(t, waits, "crtb/kept", "crtb/new", "plan/next", "plan/upgrade")
	d.awaitSets(t, isUntouched, "crtb/kept", "crtb/new", "plan/next")
	d.awaitSets(t, isRevoked, "crtb/created", "crtb/kept", "plan/upgrade")
	d.awaitPlan(t, "next", v1.ReasonMembersAway)
	d.expectRuns(t, before, map[string]int{"next v3": drillMembers - drillRevoked})
	for _, a := range d.members.Arrivals() {
		if slices.ContainsFunc(revokedMembers(), func(n types.NamespacedName) bool { return n == a.Member }) {
			t.Errorf("%s came to %s, which is revoked", a.ID, a.Member)
		}
	}
	d.page.step(t, d, "a binding and a plan are created → they are in every connected member", began)
}

// expectNothing fails if a member has received a set since the manager of the restored hub started, or if a plan has
// begun.
func (d *drill) expectNothing(t *testing.T, before []sim.Run) {
	t.Helper()
	if came := d.members.Arrivals(); len(came) > 0 {
		t.Errorf("%d sets came to members before it was confirmed, the first is %+v", len(came), came[0])
	}
	d.expectRuns(t, before, nil)
}

// expectRuns fails unless exactly these plans have begun since then, each with its number of members.
func (d *drill) expectRuns(t *testing.T, since []sim.Run, want map[string]int) {
	t.Helper()
	got := map[string]int{}
	for _, r := range d.members.Runs()[len(since):] {
		got[r.Plan+" "+r.Version]++
	}
	if since == nil {
		delete(got, "upgrade v1") // in as many members as there was time for
	}
	if !maps.Equal(got, want) {
		t.Errorf("begun have %v, want %v", got, want)
	}
}

// upgrade changes the plan to its state after the backup.
func (d *drill) upgrade(t *testing.T) {
	t.Helper()
	testkit.Update(t, d.hub.Client, drillPlan("upgrade", "", 1, nil), func(p *v1.Plan) {
		p.Spec.Version, p.Spec.Rollout.MaxConcurrentClusters = "v2", drillMembers
	})
}

// revoke revokes the agents of the first members.
func (d *drill) revoke(t *testing.T) {
	t.Helper()
	for _, name := range revokedMembers() {
		d.delete(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name + "-agent"}})
	}
}

func (d *drill) delete(t *testing.T, o client.Object) {
	t.Helper()
	if err := d.hub.Client.Delete(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

func (d *drill) bind(t *testing.T, name string, clusters *metav1.LabelSelector) {
	t.Helper()
	create(t, d.hub.Plane, &v1.ClusterRoleTemplateBinding{ObjectMeta: inDrill(name), Spec: v1.ClusterRoleTemplateBindingSpec{
		ClusterTarget: v1.ClusterTarget{ClusterSelector: clusters}, RoleTemplateName: "watcher", Subject: v1.Subject{Kind: v1.SubjectUser, Name: "github:" + name}}})
}

// awaitClusters waits until all Clusters meet the given conditions.
func (d *drill) awaitClusters(t *testing.T, what string, wanted func(i int, c *v1.Cluster) bool) {
	t.Helper()
	testkit.Eventually(t, drillPatience, func(ctx context.Context) error {
		list := &v1.ClusterList{}
		if err := d.hub.Client.List(ctx, list, client.InNamespace(drillMemberOf)); err != nil {
			return err
		}
		if len(list.Items) != drillMembers {
			return fmt.Errorf("there are %d Clusters", len(list.Items))
		}
		for i := range list.Items { // the API server lists them by name
			if c := &list.Items[i]; !wanted(i, c) {
				return fmt.Errorf("%s is not %s: it waits for %+v, and its conditions are %+v", c.Name, what, c.Status.Restore, c.Status.Conditions)
			}
		}
		return nil
	})
}

// awaitSets waits until members have exactly these sets of bindings and plans, sorted by name.
func (d *drill) awaitSets(t *testing.T, which func(i int) bool, ids ...string) {
	t.Helper()
	testkit.Eventually(t, drillPatience, func(context.Context) error {
		var errs []error
		has := d.members.Sets()
		for i := range drillMembers {
			sets := slices.DeleteFunc(has[sim.ClusterName(i, 1)], func(id string) bool { return !strings.HasPrefix(id, "crtb/") && !strings.HasPrefix(id, "plan/") })
			if now := slices.Sorted(slices.Values(sets)); which(i) && !slices.Equal(now, ids) {
				errs = append(errs, fmt.Errorf("member %d has %v, want %v", i, now, ids))
			}
		}
		return errors.Join(errs[:min(len(errs), 3)]...)
	})
}

// awaitPlan waits until a plan on the hub is Complete, or is not Complete for the given reason.
func (d *drill) awaitPlan(t *testing.T, name, reason string) {
	t.Helper()
	testkit.Eventually(t, drillPatience, func(ctx context.Context) error {
		p := &v1.Plan{}
		if err := d.hub.Client.Get(ctx, types.NamespacedName{Namespace: drillMemberOf, Name: name}, p); err != nil {
			return err
		}
		if complete := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionComplete); complete == nil || complete.Reason != reason {
			return fmt.Errorf("plan %s is not %s: %+v", name, reason, p.Status)
		}
		return nil
	})
}

const waiting = drillMembers - drillUntouched - drillRevoked

func wasTold(i int) bool     { return i < drillMembers-drillUntouched }
func isUntouched(i int) bool { return !wasTold(i) }
func isRevoked(i int) bool   { return wasTold(i) && !wasTold(i+drillRevoked) }
func waits(i int) bool       { return wasTold(i) && !isRevoked(i) }

func tellable() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{told: "yes"}}
}

func inDrill(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: drillMemberOf, Name: name}
}

func drillCluster(i int) *v1.Cluster {
	name := sim.ClusterName(i, 1)
	return &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
}

func revokedMembers() (names []types.NamespacedName) {
	for i := range drillMembers {
		if isRevoked(i) {
			names = append(names, sim.ClusterName(i, 1))
		}
	}
	return names
}

func drillPlan(name, version string, atOnce int32, clusters *metav1.LabelSelector) *v1.Plan {
	p := &v1.Plan{ObjectMeta: inDrill(name)}
	p.Spec.ClusterSelector, p.Spec.Version, p.Spec.NodeSelector = clusters, version, &metav1.LabelSelector{}
	p.Spec.Rollout = &v1.Rollout{MaxConcurrentClusters: atOnce}
	p.Spec.Upgrade.Image = "rancher/k3s-upgrade"
	return p
}
