// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/internal/rollout/simulation"
)

// changing is a simulation in which users change things at random times.
type changing struct {
	*simulation.Simulation
	scenario simulation.Scenario
	lines    []string
	// failures reports whether members fail. A member whose nodes are retried after a pause may be at work although all
	// slots are taken.
	failures bool
	// approved contains, for each wave, the plan that users have approved most recently, without its pause and approvals.
	approved map[string]string
	spec     v1.PlanSpec // as users have changed it
	// started contains, for each cluster, the hash that a node there has started most recently.
	started map[string]string
}

// edit changes the plan.
func (m *changing) edit(change func(*v1.PlanSpec)) error {
	return m.Edit(func(s *v1.PlanSpec) {
		change(s)
		m.spec = *s.DeepCopy()
	})
}

// content returns what an approval of the plan approves. It is independent of the digest that the planner uses.
func (m *changing) content() string {
	return fmt.Sprintf("version %s, arguments %v, up to %d failed", m.spec.Version, m.spec.Upgrade.Args,
		m.spec.Rollout.MaxFailedClusters)
}

// approve approves the plan for a wave, or withdraws the approval of the wave.
func (m *changing) approve(wave string, approves bool) error {
	delete(m.approved, wave)
	if approves {
		m.approved[wave] = m.content()
	}
	return m.edit(func(s *v1.PlanSpec) {
		s.Approvals = slices.DeleteFunc(s.Approvals, func(a v1.Approval) bool { return a.Wave == wave })
		if approves {
			s.Approvals = append(s.Approvals, v1.Approval{Wave: wave, Revision: m.ApprovalRevision(), ApprovedBy: "alice"})
		}
	})
}

// closed returns the first wave that requires an approval and has none. It returns the number of waves if there is no
// such wave.
func (m *changing) closed() int {
	waves := m.spec.Rollout.Waves
	for i, w := range waves {
		if w.Approval == v1.ApprovalRequired && m.approved[w.Name] != m.content() {
			return i
		}
	}
	return len(waves) + 1
}

// checkApproval checks that no work starts in a wave without approval, or in a wave after it.
func (m *changing) checkApproval(l simulation.Event) error {
	starts := []rollout.Verb{rollout.VerbBegin, rollout.VerbRestart, rollout.VerbRetry, rollout.VerbPrepare,
		rollout.VerbCordon, rollout.VerbDrain, rollout.VerbUpgrade}
	if !slices.Contains(starts, l.Verb) {
		return nil
	}
	for i := range m.Clusters {
		c := &m.Clusters[i]
		complete := c.Claim != nil && c.Claim.Complete != nil && l.Node != "" // the work of an approved revision is repaired
		if c.Name != l.Cluster || complete {
			continue
		}
		if wave := m.waveOf(c); wave >= m.closed() {
			return fmt.Errorf("%v: %s %s/%s in wave %d, although wave %d is not approved", l.At, l.Verb, l.Cluster, l.Node,
				wave, m.closed())
		}
	}
	return nil
}

// checkWait checks that a plan waits for approval only if a wave has none, and for safety only if a member was unsafe
// when it was last checked.
func (m *changing) checkWait(why rollout.Wait) error {
	if why.Reason == v1.ReasonUpgradeUnsafe && !slices.ContainsFunc(m.Members, m.unsafeRecently) {
		return fmt.Errorf("%v: the plan waits although all members are safe: %s", m.Now, why.Message)
	}
	if why.Reason == v1.ReasonAwaitingApproval && m.closed() > len(m.spec.Rollout.Waves) {
		return fmt.Errorf("%v: the plan waits although all waves are approved: %s", m.Now, why.Message)
	}
	return nil
}

// unsafeRecently reports whether a member was unsafe at any time since it was last checked.
func (m *changing) unsafeRecently(member *simulation.Member) bool {
	unsafe, _ := member.Unsafe(m.Now)
	_, changes := member.Unsafe(m.Now.Add(-time.Minute))
	return unsafe || !changes.IsZero() && !changes.After(m.Now)
}

