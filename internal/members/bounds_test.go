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
		"endless reports end the tunnel, and the member must wait before it opens another": testTooFast,
		"each workspace has its own limit of tunnels":                                      testWorkspaceFull,
		"repeated rejections are reported once a minute":                                   testRefusalsArePaced,
		"a rejection without proof hides no other and is rarely reported":                  testUnprovenRefusals,
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
	calm := w.serve("member", "key", reporting(respond("calm"), "{}\n"))
	a := w.serve("member", "key", flood("{\"version\":\"v1\"}\n"))
	synctest.Wait()
	state := w.State(name("member"))
	if alive(a) || alive(calm) || state.Connected() || !errors.Is(state.LostBecause, members.ErrTooFast) {
		w.t.Fatalf("state %+v, want both tunnels ended as too fast", state)
	}
	if state.Refusal == nil || state.Refusal.Reason != v1.ReasonAgentTooFast || len(refused) == 0 ||
		!strings.Contains(refused[0], "reports") {
		w.t.Errorf("refusal %+v, listeners got %q, want AgentTooFast for reports in both", state.Refusal, refused)
	}
	if after, err := w.Admit(name("member")); !errors.Is(err, members.ErrTooFast) || after <= 0 || after > time.Minute {
		w.t.Errorf("after it was too fast: wait %s, %v, want %v and at most a minute", after, err, members.ErrTooFast)
	}
	if _, err := w.Admit(name("another")); err != nil {
		w.t.Errorf("another member: got %v, want it admitted", err)
	}
	if early := w.serve("member", "key", reporting(respond("early"), "{}\n")); alive(early) {
		w.t.Error("the member was admitted at once, want it refused for a minute")
	}
	w.pass(time.Minute)
	if late := w.serve("member", "key", reporting(respond("late"), "{}\n")); !alive(late) ||
		!w.State(name("member")).Connected() {
		w.t.Error("the member was refused after a minute, want it admitted")
	}
}

func testWorkspaceFull(w *world) {
	w.Bound(members.Bounds{ClusterTunnels: 2, WorkspaceTunnels: 3})
	first := w.serve("one", "key", reporting(respond("")))
	w.serve("one", "key", reporting(respond("")))
	w.serve("one", "key", reporting(respond(""))) // beyond the limit of the Cluster, so the oldest tunnel ends
	synctest.Wait()
	if alive(first) {
		w.t.Error("the Cluster has three tunnels, want two")
	}
	w.serve("two", "key", reporting(respond("")))
	if full := w.serve("three", "key", reporting(respond(""))); alive(full) || w.State(name("three")).Connected() {
		w.t.Error("the workspace has four tunnels, want three")
	}
	after, err := w.Admit(name("three"))
	if state := w.State(name("three")); !errors.Is(err, members.ErrWorkspaceFull) || after <= 0 || state.Refusal == nil ||
		state.Refusal.Reason != v1.ReasonTooManyTunnels || !strings.Contains(state.Refusal.Message,
		"limits.workspace.tunnels") {
		w.t.Errorf("got %v, %+v, want TooManyTunnels with the name of the limit", err, state.Refusal)
	}
	if _, err := w.Admit(types.NamespacedName{Namespace: "team-b", Name: "one"}); err != nil {
		w.t.Errorf("another workspace: got %v, want it admitted", err)
	}
	w.Disconnect(name("two"), func(members.Peer) bool { return false })
	synctest.Wait()
	if again := w.serve("three", "key", reporting(respond(""))); !alive(again) {
		w.t.Error("after a tunnel ended another one was refused, want it admitted")
	}
}

func testRefusalsArePaced(w *world) {
	notified := 0
	for i := range 120 { // a new text each second, which a client with a used token can cause
		if w.Refused(name("member"), v1.ReasonTokenUsed, fmt.Sprint("attempt ", i)) {
			notified++
		}
		w.pass(time.Second)
	}
	if notified != 2 || w.changed() != 2 {
		w.t.Errorf("got %d notifications and %d changes, want 2 of each, because each is a write of the status",
			notified, w.changed())
	}
}

// Any client that reaches the port can name any Cluster. This must neither hide a rejection of a client that had proof,
// nor be reported for a member that is connected.
func testUnprovenRefusals(w *world) {
	const unknown, thief = "an unknown key", "a used token"
	says := func(want string) {
		w.t.Helper()
		if r := w.State(name("member")).Refusal; r == nil && want != "" || r != nil && r.Message != want {
			w.t.Errorf("the refusal is %+v, want %q", r, want)
		}
	}
	if !w.Unproven(name("member"), v1.ReasonAwaitingAgent, unknown) {
		w.t.Error("the first rejection was not reported, want it reported")
	}
	says(unknown)
	if !w.Refused(name("member"), v1.ReasonIdentityMismatch, thief) {
		w.t.Error("the thief of a token was not reported because another client had named the Cluster, want it reported")
	}
	for range 5 {
		w.pass(time.Minute)
		if w.Unproven(name("member"), v1.ReasonAwaitingAgent, unknown) {
			w.t.Error("a rejection without proof was reported, want the one with proof kept")
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
		w.t.Errorf("got %d changes, want 1, because each is a write of the status", more)
	}
	w.pass(members.RefusalMemory)
	w.serve("member", "key", reporting(respond("")))
	if w.Unproven(name("member"), v1.ReasonAwaitingAgent, unknown) {
		w.t.Error("a rejection was reported for a connected member, want none")
	}
	says("")
}

// Twelve tunnels with endless reports once cost 13.5 MiB for each Cluster, because data that the hub had not read was
// held in the tunnels' windows. This test uses four tunnels and short lines. A slow machine that reads fewer reports
// than the hub accepts would never reach the limit with long lines.
func TestEndlessReportsHoldNoMemory(t *testing.T) {
	registry := members.New(logr.Discard(), time.Now)
	defer registry.Close()
	before := heap()
	line := "{\"version\":\"" + strings.Repeat("v", 512) + "\"}\n"
	var agents []agent
	for i := range 4 {
		// one member for each tunnel, because the first agent that is too fast would end the other tunnels of its Cluster
		member := fmt.Sprint("member-", i)
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
			t.Errorf("tunnel %d is still open, want it ended", i)
		}
	}
	if grown := heap() - before; grown > 4<<20/3 {
		t.Errorf("%d KiB are held, want less than a third of what the four windows hold", grown>>10)
	}
}

// heap returns the bytes of the heap that are in use after a collection.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}
