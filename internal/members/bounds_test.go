// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/test/testkit"
)

func TestBounds(t *testing.T) {
	for name, test := range map[string]func(*world){
		"a report without end ends the tunnel, and the member waits before it opens another": testTooFast,
		"a workspace has so many tunnels, and another workspace has its own":                 testWorkspaceFull,
		"refusals that come one after another are told once in a minute":                     testRefusalsArePaced,
		"who proves nothing hides nothing, and costs next to nothing":                        testUnprovenRefusals,
	} {
		t.Run(name, func(t *testing.T) { inBubble(t, test) })
	}
}

// flood writes reports until its tunnel ends.
func flood(line string) http.HandlerFunc {
	return func(rw http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := io.WriteString(rw, line); err != nil {
				return
			}
		}
	}
}

func testTooFast(w *world) {
	var refused []string
	w.OnRefused(func(_ types.NamespacedName, reason, message string) {
		refused = append(refused, reason+": "+message)
		w.Refused(name("member"), reason, message)
	})
	calm := w.serve("member", "key", reporting(said("calm"), "{}\n"))
	a := w.serve("member", "key", flood("{\"version\":\"v1\"}\n"))
	synctest.Wait()
	state := w.State(name("member"))
	if alive(a) || alive(calm) || state.Connected() || !errors.Is(state.LostBecause, members.ErrTooFast) {
		w.t.Fatalf("state %+v, want both tunnels ended as too fast", state)
	}
	if state.Refusal == nil || state.Refusal.Reason != v1.ReasonAgentTooFast || len(refused) == 0 || !strings.Contains(refused[0], "reports") {
		w.t.Errorf("refusal %+v, told %q, want AgentTooFast to be told for its reports", state.Refusal, refused)
	}
	if after, err := w.Admit(name("member")); !errors.Is(err, members.ErrTooFast) || after <= 0 || after > time.Minute {
		w.t.Errorf("it may come back after %s: %v", after, err)
	}
	if _, err := w.Admit(name("another")); err != nil {
		w.t.Errorf("another member: %v", err)
	}
	if early := w.serve("member", "key", reporting(said("early"), "{}\n")); alive(early) {
		w.t.Error("it is let in at once")
	}
	w.pass(time.Minute)
	if late := w.serve("member", "key", reporting(said("late"), "{}\n")); !alive(late) || !w.State(name("member")).Connected() {
		w.t.Error("it never comes back")
	}
}

func testWorkspaceFull(w *world) {
	w.Bound(members.Bounds{ClusterTunnels: 2, WorkspaceTunnels: 3})
	first := w.serve("one", "key", reporting(said("")))
	w.serve("one", "key", reporting(said("")))
	w.serve("one", "key", reporting(said(""))) // beyond the bound of the Cluster: the oldest ends
	synctest.Wait()
	if alive(first) {
		w.t.Error("a Cluster has three tunnels")
	}
	w.serve("two", "key", reporting(said("")))
	if full := w.serve("three", "key", reporting(said(""))); alive(full) || w.State(name("three")).Connected() {
		w.t.Error("the workspace has four tunnels")
	}
	after, err := w.Admit(name("three"))
	if state := w.State(name("three")); !errors.Is(err, members.ErrWorkspaceFull) || after <= 0 || state.Refusal == nil ||
		state.Refusal.Reason != v1.ReasonTooManyTunnels || !strings.Contains(state.Refusal.Message, "limits.workspace.tunnels") {
		w.t.Errorf("got %v, %+v, want TooManyTunnels with the name of the limit", err, state.Refusal)
	}
	if _, err := w.Admit(types.NamespacedName{Namespace: "team-b", Name: "one"}); err != nil {
		w.t.Errorf("another workspace: %v", err)
	}
	w.Disconnect(name("two"), func(members.Peer) bool { return false })
	synctest.Wait()
	if again := w.serve("three", "key", reporting(said(""))); !alive(again) {
		w.t.Error("a place that became free is lost")
	}
}

func testRefusalsArePaced(w *world) {
	told := 0
	for i := range 120 { // each second another text, as whoever has a used token can have it
		if w.Refused(name("member"), v1.ReasonTokenUsed, fmt.Sprint("attempt ", i)) {
			told++
		}
		w.pass(time.Second)
	}
	if told != 2 || w.changed() != 2 {
		w.t.Errorf("told %d times, %d changes: each is a write of the status", told, w.changed())
	}
}

// Whoever reaches the port can name any Cluster. That must neither hide what was proved, nor be told of a member that
// is there.
func testUnprovenRefusals(w *world) {
	const unknown, thief = "an unknown key", "a used token"
	says := func(want string) {
		w.t.Helper()
		if r := w.State(name("member")).Refusal; r == nil && want != "" || r != nil && r.Message != want {
			w.t.Errorf("it says %+v, want %q", r, want)
		}
	}
	if !w.Unproven(name("member"), v1.ReasonAwaitingAgent, unknown) {
		w.t.Error("it is not told")
	}
	says(unknown)
	if !w.Refused(name("member"), v1.ReasonIdentityMismatch, thief) {
		w.t.Error("a thief of a token hides behind a client that named the Cluster a moment before")
	}
	for range 5 {
		w.pass(time.Minute)
		if w.Unproven(name("member"), v1.ReasonAwaitingAgent, unknown) {
			w.t.Error("it takes the place of what was proved")
		}
		says(thief)
	}
	w.pass(members.RefusalMemory)
	says("")
	before := w.changed()
	for range 30 {
		w.Unproven(name("member"), v1.ReasonAwaitingAgent, unknown)
		w.pass(time.Minute)
	}
	says(unknown)
	if more := w.changed() - before; more != 1 {
		w.t.Errorf("%d changes: each is a write of the status", more)
	}
	w.pass(members.RefusalMemory)
	w.serve("member", "key", reporting(said("")))
	if w.Unproven(name("member"), v1.ReasonAwaitingAgent, unknown) {
		w.t.Error("it is told of a member that is there")
	}
	says("")
}

// Twelve tunnels that stream reports without end cost 13.5 MiB for each Cluster: what the hub did not read yet was held
// in the tunnels' windows. Here are four, with short lines: a machine that reads fewer reports than the hub lets
// through never finds that they are too many.
func TestReportsWithoutEndHoldNoMemory(t *testing.T) {
	registry := members.New(logr.Discard(), time.Now)
	defer registry.Close()
	before := heap()
	line := "{\"version\":\"" + strings.Repeat("v", 512) + "\"}\n"
	var agents []agent
	for i := range 4 {
		member := fmt.Sprint("member-", i) // one each: the first that runs ahead would end the others of its Cluster
		a := newAgent(t, flood(line))
		registry.Add(peer(member, "key"), a.session)
		agents = append(agents, a)
	}
	for i, a := range agents {
		select {
		case <-a.session.Done():
			testkit.Eventually(t, 5*time.Second, func(context.Context) error { // the registry learns of the end a moment later
				if state := registry.State(name(fmt.Sprint("member-", i))); !errors.Is(state.LostBecause, members.ErrTooFast) {
					return fmt.Errorf("tunnel %d ended because of %w, want %w", i, state.LostBecause, members.ErrTooFast)
				}
				return nil
			})
		case <-time.After(time.Minute):
			t.Errorf("tunnel %d goes on", i)
		}
	}
	if grown := heap() - before; grown > 4<<20/3 {
		t.Errorf("%d KiB are held, want less than a third of what the four windows hold", grown>>10)
	}
}

// heap is what is in use after a collection, in bytes.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}