// safeRecently is like unsafeRecently, for the opposite.
func (m *changing) safeRecently(member *simulation.Member) bool {
	unsafe, _ := member.Unsafe(m.Now)
	_, changes := member.Unsafe(m.Now.Add(-time.Minute))
	return !unsafe || !changes.IsZero() && !changes.After(m.Now)
}

// checkSafety checks that no node starts first in a member that is unsafe, and that no wave opens while a member of an
// earlier wave refuses the plan.
func (m *changing) checkSafety(l simulation.Event) error {
	i := slices.IndexFunc(m.Clusters, func(c rollout.Cluster) bool { return c.Name == l.Cluster })
	if l.Node != "" && (l.Verb == rollout.VerbBegin || l.Verb == rollout.VerbRestart) {
		nodes := m.Members[i].Nodes
		at := slices.IndexFunc(nodes, func(n rollout.Node) bool { return n.Name == l.Node })
		hash := nodes[at].Claims["p"].Hash
		begun := m.started[l.Cluster] == hash || slices.ContainsFunc(nodes, func(n rollout.Node) bool {
			return n.Name != l.Node && n.Claims["p"].Hash == hash
		})
		m.started[l.Cluster] = hash
		if !begun && !m.safeRecently(m.Members[i]) {
			return fmt.Errorf("%v: node %s/%s starts although the member is unsafe", l.At, l.Cluster, l.Node)
		}
	}
	if l.Node == "" && l.Verb == rollout.VerbRelease {
		delete(m.started, l.Cluster) // the Plan is removed from the member
	}
	if l.Node != "" || l.Verb != rollout.VerbBegin {
		return nil
	}
	revision := m.Clusters[i].Claim.Revision
	refusing := ""
	for k := range m.Clusters {
		c := &m.Clusters[k]
		if k == i || !c.Selected || c.Claim == nil || c.Claim.Revision != revision {
			continue
		}
		switch wave := m.waveOf(c); {
		case c.Claim.Refused == nil && wave >= m.waveOf(&m.Clusters[i]):
			return nil // the wave was open
		case c.Claim.Refused != nil && wave < m.waveOf(&m.Clusters[i]) && c.Status.Reason == v1.ReasonUpgradeUnsafe:
			refusing = c.Name
		}
	}
	if refusing != "" {
		return fmt.Errorf("%v: the wave of %s opens although %s refuses the plan", l.At, l.Cluster, refusing)
	}
	return nil
}

// waveOf returns the index of a member's wave.
func (m *changing) waveOf(c *rollout.Cluster) int {
	wave := slices.IndexFunc(m.spec.Rollout.Waves, func(w v1.Wave) bool { return w.Name == c.Labels["ring"] })
	if wave < 0 {
		return len(m.spec.Rollout.Waves)
	}
	return wave
}

// working counts the members at work, except one.
func (m *changing) working(but string) int {
	working := 0
	for i, member := range m.Members {
		busy := slices.ContainsFunc(member.Nodes, func(n rollout.Node) bool {
			c, at := n.Claims["p"]
			return at && c.Done == nil && (c.Failure == nil || !c.Failure.Final)
		})
		if busy && m.Clusters[i].Name != but {
			working++
		}
	}
	return working
}

// checkStep checks the invariants after each step, whatever users do.
func (m *changing) checkStep(l simulation.Event) error {
	m.lines = append(m.lines, fmt.Sprint(l))
	if err := errors.Join(m.checkApproval(l), m.checkSafety(l)); err != nil {
		return err
	}
	limit := int(m.scenario.Plan.Spec.Rollout.MaxConcurrentClusters)
	if l.Node == "" && l.Verb == rollout.VerbBegin && m.working(l.Cluster) >= limit {
		return fmt.Errorf("%v: member %s begins beside %d", l.At, l.Cluster, m.working(l.Cluster))
	}
	if working := m.working(""); !m.failures && working > limit {
		return fmt.Errorf("%v: %d members are at work", l.At, working)
	}
	for i, member := range m.Members {
		cordoned := map[string]bool{}
		for _, n := range m.scenario.Clusters[i].Nodes {
			cordoned[m.scenario.Clusters[i].Name+"/"+n.Name] = n.Unschedulable
		}
		if err := checkNodes(member, m.Clusters[i].Name, m.scenario.Plan.Spec.Concurrency, cordoned); err != nil {
			return fmt.Errorf("%v %s: %w", l.At, l.Verb, err)
		}
	}
	return nil
}

