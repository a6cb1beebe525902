// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import v1 "github.com/drover-dev/drover/api/v1"

// RestartAgent drops the state that only the agent's process has.
func (m *Member) RestartAgent() {
	m.changed = true
	clear(m.Drains)
	clear(m.drains)
	m.checks.Revision, m.checks.Refusal = "", ""
}

// Edit changes the plan, as a user does.
func (p *Simulation) Edit(change func(*v1.PlanSpec)) error {
	change(&p.source.Spec)
	return p.prepare()
}

// ApprovalRevision returns the revision that users approve.
func (p *Simulation) ApprovalRevision() string { return p.fleet.ApprovalRevision }
