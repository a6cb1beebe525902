// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/upgradecheck"
	"github.com/drover-dev/drover/test/nodesim"
)

// offset is a clock that tests move forward.
type offset struct{ atomic.Int64 }

func (c *offset) now() time.Time { return time.Now().Add(time.Duration(c.Load())) }

func notReady(node string) upgradecheck.Finding {
	return upgradecheck.Finding{Check: upgradecheck.CheckNodesReady, Object: "node/" + node, Cause: "it is not ready",
		Remedy: "repair it"}
}

// untouched fails the test if a plan has touched a node.
func (s *env) untouched(t *testing.T, name, plan string) {
	t.Helper()
	s.expectNode(t, name, plan, "", false)
	jobs := &batchv1.JobList{}
	if err := s.client.List(t.Context(), jobs, client.InNamespace(v1.PlansNamespace),
		client.MatchingLabels{"upgrade.cattle.io/plan": plan}); err != nil {
		t.Fatal(err)
	}
	if len(jobs.Items) > 0 {
		t.Errorf("plan %s has %d Jobs, want none", plan, len(jobs.Items))
	}
}

// later moves the clock forward until a recheck is due, and changes a node so that the agent looks at the time.
func (s *env) later(t *testing.T, clock *offset, node string) {
	t.Helper()
	clock.Add(int64(time.Minute))
	n := s.node(t, node)
	s.change(t, n, func() {
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations["test"] = clock.now().String()
	})
}

// checked waits until more checks have been made for a plan.
func checked(t *testing.T, checks *fakeChecks, plan string, than int) {
	t.Helper()
	eventually(t, func(context.Context) error {
		if got := checks.made(plan); got <= than {
			return fmt.Errorf("%d checks have been made for %s, want more than %d", got, plan, than)
		}
		return nil
	})
}

// gatedPlan is a plan whose nodes are cordoned.
func gatedPlan(name string) *v1.Plan {
	p := newPlan(name, 0)
	p.Spec.Cordon = true
	return p
}

