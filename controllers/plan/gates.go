// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/internal/upgradecheck"
)

// overriddenChecks returns the names of the checks that are overridden in a Cluster for the plan's current revision,
// separated by commas.
func (s *scope) overriddenChecks(cluster string) string {
	var checks []string
	for _, o := range rollout.Overridden(s.fleet.ApprovalRevision, cluster, s.plan.Spec.Overrides) {
		checks = append(checks, o.Check)
	}
	slices.Sort(checks)
	return strings.Join(checks, ",")
}

// enforced reports whether members whose agents do not know the gates of a plan must not start the plan.
func enforced(g *v1.PlanGates) bool {
	return g != nil && g.UpgradeChecks != v1.UpgradeChecksReport && g.UpgradeChecks != v1.UpgradeChecksDisabled
}

// blind returns a finding for a member whose agent does not check it, or nil if the agent does, if the plan is not
// checked, or if the member has completed the plan.
func (s *scope) blind(i int) *v1.UpgradeFinding {
	c, g := &s.clusters[i], s.plan.Spec.Gates
	if !s.members[i].state.Unchecked || !c.Selected || c.Claim != nil && c.Claim.Complete != nil ||
		g != nil && g.UpgradeChecks == v1.UpgradeChecksDisabled || !upgradecheck.Applies(s.spec.Version) {
		return nil
	}
	return &v1.UpgradeFinding{Cluster: c.Name, Check: v1.CheckUpgradeChecks,
		Cause: "not checked: its agent is too old (AgentTooOld)", Remedy: "upgrade the agent"}
}

// gates writes the members' findings and the overrides into the status. It returns the overrides that have been added
// since the status had the given gates.
func (s *scope) gates(before *v1.GateStatus, now metav1.Time) (added []v1.OverrideStatus) {
	var is v1.GateStatus
	is.Overrides, added = s.overrides(before, now)
	var blind []v1.UpgradeFinding
	for i := range s.clusters {
		if f := s.blind(i); f != nil {
			blind = append(blind, *f)
		}
		said := s.current(i)
		if said == nil || said.Gates == nil {
			continue
		}
		for _, f := range said.Gates.Findings[:min(len(said.Gates.Findings), v1.MaxFindings-len(is.Findings))] {
			f.Cluster = s.clusters[i].Name
			is.Findings = append(is.Findings, f)
		}
	}
	is.Findings = append(is.Findings, blind[:min(len(blind), v1.MaxFindings-len(is.Findings))]...)
	s.plan.Status.Gates = nil
	if len(is.Findings)+len(is.Overrides) == 0 {
		return added
	}
	if s.problem == nil {
		is.Revision = s.fleet.ApprovalRevision
	}
	s.plan.Status.Gates = &is
	return added
}

// overrides returns the overrides that count, with the times when they were found. While the plan has a problem, its
// revision is unknown. Earlier overrides that the spec still contains are kept, because they count again after the
// problem.
func (s *scope) overrides(before *v1.GateStatus, now metav1.Time) (all, added []v1.OverrideStatus) {
	revision := s.fleet.ApprovalRevision
	for _, o := range s.plan.Spec.Overrides {
		is := v1.OverrideStatus{Check: o.Check, Revision: o.Revision, Clusters: o.Clusters, OverriddenBy: o.OverriddenBy,
			Reason: o.Reason, OverriddenAt: now}
		known := false
		if before != nil {
			for _, was := range before.Overrides {
				if at := was.OverriddenAt; sameOverride(was, is) {
					is.OverriddenAt, known = at, true
				}
			}
		}
		switch {
		case s.problem != nil && known:
			all = append(all, is)
		case s.problem == nil && o.Revision == revision:
			if all = append(all, is); !known {
				added = append(added, is)
			}
		}
	}
	return all, added
}

// sameOverride reports whether two overrides differ at most in their times.
func sameOverride(a, b v1.OverrideStatus) bool {
	a.OverriddenAt = b.OverriddenAt
	return equality.Semantic.DeepEqual(a, b)
}
