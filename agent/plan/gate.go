// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/internal/upgradecheck"
)

const (
	// checkTimeout is how long the checks of a member may take. Members with 100,000 pods need more than a minute.
	checkTimeout = 5 * time.Minute
	// checkGrace is how long the checks may take before the status says that they are running.
	checkGrace = 5 * time.Second
	// maxFinding is the maximum size of each text of a finding in a status, in bytes.
	maxFinding = 256
)

// checks runs the upgrade checks of Plans. Only one Plan is checked at a time, because the pages of large lists take
// much of the agent's memory.
type checks struct {
	run   func(context.Context, *upgradecheck.Target) ([]upgradecheck.Finding, error)
	now   func() time.Time
	touch func()
	turn  chan struct{} // has one element while a Plan is checked

	mu   sync.Mutex // guards last
	last map[string]*checked
}

// checked is the outcome of a Plan's last checks.
type checked struct {
	revision string        // the Plan's revision when the checks started
	at       time.Time     // when they ended
	took     time.Duration // how long they took
	findings []v1.UpgradeFinding
	unread   []v1.UpgradeFinding // the findings about facts that the agent has no right to read
	started  time.Time           // when the current checks started; zero if none are running
}

func newChecks(o Options, touch func()) *checks {
	run := o.Check
	if run == nil {
		run = func(ctx context.Context, target *upgradecheck.Target) ([]upgradecheck.Finding, error) {
			facts, err := upgradecheck.Gather(ctx, upgradecheck.Source{Client: o.Client, Direct: true}, target)
			if err != nil {
				return nil, err
			}
			return upgradecheck.Check(facts, target), nil
		}
	}
	return &checks{run: run, now: o.Now, touch: touch, turn: make(chan struct{}, 1), last: map[string]*checked{}}
}

// of returns the outcome of a Plan's last checks.
func (c *checks) of(uid string) checked {
	c.mu.Lock()
	defer c.mu.Unlock()
	if is := c.last[uid]; is != nil {
		return *is
	}
	return checked{}
}

// keep drops the outcomes of Plans that no longer exist.
func (c *checks) keep(there map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.last, func(uid string, _ *checked) bool { return !there[uid] })
}

// start starts the checks of a Plan unless they are running.
func (c *checks) start(ctx context.Context, running *sync.WaitGroup, r resolved) {
	c.mu.Lock()
	defer c.mu.Unlock()
	is := c.last[r.plan.UID]
	if is == nil {
		is = &checked{}
		c.last[r.plan.UID] = is
	}
	if !is.started.IsZero() {
		return
	}
	is.started = c.now()
	target, applies := upgradecheck.TargetOf(r.object, r.version)
	running.Go(func() {
		var found []upgradecheck.Finding
		var err error
		began := time.Now()
		if applies {
			found, err = c.inTurn(ctx, &target)
		}
		c.mu.Lock()
		is.revision, is.at, is.took, is.started = r.plan.Revision, c.now(), time.Since(began), time.Time{}
		is.unread, is.findings = inStatus(found, true), inStatus(found, false)
		switch {
		case !applies:
			is.findings = []v1.UpgradeFinding{{Check: v1.CheckUpgradeChecks,
				Cause: protocol.Cut(fmt.Sprintf("nothing was checked, because %q is not a Kubernetes version", r.version),
					maxFinding),
				Remedy: "set the version to one such as v1.36.3, or set spec.gates.upgradeChecks to Disabled"}}
		case err != nil:
			is.findings = []v1.UpgradeFinding{{Check: v1.CheckUpgradeChecks,
				Cause:  protocol.Cut("the cluster could not be checked: "+err.Error(), maxFinding),
				Remedy: "the agent tries again"}}
		}
		c.mu.Unlock()
		c.touch()
	})
}

// inTurn checks a Plan when no other Plan is being checked.
func (c *checks) inTurn(ctx context.Context, target *upgradecheck.Target) ([]upgradecheck.Finding, error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return c.run(ctx, target)
}

// inStatus returns either the findings about facts that the agent has no right to read, or all others.
func inStatus(all []upgradecheck.Finding, forbidden bool) []v1.UpgradeFinding {
	var out []v1.UpgradeFinding
	for _, f := range all {
		if f.Forbidden != forbidden {
			continue
		}
		out = append(out, v1.UpgradeFinding{Check: f.Check, Object: protocol.Cut(f.Object, maxFinding),
			Cause: protocol.Cut(f.Cause, maxFinding), Remedy: protocol.Cut(f.Remedy, maxFinding)})
	}
	return out
}

// policyOf returns what happens if the checks of a Plan have findings.
func policyOf(r resolved) v1.UpgradeCheckPolicy {
	var policy v1.UpgradeCheckPolicy
	if r.object.Spec.Gates != nil {
		policy = r.object.Spec.Gates.UpgradeChecks
	}
	if r.problem != nil || policy == "" && !upgradecheck.Applies(r.version) {
		return v1.UpgradeChecksDisabled
	}
	return cmp.Or(policy, v1.UpgradeChecksEnforce)
}

// guard sets the reason why a Plan must not start yet, and the findings that are not overridden.
func (l *leadership) guard(r *resolved) {
	last := l.tasks.checks.of(r.plan.UID)
	if last.revision == r.plan.Revision {
		overridden := l.overridden(r)
		ignored := func(f v1.UpgradeFinding) bool {
			return f.Check != v1.CheckUpgradeChecks && slices.Contains(overridden, f.Check)
		}
		r.findings = slices.DeleteFunc(slices.Clone(last.findings), ignored)
		r.unread = slices.DeleteFunc(slices.Clone(last.unread), ignored)
		if r.object.Spec.Gates != nil {
			r.findings, r.unread = append(r.findings, r.unread...), nil
		}
	}
	r.checks = rollout.Checks{Policy: policyOf(*r), Hub: ofHub(r.object), Revision: last.revision, At: last.at,
		Took: last.took, Refusal: refusal(r.findings), Last: &r.object.Status}
	r.plan.Guard(r.checks, l.options.Now())
}

