// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

func TestTheOutcomeDependsOnTheConnection(t *testing.T) {
	const id = "crtb/x"
	mine := sized(t, id, 1)
	phase := func(p protocol.SetPhase) map[string]*protocol.SetState {
		return map[string]*protocol.SetState{id: {ID: id, Digest: mine.Digest, Phase: p}}
	}
	want := func(s *set.Set) map[string]*wanted { return map[string]*wanted{id: {content: newContent(s)}} }
	for name, tt := range map[string]struct {
		change func(m *member)
		want   Stage
		reason string
	}{
		"a set in progress is pending": {func(m *member) { m.has = phase(protocol.SetProgressing) }, Pending, ""},
		"a set that failed remains failed": {func(m *member) {
			m.has, m.connected = phase(protocol.SetFailed), false
		}, Failed, v1.ReasonDeliveryFailed},
		"a set that was applied remains applied": {func(m *member) {
			m.has, m.connected = phase(protocol.SetApplied), false
		}, Applied, ""},
		"a set in progress is away with its member": {func(m *member) {
			m.has, m.connected = phase(protocol.SetProgressing), false
		}, Away, ""},
		"an unchanged set is unreported while the member is connected": {func(m *member) {
			m.wants = want(Unchanged(id))
		}, Unreported, ""},
		"an unchanged set is away with its member": {func(m *member) {
			m.wants, m.connected = want(Unchanged(id)), false
		}, Away, ""},
		"an unchanged set is refused by an agent that accepts none": {func(m *member) {
			m.wants, m.refuses = want(Unchanged(id)), v1.ReasonAgentReadOnly
		}, Refused, v1.ReasonAgentReadOnly},
		"an unchanged set of an agent without a leader has failed": {func(m *member) {
			m.wants, m.synced, m.leaderless = want(Unchanged(id)), false, true
		}, Failed, v1.ReasonNoLeader},
		"a set is unreported while an agent has just connected": {func(m *member) {
			m.synced, m.silent = false, time.Now()
		}, Unreported, ""},
		"a set of an agent that stays silent is pending": {func(m *member) {
			m.synced, m.silent = false, time.Now().Add(-settleTime)
		}, Pending, ""},
		"an unchanged set of an agent that stays silent is pending": {func(m *member) {
			m.wants, m.synced, m.silent = want(Unchanged(id)), false, time.Now().Add(-settleTime)
		}, Pending, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := New(Options{Log: logr.Discard()})
			m := d.ready("a")
			g := d.lock()
			g.started = time.Now().Add(-time.Hour)
			m.wants = want(mine)
			tt.change(m)
			d.unlock()
			got := d.Outcomes(id, []types.NamespacedName{m.name})[0]
			if got.Stage != tt.want || got.Reason != tt.reason {
				t.Errorf("got stage %d with reason %q, want %d with %q", got.Stage, got.Reason, tt.want, tt.reason)
			}
		})
	}
}

func TestAnOwnerLearnsThatAMemberInProgressIsGone(t *testing.T) {
	d := New(Options{Log: logr.Discard()})
	m := d.ready("a")
	defer d.unlock()
	d.lock()
	for phase, want := range map[protocol.SetPhase]int{
		protocol.SetApplied: 0, protocol.SetProgressing: 1, protocol.SetUnhealthy: 1,
	} {
		mine := sized(t, "crtb/x", 1)
		m.wants = map[string]*wanted{"crtb/x": {key: Key{Name: "x"}, content: newContent(mine)}}
		m.has = map[string]*protocol.SetState{"crtb/x": {Digest: mine.Digest, Phase: phase}}
		if got := m.lacking(); len(got) != want {
			t.Errorf("phase %s: got the owners %v, want %d", phase, got, want)
		}
	}
}

func TestMembersShareWhatTheirOwnerDeclaresAtOnce(t *testing.T) {
	d := New(Options{Log: logr.Discard()})
	s, key := sized(t, "crtb/x", 1), Key{Kind: "crtb", Name: "x"}
	names := []types.NamespacedName{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	d.Replace(key, map[types.NamespacedName]*set.Set{names[0]: s, names[1]: s})
	d.Replace(key, map[types.NamespacedName]*set.Set{names[0]: s, names[1]: s, names[2]: s})
	g := d.lock()
	defer d.unlock()
	a, b, c := g.members[names[0]].wants[s.ID], g.members[names[1]].wants[s.ID], g.members[names[2]].wants[s.ID]
	if a != b || a == c || a.content != c.content {
		t.Errorf("got the entries %p, %p and %p, want that a and b share one, and c the content", a, b, c)
	}
}
