// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plans

import (
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

func TestChecksAreOverridden(t *testing.T) {
	s := sharedFixture(t)
	workspace, hub, plan := s.workspace, s.Env, gated(t, s)
	want := s.expecting(t, "plan", "override", "k3s")
	overrides := func() (found []string) {
		t.Helper()
		if err := hub.Client.Get(t.Context(), client.ObjectKeyFromObject(plan), plan); err != nil {
			t.Fatal(err)
		}
		for _, o := range plan.Spec.Overrides {
			found = append(found, o.Check+" "+o.Revision+" "+o.Reason)
		}
		return found
	}
	const reason = "it is being replaced"
	want(cli.ExitError, []string{"set --check and --reason"}, "--check", "NodesReady")
	want(cli.ExitError, []string{"set --check and --reason"}, "--check", "NodesReady", "--reason", " ")
	want(cli.ExitError, []string{`the check "NodesReady" of plan ` + workspace + "/k3s has no findings"}, "--check",
		"NodesReady", "--reason", reason)
	s.report(t, plan, func(st *v1.PlanStatus) {
		st.Gates = &v1.GateStatus{Revision: revision, Findings: []v1.UpgradeFinding{
			{Cluster: "a", Check: "NodesReady", Object: "node/x", Cause: "it is not ready"},
			{Cluster: "a", Check: "RemovedAPIs", Object: "flowschemas", Cause: "a client calls it"},
			{Cluster: "b", Check: "UpgradeChecks", Cause: "the cluster could not be checked"}}}
	})
	want(cli.ExitError, []string{"the check UpgradeChecks cannot be overridden"}, "--check", "NodesReady,UpgradeChecks",
		"--reason", reason)
	want(cli.ExitError, []string{"use one of NodesReady, RemovedAPIs\n"}, "--check", "Other", "--reason", reason)
	want(cli.ExitError, []string{"does not list the clusters in which NodeCapacity has findings"},
		"--check", "NodeCapacity", "--reason", reason)
	want(cli.ExitError, []string{"on the clusters c, for"},
		"--check", "NodeCapacity", "--cluster", "c", "--reason", reason)
	want(cli.ExitError, []string{"override NodesReady of plan " + workspace + "/k3s on the clusters a, for", revision,
		`because "` + reason + `"`, "a/NodesReady node/x: it is not ready", "Confirm with --yes"},
		"--check", "NodesReady", "--reason", reason)
	want(cli.ExitAllowed, []string{"overrides:\n  - check: NodesReady\n    clusters:\n    - a\n    overriddenBy: flux\n" +
		"    reason: " + reason +
		"\n    revision: " + revision}, "--check", "NodesReady", "--reason", reason, "--dry-run=client", "-o", "yaml",
		"--overridden-by", "flux")
	if got := overrides(); len(got) > 0 {
		t.Fatalf("the overrides are %v, want none before --yes", got)
	}
	want(cli.ExitAllowed, []string{"plan.cluster.drover.dev/k3s overrides NodesReady, RemovedAPIs\n"}, "--check",
		"NodesReady,RemovedAPIs", "--reason", reason, "--yes")
	both := []string{"NodesReady " + revision + " " + reason, "RemovedAPIs " + revision + " " + reason}
	if got := overrides(); !slices.Equal(got, both) || plan.Spec.Overrides[0].OverriddenBy == "" ||
		!slices.Equal(plan.Spec.Overrides[0].Clusters, []string{"a"}) {
		t.Errorf("the overrides are %+v, want %q by a user in cluster a", plan.Spec.Overrides, both)
	}
	_, out := s.run(t.Context(), "__complete", "plan", "override", "k3s", "--check", "")
	if !strings.Contains(out, "NodesReady\n") || !strings.Contains(out, "RemovedAPIs\n") ||
		strings.Contains(out, "UpgradeChecks") {
		t.Errorf("--check is completed with %s, want the checks that have findings and can be overridden", out)
	}
	next := strings.Repeat("f", 56)
	s.report(t, plan, func(st *v1.PlanStatus) { st.Gates.Revision = next })
	want(cli.ExitAllowed, []string{"overrides NodesReady"}, "--check", "NodesReady", "--reason", "another", "--yes")
	if got := overrides(); !slices.Equal(got, []string{"NodesReady " + next + " another"}) {
		t.Errorf("the overrides are %v, want only the override of the new revision", got)
	}
}

func TestWatchedPlanShowsFindingsAndOverrides(t *testing.T) {
	p := goingPlan()
	p.Status.Gates = &v1.GateStatus{
		Findings:  []v1.UpgradeFinding{{Cluster: "a", Check: "NodesReady", Object: "node/x", Cause: "not ready\x1b[2J"}},
		Overrides: []v1.OverrideStatus{{Check: "Certificates", OverriddenBy: "alice", Reason: "renewed"}}}
	got := newDisplay(&strings.Builder{}).picture(p)
	for _, part := range []string{"a/NodesReady node/x: not ready [2J", "Certificates overridden by alice: renewed"} {
		if !strings.Contains(got, part) {
			t.Errorf("the picture is %q, want that it contains %q", got, part)
		}
	}
}