// overridden returns the names of the checks whose findings are ignored. For the hub's Plans, the hub decides.
func (l *leadership) overridden(r *resolved) []string {
	if ofHub(r.object) {
		return strings.Split(r.object.Annotations[v1.AnnotationOverrides], ",")
	}
	var names []string
	if len(r.object.Spec.Overrides) > 0 {
		for _, o := range rollout.Overridden(overrideRevision(*r), "", r.object.Spec.Overrides) {
			names = append(names, o.Check)
		}
	}
	return names
}

// overrideRevision returns the revision that an override of a member's own Plan must name, or "" if it is unknown.
func overrideRevision(r resolved) string {
	revision, err := rollout.ApprovalRevision(r.object.UID, r.plan.Revision, &r.object.Spec)
	if err != nil {
		return ""
	}
	return revision
}

// refusal describes findings. It is empty if there are none.
func refusal(findings []v1.UpgradeFinding) string {
	if len(findings) == 0 {
		return ""
	}
	f := &findings[0]
	text := f.Check
	if f.Object != "" {
		text += ", " + f.Object
	}
	text += ": " + f.Cause
	if f.Remedy != "" {
		text += ": " + f.Remedy
	}
	text = protocol.Cut(text, maxFinding)
	if more := len(findings) - 1; more > 0 {
		text += fmt.Sprintf("; %d more in status.gates", more)
	}
	return text
}

// check starts the checks of a Plan if they are due, and returns when they are due otherwise.
func (l *leadership) check(ctx context.Context, r resolved) time.Time {
	if due := r.checks.Due(r.plan.Revision); l.options.Now().Before(due) {
		return due
	}
	l.tasks.checks.start(ctx, &l.running, r)
	return time.Time{}
}

// soon reports whether the first checks of a Plan have just started, so that the status does not have to be written
// before and after them.
func (l *leadership) soon(r resolved, wait rollout.Wait, next *deadline) bool {
	if !wait.Unchecked || wait.Reason != v1.ReasonApplying {
		return false
	}
	end := l.tasks.checks.of(r.plan.UID).started.Add(checkGrace)
	if !l.options.Now().Before(end) {
		return false
	}
	next.by(end)
	return true
}

// gatesOf returns the status of the gates, or nil if it is empty. begun reports whether any node is in progress with
// the current hash.
func (l *leadership) gatesOf(r resolved, wait rollout.Wait, begun bool) *v1.GateStatus {
	was := &v1.GateStatus{}
	if before := r.object.Status.Gates; before != nil && r.object.Status.LatestHash == r.plan.Hash {
		was = before
	}
	is := &v1.GateStatus{Started: startedOf(r, begun)}
	if wait.Reason == v1.ReasonUpgradeUnsafe || r.checks.Policy == v1.UpgradeChecksReport {
		is.Findings = was.Findings
		if len(r.findings) > 0 || r.checks.Policy == v1.UpgradeChecksReport && r.checks.Revision == r.plan.Revision {
			is.Findings = foremost(append(slices.Clone(r.findings), r.unread...))
		}
	} else {
		is.Findings = foremost(r.unread)
	}
	if !ofHub(r.object) && len(is.Findings)+len(r.object.Spec.Overrides) > 0 {
		is.Revision, is.Overrides = overrideRevision(r), overridesOf(r, was.Overrides, l.options.Now())
	}
	if is.Started == "" && len(is.Findings)+len(is.Overrides) == 0 {
		return nil
	}
	return is
}

// startedOf returns the plan's revision if a node has started it. The mark of an earlier revision does not count when
// the plan is changed back, because nodes may have started another revision meanwhile. The mark is kept while the
// revision is unknown, and while nodes are in progress that were selected before the selector was changed.
func startedOf(r resolved, begun bool) string {
	before := ""
	if g := r.object.Status.Gates; g != nil {
		before = g.Started
	}
	switch {
	case r.problem != nil:
		return before
	case before == r.plan.Revision, begun && (before == "" || r.plan.Refusal == nil):
		return r.plan.Revision
	case begun:
		return before
	}
	return ""
}

// overridesOf returns the overrides of a member's own Plan, with the times when they were found.
func overridesOf(r resolved, before []v1.OverrideStatus, now time.Time) []v1.OverrideStatus {
	var all []v1.OverrideStatus
	for _, o := range rollout.Overridden(overrideRevision(r), "", r.object.Spec.Overrides) {
		is := v1.OverrideStatus{Check: o.Check, Revision: o.Revision, OverriddenBy: o.OverriddenBy, Reason: o.Reason,
			OverriddenAt: metav1.NewTime(now)}
		for _, was := range before {
			if at := was.OverriddenAt; was.Check == o.Check && was.Revision == o.Revision {
				is.OverriddenAt = at
			}
		}
		all = append(all, is)
	}
	return all
}

// foremost returns the findings that a status lists. It includes each check before it repeats one.
func foremost(all []v1.UpgradeFinding) []v1.UpgradeFinding {
	seen := map[string]int{}
	rank := make(map[v1.UpgradeFinding]int, len(all))
	for _, f := range all {
		rank[f] = seen[f.Check]
		seen[f.Check]++
	}
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b v1.UpgradeFinding) int { return cmp.Compare(rank[a], rank[b]) })
	return sorted[:min(len(sorted), v1.MaxFindings)]
}