func testRefused(t *testing.T, s *env) {
	checks, clock := &fakeChecks{}, &offset{}
	o := options{checks: checks, now: clock.now}
	var running *runner
	start := func() { running = s.run(t, o) } // until the end of this test, not of a part of it
	start()
	defer func() { running.stop() }()
	t.Run("nothing starts, and the findings are written once", func(t *testing.T) {
		checks.finds(nil, notReady("y"), notReady("z"))
		s.nodes(t, "refused", "refused-a")
		s.create(t, gatedPlan("refused"))
		p := s.await(t, "refused", v1.ReasonUpgradeUnsafe)
		s.untouched(t, "refused-a", "refused")
		if g := p.Status.Gates; g == nil || len(g.Findings) != 2 || g.Findings[0].Object != "node/y" ||
			len(g.Revision) != 56 {
			t.Errorf("the status has the gates %+v, want both findings and a revision", g)
		}
		ready := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionReady)
		for _, part := range []string{"NodesReady", "node/y", "it is not ready", "repair it", "1 more in status.gates"} {
			if !strings.Contains(ready.Message, part) {
				t.Errorf("the message is %q, want that it contains %q", ready.Message, part)
			}
		}
		if meta.IsStatusConditionTrue(p.Status.Conditions, v1.ConditionStalled) {
			t.Error("the plan is stalled, want that it is in progress, because it is checked again")
		}
		target := checks.targets[len(checks.targets)-1]
		if target.Version != "v1.36.3+k3s1" || target.Plan != "refused" || target.Nodes.String() != "for=refused" {
			t.Errorf("the target of the checks is %+v, want the plan's target", target)
		}
		made := checks.made("refused")
		s.later(t, clock, "refused-a")
		checked(t, checks, "refused", made)
		running.stop() // an agent that is killed keeps the gate shut
		made = checks.made("refused")
		start()
		checked(t, checks, "refused", made)
		s.later(t, clock, "refused-a")
		checked(t, checks, "refused", made+1)
		if again := s.await(t, "refused", v1.ReasonUpgradeUnsafe); again.ResourceVersion != p.ResourceVersion {
			t.Errorf("the Plan has been written again: %+v, want that the same findings are written once", again.Status)
		}
		s.untouched(t, "refused-a", "refused")
	})
	t.Run("a check that fails keeps the plan from starting", func(t *testing.T) {
		checks.finds(errors.New("no route to host"))
		s.later(t, clock, "refused-a")
		s.says(t, "refused", "the cluster could not be checked: no route to host")
		s.untouched(t, "refused-a", "refused")
		p := s.await(t, "refused", v1.ReasonUpgradeUnsafe)
		p.Spec.Overrides = []v1.Override{{Check: v1.CheckUpgradeChecks, Revision: p.Status.Gates.Revision,
			OverriddenBy: "alice", Reason: "it is slow"}}
		if err := s.client.Update(t.Context(), p); !apierrors.IsInvalid(err) {
			t.Errorf("an override of the failure leads to %v, want that it is invalid", err)
		}
	})
	t.Run("the plan starts when the findings are gone", func(t *testing.T) {
		checks.finds(nil)
		s.later(t, clock, "refused-a")
		p := s.await(t, "refused", v1.ReasonComplete)
		s.expectNode(t, "refused-a", "refused", p.Status.LatestHash, false)
		if g := p.Status.Gates; g == nil || g.Started == "" || len(g.Findings)+len(g.Overrides) > 0 {
			t.Errorf("the status has the gates %+v, want only that the plan has started", g)
		}
		made := checks.made("refused")
		s.nodes(t, "refused", "refused-b")
		eventually(t, func(ctx context.Context) error {
			if got := s.node(t, "refused-b").Labels[v1.PlanLabel("refused")]; got != p.Status.LatestHash {
				return fmt.Errorf("a new node has the label %q, want that it is upgraded like the others", got)
			}
			return nil
		})
		if checks.made("refused") != made {
			t.Errorf("%d checks for a new node in a complete member, want none", checks.made("refused")-made)
		}
	})
	t.Run("an override of the plan's revision starts it", func(t *testing.T) {
		checks.finds(nil, notReady("y"))
		s.nodes(t, "overridden", "overridden-a")
		s.create(t, gatedPlan("overridden"))
		p := s.await(t, "overridden", v1.ReasonUpgradeUnsafe)
		override := v1.Override{Check: upgradecheck.CheckNodesReady, Revision: strings.Repeat("0", 56), OverriddenBy: "alice",
			Reason: "it is being replaced"}
		made := checks.made("overridden")
		s.change(t, p, func() { p.Spec.Overrides = []v1.Override{override} })
		s.later(t, clock, "overridden-a")
		checked(t, checks, "overridden", made)
		s.untouched(t, "overridden-a", "overridden")
		p = s.await(t, "overridden", v1.ReasonUpgradeUnsafe)
		s.change(t, p, func() { p.Spec.Overrides[0].Revision = p.Status.Gates.Revision })
		p = s.await(t, "overridden", v1.ReasonComplete)
		if g := p.Status.Gates; g == nil || len(g.Overrides) != 1 || g.Overrides[0].OverriddenBy != "alice" ||
			len(g.Findings) > 0 {
			t.Errorf("the status has the gates %+v, want the override only", g)
		}
		s.change(t, p, func() { p.Spec.Version = "v1.37.0+k3s1" })
		if p = s.await(t, "overridden", v1.ReasonUpgradeUnsafe); len(p.Status.Gates.Overrides) > 0 {
			t.Errorf("the overrides are %+v, want that a change of the version made them expire", p.Status.Gates.Overrides)
		}
	})
	t.Run("findings and a restart in the middle do not stop a member", func(t *testing.T) {
		checks.finds(nil)
		s.nodes(t, "half", "half-a", "half-b")
		s.script("half-a", nodesim.Script{Takes: 2 * time.Second})
		p := gatedPlan("half")
		s.create(t, p)
		s.begun(t, "half", "half-a")
		running.stop()
		checks.finds(nil, notReady("half-a"))
		clock.Add(int64(time.Hour))
		start()
		p = s.await(t, "half", v1.ReasonComplete)
		s.expectNode(t, "half-b", "half", p.Status.LatestHash, false)
	})
	t.Run("facts that the agent has no right to read stop a plan only if it sets gates", func(t *testing.T) {
		checks.finds(nil, upgradecheck.Finding{Check: upgradecheck.CheckRemovedAPIs, Object: "/metrics",
			Cause: "not checked: forbidden", Unchecked: true, Forbidden: true})
		s.nodes(t, "old-manifest", "old-manifest-a")
		s.nodes(t, "strict", "strict-a")
		strict := gatedPlan("strict")
		strict.Spec.Gates = &v1.PlanGates{UpgradeChecks: v1.UpgradeChecksEnforce}
		s.create(t, gatedPlan("old-manifest"))
		s.create(t, strict)
		p := s.await(t, "old-manifest", v1.ReasonComplete)
		if g := p.Status.Gates; g == nil || len(g.Findings) != 1 || g.Findings[0].Object != "/metrics" {
			t.Errorf("the status has the gates %+v, want the finding about /metrics", g)
		}
		s.await(t, "strict", v1.ReasonUpgradeUnsafe)
		s.untouched(t, "strict-a", "strict")
		checks.finds(nil, notReady("half-a"))
	})
	t.Run("findings and a restart between two nodes do not stop a member", func(t *testing.T) {
		checks.finds(nil)
		s.nodes(t, "between", "between-a", "between-b")
		s.script("between-a", nodesim.Script{Takes: time.Second})
		p := gatedPlan("between")
		s.create(t, p)
		s.begun(t, "between", "between-a")
		s.change(t, p, func() { p.Spec.Paused = true })
		hash := s.await(t, "between", v1.ReasonPaused).Status.LatestHash
		eventually(t, func(context.Context) error {
			if n := s.node(t, "between-a"); n.Labels[v1.PlanLabel("between")] != hash || n.Spec.Unschedulable {
				return fmt.Errorf("node between-a has the labels %v, want that it is complete", n.Labels)
			}
			return nil
		})
		running.stop()
		checks.finds(nil, notReady("between-a"))
		start()
		s.change(t, p, func() { p.Spec.Paused = false })
		s.await(t, "between", v1.ReasonComplete)
	})
	t.Run("a plan that is changed back is checked, although a node still has the earlier version", func(t *testing.T) {
		checks.finds(nil)
		s.nodes(t, "back", "back-a", "back-b")
		p := gatedPlan("back")
		s.create(t, p)
		earlier := s.await(t, "back", v1.ReasonComplete).Status.LatestHash
		version := p.Spec.Version
		s.change(t, p, func() { p.Spec.Version = "v1.37.0+k3s1" })
		later := s.await(t, "back", v1.ReasonComplete).Status.LatestHash
		checks.finds(nil, notReady("y"))
		s.change(t, p, func() { p.Spec.Paused = true })
		s.await(t, "back", v1.ReasonComplete)
		b := s.node(t, "back-b")
		s.change(t, b, func() { b.Labels[v1.PlanLabel("back")] = earlier })
		s.change(t, p, func() { p.Spec.Paused, p.Spec.Version = false, version })
		s.await(t, "back", v1.ReasonUpgradeUnsafe)
		s.expectNode(t, "back-a", "back", later, false)
	})
	t.Run("a plan that selects more nodes is checked again", func(t *testing.T) {
		checks.finds(nil)
		s.nodes(t, "wider", "wider-a")
		p := gatedPlan("wider")
		s.create(t, p)
		p = s.await(t, "wider", v1.ReasonComplete)
		checks.finds(nil, notReady("y"))
		s.nodes(t, "wider-more", "wider-b")
		s.change(t, p, func() {
			p.Spec.NodeSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "for", Operator: metav1.LabelSelectorOpIn, Values: []string{"wider", "wider-more"}}}}
		})
		p = s.await(t, "wider", v1.ReasonUpgradeUnsafe)
		s.expectNode(t, "wider-b", "wider", "", false)
		checks.finds(nil)
		s.later(t, clock, "wider-b")
		s.await(t, "wider", v1.ReasonComplete)
		s.expectNode(t, "wider-b", "wider", p.Status.LatestHash, false)
		checks.finds(nil, notReady("y"))
	})
	t.Run("findings are only reported", func(t *testing.T) {
		s.nodes(t, "reported", "reported-a")
		p := gatedPlan("reported")
		p.Spec.Gates = &v1.PlanGates{UpgradeChecks: v1.UpgradeChecksReport}
		s.create(t, p)
		p = s.await(t, "reported", v1.ReasonComplete)
		if g := p.Status.Gates; g == nil || len(g.Findings) != 1 {
			t.Errorf("the status has the gates %+v, want the finding", g)
		}
	})
	t.Run("a plan is not checked if its version is not one of Kubernetes, or if the checks are off", func(t *testing.T) {
		s.nodes(t, "system", "system-a")
		s.nodes(t, "unchecked", "unchecked-a")
		system, unchecked := gatedPlan("system"), gatedPlan("unchecked")
		system.Spec.Version = "2026.1"
		unchecked.Spec.Gates = &v1.PlanGates{UpgradeChecks: v1.UpgradeChecksDisabled}
		s.create(t, system)
		s.create(t, unchecked)
		s.await(t, "system", v1.ReasonComplete)
		s.await(t, "unchecked", v1.ReasonComplete)
		if n := checks.made("system") + checks.made("unchecked"); n > 0 {
			t.Errorf("%d checks were made, want none", n)
		}
	})
	t.Run("a plan that enforces checks does not start with a version that cannot be checked", func(t *testing.T) {
		s.nodes(t, "enforced", "enforced-a")
		p := gatedPlan("enforced")
		p.Spec.Version, p.Spec.Gates = "stable", &v1.PlanGates{UpgradeChecks: v1.UpgradeChecksEnforce}
		s.create(t, p)
		s.says(t, "enforced", `"stable" is not a Kubernetes version`)
		s.untouched(t, "enforced-a", "enforced")
		s.change(t, p, func() { p.Spec.Version = "v1.36" })
		checks.finds(nil)
		s.await(t, "enforced", v1.ReasonComplete)
	})
}

