// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plans

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/test/testkit"
)

// gated is a plan with the waves canary, which needs no approval, prod and rest, which do. The plan is stored with its
// status.
func gated(t *testing.T, s *fixture) *v1.Plan {
	t.Helper()
	plan := &v1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: s.workspace, Name: "k3s"}}
	ring := func(value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"ring": value}}
	}
	plan.Spec.ClusterSelector, plan.Spec.Version = &metav1.LabelSelector{}, "v2"
	plan.Spec.Upgrade.Image = "registry.example.com/upgrade"
	plan.Spec.Rollout = &v1.Rollout{Waves: []v1.Wave{{Name: "canary", ClusterSelector: ring("canary")},
		{Name: "prod", ClusterSelector: ring("prod"), Approval: v1.ApprovalRequired},
		{Name: "rest", Approval: v1.ApprovalRequired}}}
	s.Apply(t, plan)
	for name, ring := range map[string]string{"a": "canary", "b": "prod", "c": "prod", "d": "none"} {
		s.Apply(t, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.workspace, Name: name,
			Labels: map[string]string{"ring": ring}}})
	}
	s.report(t, plan, func(st *v1.PlanStatus) {
		st.LatestVersion = "v2"
		st.Waves = []v1.WaveStatus{{Name: "canary"}, {Name: "prod", Approval: &v1.WaveApproval{Revision: revision}},
			{Name: "rest", Approval: &v1.WaveApproval{Revision: revision}}}
	})
	return plan
}

var revision = strings.Repeat("0123456789abcdef", 4)[:56]

