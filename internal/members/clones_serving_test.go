// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
)

// lease is the Lease of the agents in one cluster.
type lease struct {
	mu    sync.Mutex // guards the fields below
	term  string
	asked int
	hangs bool // set if the agent does not respond
}

func (l *lease) set(change func(*lease)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
}

func (l *lease) get() (term string, hangs bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	return l.term, l.hangs
}

func (l *lease) questions() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked
}

// leading connects a process of the agent that claims to be the leader, in the cluster with this Lease.
func (w *world) leading(instance string, l *lease) agent {
	w.t.Helper()
	answer := func(rw http.ResponseWriter, r *http.Request) {
		term, hangs := l.get()
		switch {
		case r.URL.Path != protocol.PathTerm:
			http.NotFound(rw, r)
		case hangs:
			<-r.Context().Done()
		default:
			_ = json.NewEncoder(rw).Encode(protocol.Term{Term: term})
		}
	}
	a := newAgent(w.t, reporting(answer, `{"protocol":1,"leader":true,"features":["sets/2"]}`+"\n"))
	p := peer("member", "key")
	p.Instance = instance
	w.Add(p, a.session)
	synctest.Wait()
	return a
}

// served returns the reason why the member is not served, or nil if it is.
func (w *world) served() error {
	_, users := w.Transport(name("member"))
	_, sets := w.Leading(name("member"))
	if !errors.Is(users, sets) {
		w.t.Errorf("users are refused with %v and sets with %v, want the same", users, sets)
	}
	return users
}

func TestTwoClustersWithOneIdentity(t *testing.T) {
	for name, test := range map[string]func(*world){
		"are both refused within a minute, until one is gone for the duration of a Lease": testClones,
		"are found if one is connected to another replica of the hub":                     testClonesAcross,
		"are not confused with a paused leader and its successor":                         testPaused,
		"are not confused with a single leader, which gets no questions":                  testOneLeader,
		"get no sets before it is known that they are two":                                testUndecided,
		"are not confused with a leader and its predecessor, which cause no delay":        testSuccessor,
	} {
		t.Run(name, func(t *testing.T) { inBubble(t, test) })
	}
}

func testClones(w *world) {
	one, other := &lease{term: "1/a"}, &lease{term: "1/b"}
	w.leading("a", one)
	copied := w.leading("b", other)
	w.pass(time.Minute)
	state := w.State(name("member"))
	if err := w.served(); !errors.Is(err, members.ErrClones) || state.Clones == nil ||
		fmt.Sprint(state.Clones.Agents) != "[a b]" {
		w.t.Fatalf("the member is served with %v and the state is %+v, want neither a nor b served", err, state.Clones)
	}
	changes := w.changed()
	w.pass(time.Hour)
	if err := w.served(); !errors.Is(err, members.ErrClones) || w.changed() != changes {
		w.t.Errorf("after an hour the member is served with %v, after %d more changes, want it refused without a change",
			err, w.changed()-changes)
	}
	_ = copied.conn.Close()
	w.pass(14 * time.Second)
	if err := w.served(); !errors.Is(err, members.ErrClones) {
		w.t.Errorf("14 s after one is gone the member is served with %v, want it refused, because it may only restart", err)
	}
	w.pass(10 * time.Second)
	if err := w.served(); err != nil || w.State(name("member")).Clones != nil {
		w.t.Errorf("24 s after one is gone the member is served with %v, want it served", err)
	}
	asked := one.questions()
	w.pass(time.Hour)
	if now := one.questions(); now != asked {
		w.t.Errorf("a single cluster got %d questions in an hour, want none", now-asked)
	}
}

func testClonesAcross(w *world) {
	w.leading("a", &lease{term: "1/a"})
	far := newAgent(w.t, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(rw).Encode(protocol.Term{Term: "1/b"})
	}))
	mirror := w.Mirror("other")
	mirror.Begin(func(members.Peer) http.RoundTripper { return far.session })
	p := peer("member", "key")
	p.ID, p.Epoch, p.Instance, p.Leads = "far", 1, "b", true
	mirror.Update(members.Record{Namespace: "team-a", Name: "member", Tunnels: []members.Peer{p}})
	w.pass(time.Minute)
	if err := w.served(); !errors.Is(err, members.ErrClones) {
		w.t.Errorf("the member is served with %v, want it refused", err)
	}
	feed := w.Feed()
	defer feed.Close()
	if records := feed.Take(1); len(records) != 1 || len(records[0].Tunnels) != 1 || !records[0].Tunnels[0].Leads {
		w.t.Errorf("other replicas get %+v, want that the agent leads", records)
	}
	mirror.Close()
}

func testPaused(w *world) {
	l := &lease{term: "1/a"}
	w.leading("a", &lease{hangs: true}) // stopped by SIGSTOP: its last report remains, and it answers nothing
	w.leading("b", l)
	l.set(func(l *lease) { l.term = "2/b" })
	w.pass(time.Minute)
	if err := w.sendSet(); err != nil {
		w.t.Errorf("after a minute sending a set fails with %v, want it sent to the successor", err)
	}
	w.pass(10 * time.Minute)
	if err := w.served(); err != nil {
		w.t.Errorf("the member is served with %v, want it served", err)
	}
}