// change makes one of the changes that users make.
func (m *changing) change(r *rand.Rand) error {
	what, err := "", error(nil)
	c := &m.Clusters[r.IntN(len(m.Clusters))]
	switch r.IntN(11) {
	case 0:
		what, err = "pause", m.edit(func(s *v1.PlanSpec) { s.Paused = true })
	case 1:
		what, err = "resume", m.edit(func(s *v1.PlanSpec) { s.Paused = false })
	case 2:
		version := fmt.Sprintf("v%d", 1+r.IntN(2)) // only two, so that it is often changed back
		what, err = "edit to "+version, m.edit(func(s *v1.PlanSpec) { s.Version = version })
	case 3:
		c.Selected = !c.Selected
		what = fmt.Sprintf("%s selected %v", c.Name, c.Selected)
	case 4:
		for i := range m.Clusters {
			if m.Clusters[i].Name == c.Name {
				m.Members[i].RestartAgent()
			}
		}
		what = c.Name + " restarts"
	case 5:
		what, err = "more failures", m.edit(func(s *v1.PlanSpec) { s.Rollout.MaxFailedClusters++ })
	case 6:
		args := []string{fmt.Sprint(r.IntN(2))}
		what, err = fmt.Sprintf("edit to arguments %v", args), m.edit(func(s *v1.PlanSpec) { s.Upgrade.Args = args })
	case 7:
		ring := "of no wave"
		if n := len(m.spec.Rollout.Waves); n > 0 && r.IntN(4) > 0 {
			ring = m.spec.Rollout.Waves[r.IntN(n)].Name
		}
		c.Labels = map[string]string{"ring": ring}
		what = fmt.Sprintf("%s moves to ring %s", c.Name, ring)
	default:
		if len(m.spec.Rollout.Waves) > 0 {
			wave, approves := m.spec.Rollout.Waves[r.IntN(len(m.spec.Rollout.Waves))].Name, r.IntN(4) > 0
			what, err = fmt.Sprintf("approve wave %s: %v", wave, approves), m.approve(wave, approves)
		}
	}
	m.lines = append(m.lines, fmt.Sprintf("%v: %s", m.Now, what))
	return err
}

// undo reverts the changes that would keep the plan from ending.
func (m *changing) undo() error {
	for i := range m.Clusters {
		m.Clusters[i].Selected = true
	}
	for _, w := range m.spec.Rollout.Waves {
		if err := m.approve(w.Name, true); err != nil {
			return err
		}
	}
	return m.edit(func(s *v1.PlanSpec) { s.Paused = false })
}

// checkEnd checks how the plan ended.
func (m *changing) checkEnd(why rollout.Wait) error {
	ends := []string{v1.ReasonComplete, v1.ReasonNoNodes}
	if m.failures {
		ends = append(ends, v1.ReasonNodeFailed, v1.ReasonTooManyFailures)
	}
	if !slices.Contains(ends, why.Reason) {
		return fmt.Errorf("the plan ends with %s: %s", why.Reason, why.Message)
	}
	if err := m.checkStep(simulation.Event{At: m.Now, Verb: "end"}); err != nil || why.Reason != v1.ReasonComplete {
		return err
	}
	for i, member := range m.Members {
		for _, n := range member.Nodes {
			if hash := m.Clusters[i].Status.Hash; n.Labels[v1.PlanLabel("p")] != hash || len(n.Claims) > 0 {
				return fmt.Errorf("the plan is complete, but node %s/%s has the label %q and claims %v", m.Clusters[i].Name, n.Name,
					n.Labels[v1.PlanLabel("p")], n.Claims)
			}
		}
	}
	return nil
}

