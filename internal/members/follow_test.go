// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tunnel"
	"github.com/drover-dev/drover/test/testkit"
)

// recorded is a follower that records its calls.
type recorded[E any] struct {
	short func(E) string

	mu    sync.Mutex // guards calls
	calls []string
}

func (h *recorded[E]) note(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, text)
}

func (h *recorded[E]) Synced(member types.NamespacedName, all []E) {
	text := member.Name + " synced"
	for _, event := range all {
		text += " " + h.short(event)
	}
	h.note(text)
}

func (h *recorded[E]) Event(member types.NamespacedName, event E) {
	h.note(member.Name + " " + h.short(event))
}

func (h *recorded[E]) Stopped(member types.NamespacedName) { h.note(member.Name + " stopped") }

// take returns the calls since the last take.
func (h *recorded[E]) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	calls := h.calls
	h.calls = nil
	return calls
}

// follow registers followers of sets and plans.
func (w *world) follow() (*recorded[*protocol.SetEvent], *recorded[*protocol.PlanEvent]) {
	sets := &recorded[*protocol.SetEvent]{short: func(e *protocol.SetEvent) string {
		if e.State != nil {
			return e.State.ID + "=" + string(e.State.Phase)
		}
		return "-" + e.Removed
	}}
	plans := &recorded[*protocol.PlanEvent]{short: func(e *protocol.PlanEvent) string {
		switch {
		case e.Hold != nil:
			return "hold " + e.Hold.Reason
		case e.State != nil:
			return e.State.Name
		}
		return "-" + e.Removed
	}}
	w.FollowSets(sets)
	w.FollowPlans(plans)
	return sets, plans
}

// lead makes this replica the leader.
func (w *world) lead() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.Lead(ctx) }()
	w.t.Cleanup(func() { cancel(); <-done })
	synctest.Wait()
}

func (w *world) expect(what string, got []string, want ...string) {
	w.t.Helper()
	if !slices.Equal(got, want) {
		w.t.Errorf("%s: the follower got %q, want %q", what, got, want)
	}
}

func applied(id string) protocol.SetState {
	return protocol.SetState{ID: id, Phase: protocol.SetApplied}
}

// connect adds a fake agent of a member.
func (w *world) connect(member string, sets *testkit.Sets) *testkit.Agent {
	a := testkit.ConnectAgentWith(w.t, testkit.HealthyReport(), sets)
	w.Add(peer(member, "key"), a.Session)
	synctest.Wait()
	return a
}

func TestFollow(t *testing.T) {
	for name, test := range map[string]func(*world){
		"followers of both subjects get the complete state and then each change":               testFollow,
		"a replica that does not lead requests only reports":                                   testFollowOnlyLeading,
		"an agent stops leading and begins again":                                              testFollowLeader,
		"of two tunnels, the last to report everything counts":                                 testFollowTwo,
		"a leading agent is followed through another replica, also after a failure":            testFollowFar,
		"CVE-2024-58259: an endless complete report is not kept, and ends the tunnel":          testEndlessOffer,
		"CVE-2024-58259: a complete report of many tiny events is not kept either":             testTinyEvents,
		"CVE-2024-58259: the long lines of all tunnels of a member count together":             testLongLines,
		"CVE-2024-58259: the complete reports of all tunnels of a member are bounded together": testManyOffers,
		"CVE-2024-58259: a malformed or unrequested event ends the tunnel":                     testMalformedEvents,
		"CVE-2024-58259: endless changes end the tunnel, and the member must wait":             testEndlessChanges,
		"CVE-2024-58259: repeated complete reports end the tunnel":                             testEndlessRounds,
	} {
		t.Run(name, func(t *testing.T) { inBubble(t, test) })
	}
}