func testOneLeader(w *world) {
	l := &lease{term: "1/a"}
	a := w.leading("a", l)
	w.leading("a", l) // the same process moves
	w.pass(time.Hour)
	_ = a.conn.Close()
	w.pass(time.Hour)
	if err := w.served(); err != nil || l.questions() > 0 {
		w.t.Errorf("the member is served with %v after %d questions, want it served without questions", err, l.questions())
	}
}

// sendSet sends a request for a set to the leader, and returns why it fails, or nil if an agent got the request.
func (w *world) sendSet() error {
	w.t.Helper()
	agents, err := w.Leading(name("member"))
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(w.t.Context(), http.MethodDelete,
		"http://agent"+protocol.SetPathAt("crtb.a", ""), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	response, err := agents.RoundTrip(request)
	if err == nil {
		_ = response.Body.Close()
	}
	return err
}

// A busy agent may respond late. Until then, the copy, which connected last, must not get any sets.
func testUndecided(w *world) {
	one := &lease{term: "1/a", hangs: true}
	w.leading("a", one)
	if err := w.sendSet(); err != nil {
		w.t.Fatalf("with one leader sending a set fails with %v, want it sent", err)
	}
	w.leading("b", &lease{term: "1/b"})
	for range 4 {
		if err := w.sendSet(); !errors.Is(err, members.ErrUndecided) {
			w.t.Fatalf("before the first agent has answered, sending a set fails with %v, want %v", err, members.ErrUndecided)
		}
		w.pass(4 * time.Second)
	}
	one.set(func(l *lease) { l.hangs = false })
	w.pass(20 * time.Second)
	if err := w.sendSet(); !errors.Is(err, members.ErrClones) {
		w.t.Errorf("after both have answered, sending a set fails with %v, want %v", err, members.ErrClones)
	}
}

func testSuccessor(w *world) {
	l := &lease{term: "2/b"}
	w.leading("a", l)
	w.leading("b", l)
	if err := w.sendSet(); err != nil {
		w.t.Errorf("after both have answered, sending a set fails with %v, want it sent", err)
	}
}

func TestMissingLeaderIsReported(t *testing.T) {
	for name, test := range map[string]func(*world){
		"it is reported after a minute":                        testVacant,
		"it is not reported within a minute":                   testBriefly,
		"node agents are not expected to have a leader":        testNodeAgentsAlone,
		"a lost member does not count as one without a leader": testLostIsNotVacant,
		"a leader at another replica counts":                   testLeaderAcross,
	} {
		t.Run(name, func(t *testing.T) { inBubble(t, test) })
	}
}

// following connects a process of the agent that is not the leader.
func (w *world) following(nodeAgent bool) agent {
	w.t.Helper()
	a := newAgent(w.t, reporting(http.NotFound, `{"protocol":1,"features":["sets/2"]}`+"\n"))
	p := peer("member", "key")
	p.Instance, p.NodeAgent = "follower", nodeAgent
	w.Add(p, a.session)
	synctest.Wait()
	return a
}

func (w *world) expectVacant(want bool) {
	w.t.Helper()
	if since := w.State(name("member")).NoLeader; since.IsZero() == want {
		w.t.Errorf("without a leader since %s, want that reported: %t", since, want)
	}
}

func testVacant(w *world) {
	w.following(false)
	w.pass(59 * time.Second)
	w.expectVacant(false)
	changes := w.changed()
	w.pass(2 * time.Second)
	w.expectVacant(true)
	w.pass(time.Hour)
	if n := w.changed() - changes; n != 1 {
		w.t.Errorf("the missing leader caused %d changes, want 1", n)
	}
	w.leading("a", &lease{})
	w.expectVacant(false)
}

func testBriefly(w *world) {
	w.following(false)
	w.pass(50 * time.Second)
	a := w.leading("a", &lease{})
	w.pass(time.Hour)
	_ = a.conn.Close()
	w.pass(50 * time.Second)
	w.expectVacant(false)
	w.pass(11 * time.Second)
	w.expectVacant(true)
}

func testNodeAgentsAlone(w *world) {
	w.following(true)
	w.pass(time.Hour)
	w.expectVacant(false)
}

func testLostIsNotVacant(w *world) {
	a := w.following(false)
	w.pass(50 * time.Second)
	_ = a.conn.Close()
	w.pass(time.Hour)
	w.expectVacant(false)
}

func testLeaderAcross(w *world) {
	w.following(false)
	mirror := w.Mirror("other")
	mirror.Begin(func(members.Peer) http.RoundTripper { return nil })
	p := peer("member", "key")
	p.ID, p.Epoch, p.Instance, p.Leads = "far", 1, "b", true
	mirror.Update(members.Record{Namespace: "team-a", Name: "member", Tunnels: []members.Peer{p}})
	w.pass(time.Hour)
	w.expectVacant(false)
	mirror.Close()
	w.pass(2 * time.Minute)
	w.expectVacant(true)
}