func testRefusedToHub(t *testing.T, s *env) {
	checks, clock := &fakeChecks{}, &offset{}
	running := s.run(t, options{checks: checks, now: clock.now})
	defer running.stop()
	checks.finds(nil, notReady("y"))
	s.nodes(t, "given", "given-a")
	p := gatedPlan("given")
	p.Annotations = map[string]string{v1.AnnotationRevision: "r"}
	s.create(t, p)
	p = s.await(t, "given", v1.ReasonUpgradeUnsafe)
	if p.Status.Gates.Revision != "" {
		t.Errorf("the revision is %q, want none, because the hub decides about overrides", p.Status.Gates.Revision)
	}
	made := checks.made("given")
	checks.finds(nil)
	s.later(t, clock, "given-a")
	s.nodes(t, "given-other", "given-other-a") // a pass after the recheck would be due
	s.create(t, newPlan("given-other", 0))
	s.await(t, "given-other", v1.ReasonComplete)
	if p = s.await(t, "given", v1.ReasonUpgradeUnsafe); checks.made("given") != made {
		t.Errorf("%d checks, want none: the hub may have given the slot to another member", checks.made("given")-made)
	}
	s.untouched(t, "given-a", "given")
	checks.finds(nil, notReady("y"))
	made = checks.made("given")
	s.change(t, p, func() { p.Spec.Paused = true })
	checked(t, checks, "given", made)
	if p = s.await(t, "given", v1.ReasonUpgradeUnsafe); len(p.Status.Gates.Findings) != 1 {
		t.Errorf("the gates are %+v, want that the paused plan is still checked", p.Status.Gates)
	}
	checks.finds(errors.New("no route to host"))
	s.change(t, p, func() { p.Annotations[v1.AnnotationOverrides] = v1.CheckUpgradeChecks })
	s.later(t, clock, "given-a")
	s.says(t, "given", "the cluster could not be checked: no route to host") // no override covers it
	checks.finds(nil, notReady("y"))
	s.later(t, clock, "given-a")
	s.says(t, "given", "it is not ready")
	s.change(t, p, func() {
		p.Annotations[v1.AnnotationOverrides] = "Certificates," + upgradecheck.CheckNodesReady
	})
	s.await(t, "given", v1.ReasonPaused)
	s.untouched(t, "given-a", "given")
	s.change(t, p, func() { p.Spec.Paused = false })
	s.await(t, "given", v1.ReasonComplete)
}