func testFollow(w *world) {
	sets, plans := w.follow()
	w.lead()
	agent := testkit.NewSets()
	agent.SetState(applied("crtb/a"))
	a := w.connect("member", agent)
	w.expect("sets", sets.take(), "member synced crtb/a=Applied")
	w.expect("plans", plans.take(), "member synced hold ")
	agent.SetState(applied("crtb/b"))
	synctest.Wait()
	agent.Plans.Hold("not now")
	agent.Plans.SetStatus("k3s", v1.PlanStatus{})
	synctest.Wait()
	agent.Plans.Remove("k3s")
	synctest.Wait()
	w.expect("sets", sets.take(), "member crtb/b=Applied")
	got := plans.take()
	if !slices.Contains(got, "member k3s") || !slices.Contains(got, "member hold not now") ||
		got[len(got)-1] != "member -k3s" {
		w.t.Errorf("plans: the follower got %q, want the plan k3s, a hold, and at last the removal of k3s", got)
	}
	a.Kill()
	synctest.Wait()
	w.expect("sets", sets.take(), "member stopped")
	w.expect("plans", plans.take(), "member stopped")
}

func testFollowOnlyLeading(w *world) {
	var mu sync.Mutex
	var asked []string
	agent := testkit.NewSets()
	agent.Serve(func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, strings.Join(protocol.Subjects(r.URL), " "))
		mu.Unlock()
		_, _ = io.WriteString(rw, `{"version":"v1"}`+"\n")
		_ = http.NewResponseController(rw).Flush()
		<-r.Context().Done()
	})
	w.follow()
	a := w.connect("member", agent)
	w.lead()
	mu.Lock()
	defer mu.Unlock()
	w.expect("requests", asked, "report", "report sets plans")
	if state := w.State(name("member")); !alive(newAgentOf(a)) || state.Report == nil {
		w.t.Errorf("state %+v, want the newer tunnel open, with a report", state)
	}
}

// newAgentOf converts an agent of testkit into one of this package.
func newAgentOf(a *testkit.Agent) agent { return agent{session: a.Session} }

func testFollowLeader(w *world) {
	sets, _ := w.follow()
	w.lead()
	agent := testkit.NewSets()
	w.connect("member", agent)
	w.expect("at first", sets.take(), "member synced")
	agent.Lead(false)
	synctest.Wait()
	w.expect("without a leader", sets.take(), "member stopped")
	agent.SetState(applied("crtb/a"))
	synctest.Wait()
	w.expect("before it leads", sets.take())
	agent.Lead(true)
	synctest.Wait()
	w.expect("when it leads again", sets.take(), "member synced crtb/a=Applied")
}

func testFollowTwo(w *world) {
	sets, _ := w.follow()
	w.lead()
	older, newer := testkit.NewSets(), testkit.NewSets()
	w.connect("member", older)
	second := w.connect("member", newer)
	sets.take()
	older.SetState(applied("crtb/old"))
	newer.SetState(applied("crtb/new"))
	synctest.Wait()
	w.expect("while both are there", sets.take(), "member crtb/new=Applied")
	second.Kill()
	synctest.Wait()
	w.expect("after the newer is gone", sets.take(), "member stopped", "member synced crtb/old=Applied")
}

// through forwards requests to an agent as another replica does.
type through struct {
	to     http.RoundTripper
	broken func() bool
}

func (p through) RoundTrip(r *http.Request) (*http.Response, error) {
	if p.broken() {
		return nil, fmt.Errorf("send request: %w", tunnel.ErrNotProcessed)
	}
	return p.to.RoundTrip(r)
}

