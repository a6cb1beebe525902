// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"fmt"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// defaultHealthTime is how long an object may take to become healthy if the set does not specify a time.
const defaultHealthTime = 5 * time.Minute

// judge counts an applied object if it is healthy. Otherwise, it reports why the object is not healthy.
func (p *pass) judge(w wanted, now live) {
	p.mu.Lock()
	since, late := p.late[w.ref]
	if now.health == status.CurrentStatus {
		delete(p.late, w.ref)
		p.mu.Unlock()
		p.lock.Lock()
		p.state.Healthy++
		p.lock.Unlock()
		return
	}
	if !late {
		since = p.now
		p.late[w.ref] = since
	}
	p.mu.Unlock()
	patience := time.Duration(p.content.HealthSeconds) * time.Second
	if patience <= 0 {
		patience = defaultHealthTime
	}
	verdict := verdictOf(now, w.definition(), p.now.Sub(since), patience)
	p.report(w.ref, verdict.phase, verdict.message)
	if verdict.again > 0 {
		p.later(verdict.again)
	}
	if w.definition() { // the next stage may contain objects of this kind
		p.lock.Lock()
		p.blocked = true
		p.lock.Unlock()
	}
}

// verdict is the state of an object that is not healthy.
type verdict struct {
	phase   protocol.SetPhase
	message string
	again   time.Duration // time until the verdict changes; 0 if only the object changes it
}

// verdictOf judges an object that is not healthy. The waited parameter is the time since the object was first seen in
// that state.
func verdictOf(now live, definition bool, waited, patience time.Duration) verdict {
	why := now.message
	if why == "" {
		why = "it is not healthy yet"
	}
	switch {
	case definition && now.health != status.FailedStatus && waited < establishTime:
		return verdict{protocol.SetProgressing, "it is not established yet", establishTime - waited}
	case definition:
		return verdict{protocol.SetFailed, "it is not established: " + why, 0}
	case now.health == status.FailedStatus:
		return verdict{protocol.SetUnhealthy, why, 0}
	case waited < patience:
		return verdict{protocol.SetProgressing, why, patience - waited}
	}
	return verdict{protocol.SetUnhealthy, fmt.Sprintf("it was not healthy within %s: %s", patience, why), 0}
}

// mayRepair reports whether to reapply an object that another client has changed or deleted. If not, it records the
// reason as a problem.
func (p *pass) mayRepair(w wanted, now live, there bool) bool {
	if p.content.Drift == v1.DriftReport {
		p.report(w.ref, protocol.SetDrifted, drift(now, there))
		return false
	}
	cause := drift(now, there) + ", each time that the agent repairs it: stop that, or remove it from the Baseline"
	wait := p.budgets.Spend(w.ref, p.now, cause)
	if wait <= 0 {
		p.options.Log.Info("repairing an object", "object", w.String(), "set", p.id, "changedBy", now.other)
		return true
	}
	p.later(wait)
	p.report(w.ref, protocol.SetFighting, cause)
	return false
}

// drift describes how an object differs from what the agent applied.
func drift(now live, there bool) string {
	switch {
	case !there:
		return "another client deletes it or removes its label"
	case now.other != "":
		return fmt.Sprintf("%q (a field manager) changes it", now.other)
	}
	return "another client changes it"
}

// fights reports a fight until the budget for repairs is reset, and schedules a pass for that time.
func (p *pass) fights(r ref) bool {
	calm, cause := p.budgets.Fight(r, p.now)
	if calm > 0 {
		p.later(calm)
	}
	if cause != "" {
		p.report(r, protocol.SetFighting, cause)
	}
	return cause != ""
}