// TestMemberIsCheckedWithRealFacts uses the checks themselves: a node that is not ready keeps the plan from starting.
func TestMemberIsCheckedWithRealFacts(t *testing.T) {
	s, clock := newEnv(t), &offset{}
	s.run(t, options{real: true, now: clock.now})
	s.nodes(t, "checked", "checked-a", "checked-b")
	version, err := discovery.NewDiscoveryClientForConfigOrDie(s.config).ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	set := func(node string, ready corev1.ConditionStatus) {
		t.Helper()
		n := s.node(t, node)
		for i := range n.Status.Conditions {
			if n.Status.Conditions[i].Type == corev1.NodeReady {
				n.Status.Conditions[i].Status = ready
			}
		}
		if err := s.client.Status().Update(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	set("checked-b", corev1.ConditionFalse)
	p := gatedPlan("checked")
	p.Spec.Concurrency = new(intstr.FromInt32(2))
	p.Spec.Version = version.GitVersion
	s.create(t, p)
	p = s.await(t, "checked", v1.ReasonUpgradeUnsafe)
	if g := p.Status.Gates.Findings; len(g) != 1 || g[0].Check != upgradecheck.CheckNodesReady ||
		!strings.Contains(g[0].Object, "checked-b") {
		t.Errorf("the findings are %+v, want node checked-b only", g)
	}
	s.untouched(t, "checked-a", "checked")
	set("checked-b", corev1.ConditionTrue)
	s.later(t, clock, "checked-a")
	p = s.await(t, "checked", v1.ReasonComplete)
	s.expectNode(t, "checked-a", "checked", p.Status.LatestHash, false)
}