// report writes a status of the plan's current generation.
func (s *fixture) report(t *testing.T, plan *v1.Plan, change func(*v1.PlanStatus)) {
	t.Helper()
	if err := s.Client.Get(t.Context(), client.ObjectKeyFromObject(plan), plan); err != nil {
		t.Fatal(err)
	}
	change(&plan.Status)
	plan.Status.ObservedGeneration = plan.Generation
	if err := s.Client.Status().Update(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
}

// sharedFixture returns a workspace without Clusters on a hub that is shared with other tests.
func sharedFixture(t *testing.T) *fixture {
	t.Helper()
	hub := testkit.Shared(t)
	workspace := hub.Workspace(t)
	return &fixture{Env: hub, workspace: workspace,
		kubeconfig: testkit.Kubeconfig(t, testkit.Context{Name: "hub", Namespace: workspace, Env: hub})}
}

// expecting returns a function that runs a command with more arguments, and expects its exit code and parts of its
// output.
func (s *fixture) expecting(t *testing.T, command ...string) func(code int, parts []string, args ...string) {
	return func(code int, parts []string, args ...string) {
		t.Helper()
		got, out := s.run(t.Context(), slices.Concat(command, args)...)
		for _, part := range parts {
			if got != code || !strings.Contains(out, part) {
				t.Errorf("%v %v: exit code %d: %s, want %d and %q", command, args, got, out, code, part)
			}
		}
	}
}

func TestWaveIsApproved(t *testing.T) {
	s := sharedFixture(t)
	workspace, hub, plan := s.workspace, s.Env, gated(t, s)
	want := s.expecting(t, "plan", "approve", "k3s")
	approvals := func() (found []string) {
		t.Helper()
		if err := hub.Client.Get(t.Context(), client.ObjectKeyFromObject(plan), plan); err != nil {
			t.Fatal(err)
		}
		for _, a := range plan.Spec.Approvals {
			found = append(found, a.Wave+" "+a.Revision)
		}
		return found
	}
	want(cli.ExitError, []string{"approve wave prod of plan " + workspace + "/k3s", "registry.example.com/upgrade",
		"version v2", "2 clusters (b, c)", revision, "Confirm with --yes"})
	want(cli.ExitError, []string{`no wave "canary" that requires approval: use one of prod, rest`}, "--wave", "canary")
	want(cli.ExitAllowed, []string{"approvals:\n  - approvedBy: flux\n    revision: " + revision + "\n    wave: prod"},
		"--dry-run=client", "-o", "yaml", "--approved-by", "flux")
	if got := approvals(); len(got) > 0 {
		t.Fatalf("the approvals are %v, want none before --yes", got)
	}
	want(cli.ExitAllowed, []string{"plan.cluster.drover.dev/k3s approved for wave prod\n"}, "--yes")
	want(cli.ExitError, []string{"Drover has not looked at the change yet"}, "--yes")
	if got := approvals(); !slices.Equal(got, []string{"prod " + revision}) || plan.Spec.Approvals[0].ApprovedBy == "" {
		t.Errorf("the approvals are %+v, want that of wave prod with a user", plan.Spec.Approvals)
	}
	manages := func(f metav1.ManagedFieldsEntry) bool {
		return f.FieldsV1 != nil && strings.Contains(f.FieldsV1.GetRawString(), "f:approvals")
	}
	for _, f := range plan.ManagedFields {
		if manages(f) && strings.HasPrefix(f.Manager, "kubectl") {
			t.Errorf("%s manages the approvals, want a name that Flux does not override", f.Manager)
		}
	}
	s.report(t, plan, func(st *v1.PlanStatus) { st.Waves[1].Approval.ApprovedBy = "alice" })
	want(cli.ExitAllowed, []string{"unchanged"}, "--wave", "prod", "--yes")
	_, out := s.run(t.Context(), "__complete", "plan", "approve", "k3s", "--wave", "")
	if !strings.Contains(out, "rest\n") || strings.Contains(out, "prod\n") {
		t.Errorf("--wave is completed with %s, want rest only", out)
	}
	want(cli.ExitAllowed, []string{"approved for wave rest"}, "--yes")
	if got := approvals(); !slices.Equal(got, []string{"prod " + revision, "rest " + revision}) {
		t.Errorf("the approvals are %v, want one of each wave", got)
	}
	s.report(t, plan, func(st *v1.PlanStatus) {
		for i := range st.Waves {
			if st.Waves[i].Approval != nil {
				st.Waves[i].Approval = &v1.WaveApproval{Revision: strings.Repeat("f", 56)}
			}
		}
	})
	want(cli.ExitAllowed, []string{"approved for wave prod"}, "--yes")
	if got := approvals(); !slices.Contains(got, "prod "+strings.Repeat("f", 56)) || len(got) != 2 {
		t.Errorf("the approvals are %v, want the new one of wave prod in place of the old one", got)
	}
}

func TestTheQuestionNamesAllProgramsThatAPlanRuns(t *testing.T) {
	work := v1.NodeWork{Upgrade: v1.PlanContainer{Image: "upgrade"}}
	if got, want := workOf(&work), "run image upgrade"; got != want {
		t.Errorf("the work is described as %q, want %q", got, want)
	}
	work.Prepare = &v1.PlanContainer{Image: "prepare", Command: []string{"sh"}, Args: []string{"-c", "rm x"}}
	work.Drain, work.Upgrade.Args = &v1.Drain{}, []string{"--force"}
	want := `run image prepare (["sh" "-c" "rm x"]), then drain the node, then run image upgrade (["--force"])`
	if got := workOf(&work); got != want {
		t.Errorf("the work is described as %q, want %q", got, want)
	}
}

func TestWatchedPlanShowsApprovals(t *testing.T) {
	p := goingPlan()
	p.Status.Waves[0].Approval = &v1.WaveApproval{Revision: revision, ApprovedBy: "alice\x1b[2J"}
	p.Status.Waves[1].Approval = &v1.WaveApproval{Revision: revision}
	d := newDisplay(&strings.Builder{})
	for name, text := range map[string]string{"line": d.line(p), "picture": d.picture(p)} {
		if !strings.Contains(text, "approved by alice [2J") || !strings.Contains(text, "not approved") {
			t.Errorf("the %s is %q, want who approved, and which wave is not approved", name, text)
		}
	}
}