func TestInvariantsOfGeneratedFleetsThatUsersChange(t *testing.T) {
	from := *seed
	if from == 0 {
		from = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed=%d -rounds=%d", from, *rounds)
	for round := range *rounds {
		r := rand.New(rand.NewPCG(from, uint64(round)))
		m := &changing{scenario: generatedScenario(r), approved: map[string]string{}, started: map[string]string{}}
		for i := range m.scenario.Clusters {
			for at := time.Duration(0); r.IntN(2) == 0; {
				at += time.Duration(r.IntN(7200)) * time.Second
				from := at
				at += time.Duration(1+r.IntN(7200)) * time.Second
				m.scenario.Clusters[i].Unsafe = append(m.scenario.Clusters[i].Unsafe,
					simulation.Period{From: metav1.Duration{Duration: from}, Until: metav1.Duration{Duration: at}})
			}
		}
		for i := range m.scenario.Plan.Spec.Rollout.Waves {
			if r.IntN(2) == 0 {
				m.scenario.Plan.Spec.Rollout.Waves[i].Approval = v1.ApprovalRequired
			}
		}
		m.spec = *m.scenario.Plan.Spec.DeepCopy()
		for _, c := range m.scenario.Clusters {
			m.failures = m.failures || slices.ContainsFunc(c.Nodes, func(n simulation.Node) bool { return n.Fails > 0 })
		}
		var err error
		if m.Simulation, err = simulation.New(m.scenario); err != nil {
			t.Fatal(err)
		}
		m.Observe = m.checkStep
		check := func(err error) {
			if err != nil {
				t.Fatalf("round %d: %v\n%s", round, err, strings.Join(m.lines, "\n"))
			}
		}
		for range 1 + r.IntN(12) {
			// often in the middle of a node
			why, err := m.RunUntil(m.Now.Add(time.Duration(r.IntN([]int{120, 3600}[r.IntN(2)])) * time.Second))
			check(err)
			check(m.checkWait(why))
			check(m.change(r))
		}
		check(m.undo())
		why, err := m.Run()
		check(err)
		check(m.checkEnd(why))
	}
}

func TestPlanThatIsChangedBackFindsNoMemberAtWorkWithoutASlot(t *testing.T) {
	p, lines := newSimulation(t, `{start: "2026-11-21T00:00:00Z", clusters: [{name: a, nodes: [{name: x}]}, {name: b, nodes: [{name: x}, {name: z}]}],
		plan: {metadata: {name: p}, spec: {version: v1, clusterSelector: {}, concurrency: 1, upgrade: {image: i}}}}`)
	for _, edit := range []struct {
		at      time.Duration
		version string
		// b is at its first node, then a is at work and b has been released
	}{{90 * time.Second, "v2"}, {40 * time.Second, "v1"}} {
		if _, err := p.RunUntil(p.Now.Add(edit.at)); err != nil {
			t.Fatal(err)
		}
		if err := p.Edit(func(s *v1.PlanSpec) { s.Version = edit.version }); err != nil {
			t.Fatal(err)
		}
	}
	if why, err := p.Run(); err != nil || why.Reason != v1.ReasonComplete {
		t.Errorf("the plan ended with %v, %v, want Complete", why, err)
	}
	const want = "0 a begin, 0 a/x begin, 0 a/x upgrade, 60 a/x complete, 60 a complete 1/1 nodes, 60 b begin, 60 b/x begin, 60 b/x upgrade, 120 b/x complete, 120 b yield, " +
		"120 a begin, 120 a/x begin, 120 a/x clean, 120 a/x upgrade, 180 a/x complete, 180 a yield, 180 a begin, 180 a/x begin, 180 a/x clean, 180 a/x upgrade, 240 a/x complete, " +
		"240 a complete 1/1 nodes, 240 b begin, 240 b/z begin, 240 b/z upgrade, 300 b/z complete, 300 b complete 2/2 nodes"
	if got := strings.Join(*lines, ", "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