func testFollowFar(w *world) {
	sets, plans := w.follow()
	w.lead()
	agent := testkit.NewSets()
	agent.SetState(applied("crtb/a"))
	a := testkit.ConnectAgentWith(w.t, testkit.HealthyReport(), agent)
	var mu sync.Mutex
	broken := true
	way := through{to: a.Session, broken: func() bool { mu.Lock(); defer mu.Unlock(); return broken }}
	mirror := w.Mirror("other")
	mirror.Begin(func(members.Peer) http.RoundTripper { return way })
	far := peer("member", "key")
	far.ID, far.Epoch, far.Instance = "far", 1, "agent-1"
	record := members.Record{Namespace: "team-a", Name: "member", Tunnels: []members.Peer{far}}
	mirror.Update(record)
	w.pass(time.Minute)
	w.expect("before the agent leads", sets.take())
	record.Report, record.Reported = &protocol.Report{Leader: true}, 1
	mirror.Update(record)
	w.pass(time.Second)
	w.expect("while it cannot be reached", sets.take())
	mu.Lock()
	broken = false
	mu.Unlock()
	w.pass(time.Minute)
	w.expect("sets", sets.take(), "member synced crtb/a=Applied")
	w.expect("plans", plans.take(), "member synced hold ")
	agent.SetState(applied("crtb/b"))
	synctest.Wait()
	w.expect("sets", sets.take(), "member crtb/b=Applied")
	mirror.Close()
	synctest.Wait()
	w.expect("after the replica is gone", sets.take(), "member stopped")
	if n := a.Session.Streams(); n != 0 {
		w.t.Errorf("%d requests are open, want none", n)
	}
}

// lying connects an agent that answers with lines, and repeats the last one endlessly.
func (w *world) lying(lines ...string) agent {
	agent := testkit.NewSets()
	agent.Serve(func(rw http.ResponseWriter, r *http.Request) {
		for i := 0; r.Context().Err() == nil; i++ {
			if _, err := io.WriteString(rw, strings.ReplaceAll(lines[min(i, len(lines)-1)], "#", fmt.Sprint(i))); err != nil {
				return
			}
			_ = http.NewResponseController(rw).Flush()
		}
	})
	return newAgentOf(w.connect("member", agent))
}

func testEndlessOffer(w *world) {
	sets, plans := w.follow()
	w.lead()
	a := w.lying(`{"plan":{"state":{"name":"p#","status":{"revision":"` + strings.Repeat("x", 60<<10) + `"}}}}` + "\n")
	if state := w.State(name("member")); alive(a) || !errors.Is(state.LostBecause, members.ErrReportMalformed) {
		w.t.Errorf("state %+v, want the tunnel ended as malformed", state)
	}
	w.expect("sets", sets.take())
	w.expect("plans", plans.take())
}

func testTinyEvents(w *world) {
	sets, plans := w.follow()
	w.lead()
	// 1 MB and 256 KB of lines
	for line, count := range map[string]int{`{"set":{"state":{"id":"a/%d"}}}`: 32_000,
		`{"plan":{"state":{"name":"%d"}}}`: 8_000} {
		var offer strings.Builder
		for i := range count {
			fmt.Fprintf(&offer, line+"\n", i)
		}
		a := w.serve("member", "key", reporting(respond(""), offer.String()))
		if state := w.State(name("member")); alive(a) || !errors.Is(state.LostBecause, members.ErrReportMalformed) {
			w.t.Errorf("%d events %s: state %+v, want the tunnel ended", count, line, state)
		}
	}
	w.expect("sets", sets.take())
	w.expect("plans", plans.take())
}

func testLongLines(w *world) {
	sets, _ := w.follow()
	w.lead()
	pad := strings.Repeat("x", 60<<10)
	for what, line := range map[string]string{
		"changes of sets": `{"set":{"state":{"id":"crtb/a","digest":"` + pad + `"}}}` + "\n",
		"reports":         `{"agentVersion":"` + pad + `"}` + "\n",
	} {
		var mu sync.Mutex
		sent := 0
		lying := func(rw http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(rw, `{"set":{"synced":true}}`+"\n")
			tenth := time.NewTicker(100 * time.Millisecond) // half as often as reports are allowed
			defer tenth.Stop()
			for r.Context().Err() == nil && strings.HasPrefix(r.URL.Path, protocol.PathReport) {
				if _, err := io.WriteString(rw, line); err != nil {
					return
				}
				mu.Lock()
				sent++
				mu.Unlock()
				<-tenth.C
			}
		}
		var agents []agent
		for range 6 {
			agents = append(agents, w.serve("member", "key", lying))
		}
		w.pass(time.Minute)
		mu.Lock()
		if state := w.State(name("member")); alive(agents[0]) || !errors.Is(state.LostBecause, members.ErrTooFast) ||
			sent > 700 {
			w.t.Errorf("%s: %d lines of 60 KiB were sent, state %+v, want the tunnels ended after fewer than 700", what, sent,
				state)
		}
		mu.Unlock()
		for _, a := range agents {
			_ = a.session.Close()
		}
		w.pass(2 * members.RefusalMemory)
	}
	if n := len(sets.take()); n > 700 {
		w.t.Errorf("the follower got %d events, want at most 700", n)
	}
}

func testManyOffers(w *world) {
	w.follow()
	w.lead()
	line := `{"set":{"state":{"id":"crtb/a","message":"` + strings.Repeat("x", 60<<10) + `"}}}` + "\n"
	offer := strings.Repeat(line, 8<<20/len(line)) // half of what one agent is allowed
	var agents []agent
	for range 6 {
		agents = append(agents, w.serve("member", "key", reporting(respond(""), offer)))
		synctest.Wait()
	}
	if state := w.State(name("member")); state.Connected() || !errors.Is(state.LostBecause, members.ErrTooFast) ||
		alive(agents[0]) {
		w.t.Errorf("6 tunnels that offer 8 MiB each: state %+v, want them ended", state)
	}
}

func testMalformedEvents(w *world) {
	w.follow()
	if a := w.lying(`{"set":{"synced":true}}` + "\n"); alive(a) {
		w.t.Error("the tunnel is open after an event that was not requested, want it ended")
	}
	w.lead()
	for _, line := range []string{`{"set":{"state":{"id":"../uninstall"}}}`, `{"set":"secret"}`,
		"[" + strings.Repeat("[", 60<<10), `{"plan":` + strings.Repeat(" ", 70<<10)} {
		a := w.lying(line + "\n")
		state := w.State(name("member"))
		if alive(a) || !errors.Is(state.LostBecause, members.ErrReportMalformed) ||
			strings.Contains(fmt.Sprint(state.LostBecause), "secret") {
			w.t.Errorf("%.30s: state %+v, want the tunnel ended as malformed, with nothing of the line in the error", line,
				state)
		}
	}
}

func testEndlessChanges(w *world) {
	w.follow()
	w.lead()
	for subject, lines := range map[string][]string{
		"changes of sets":  {`{"set":{"synced":true}}` + "\n", `{"set":{"state":{"id":"crtb/a","digest":"#"}}}` + "\n"},
		"changes of plans": {`{"plan":{"synced":true}}` + "\n", `{"plan":{"removed":"p#"}}` + "\n"},
	} {
		a := w.lying(lines...)
		w.pass(30 * time.Second)
		state := w.State(name("member"))
		if alive(a) || !errors.Is(state.LostBecause, members.ErrTooFast) || state.Refusal == nil ||
			!strings.Contains(state.Refusal.Message, subject) {
			w.t.Errorf("%s: state %+v, refusal %+v, want the tunnel ended as too fast, with a refusal that names the subject",
				subject, state, state.Refusal)
		}
		if _, err := w.Admit(name("member")); !errors.Is(err, members.ErrTooFast) {
			w.t.Errorf("%s: got %v, want the member to wait because of %v", subject, err, members.ErrTooFast)
		}
		w.pass(2 * members.RefusalMemory)
	}
}

func testEndlessRounds(w *world) {
	sets, _ := w.follow()
	w.lead()
	a := w.lying(`{"set":{"synced":true}}` + "\n" + `{"set":{"stopped":true}}` + "\n")
	if state := w.State(name("member")); alive(a) || !errors.Is(state.LostBecause, members.ErrTooFast) {
		w.t.Errorf("state %+v, want the tunnel ended as too fast", state)
	}
	if n := len(sets.take()); n > 30 {
		w.t.Errorf("the follower got %d calls, want at most 30", n)
	}
}
