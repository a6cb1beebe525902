// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members_test

import (
	"bufio"
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
		w.t.Fatalf("state %+v", state)
	}
	if state.Refusal == nil || state.Refusal.Reason != v1.ReasonAgentTooFast || len(refused) == 0 || !strings.Contains(refused[0], "reports") {
		w.t.Errorf("refusal %+v, told %q", state.Refusal, refused)
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
		w.t.Errorf("%v, %+v", err, state.Refusal)
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

// Whoever reaches the port can name any Cluster. That must neither hide what was proved, nor be told of a member that is there.
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

// Twelve tunnels that stream reports without end cost 13.5 MiB for each Cluster: what the hub did not read yet was held in the tunnels' windows.
func TestReportsWithoutEndHoldNoMemory(t *testing.T) {
	registry := members.New(logr.Discard(), time.Now)
	defer registry.Close()
	before := heap()
	line := "{\"version\":\"" + strings.Repeat("v", 4<<10) + "\"}\n"
	var agents []agent
	for i := range 12 {
		member := fmt.Sprint("member-", i) // one each: the first that runs ahead would end the others of its Cluster
		a := newAgent(t, flood(line))
		registry.Add(peer(member, "key"), a.session)
		agents = append(agents, a)
	}
	for i, a := range agents {
		select {
		case <-a.session.Done():
		case <-time.After(time.Minute):
			t.Errorf("tunnel %d goes on", i)
		}
	}
	if grown := heap() - before; grown > 4<<20 {
		t.Errorf("%d KiB are held", grown>>10)
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

func TestLines(t *testing.T) {
	long := strings.Repeat("x", 100)
	for name, tc := range map[string]struct {
		in   string
		want []string
		err  error
	}{
		"short lines":               {"a\nb\n", []string{"a", "b"}, nil},
		"an empty line is a line":   {"a\n\nb\n", []string{"a", "", "b"}, nil},
		"a last one without an end": {"a\nb", []string{"a", "b"}, nil},
		"carriage returns go":       {"a\r\n", []string{"a"}, nil},
		"nothing":                   {"", nil, nil},
		"one beyond the buffer":     {long + "\na\n" + long + "\n", []string{long, "a", long}, nil},
		"one beyond the limit":      {"a\n" + long + long + "\n", []string{"a"}, bufio.ErrTooLong},
		"one that does not end":     {"a\n" + long + long, []string{"a"}, bufio.ErrTooLong},
	} {
		t.Run(name, func(t *testing.T) {
			lines := members.NewLines(strings.NewReader(tc.in), 16, 150)
			var got []string
			for lines.Scan() {
				got = append(got, string(lines.Bytes()))
			}
			if strings.Join(got, "|") != strings.Join(tc.want, "|") || len(got) != len(tc.want) || !errors.Is(lines.Err(), tc.err) {
				t.Errorf("%q, %v", got, lines.Err())
			}
		})
	}
	t.Run("a line that breaks off is said, with what is there", func(t *testing.T) {
		broken := errors.New("broken")
		lines := members.NewLines(io.MultiReader(strings.NewReader("a\nb"), failing{broken}), 16, 150)
		for lines.Scan() {
			_ = lines.Bytes()
		}
		if !errors.Is(lines.Err(), broken) {
			t.Error(lines.Err())
		}
	})
}

type failing struct{ error }

func (f failing) Read([]byte) (int, error) { return 0, f.error }

func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace := members.NewPace(10, 5, 10*time.Second)
		for i := range 3 {
			for range 50 { // five seconds of too much, then a rest
				if err := pace.Wait(t.Context()); err != nil {
					t.Fatalf("round %d: %v", i, err)
				}
			}
			time.Sleep(time.Second)
		}
		begun := time.Now()
		var err error
		for err == nil {
			err = pace.Wait(t.Context())
		}
		if took := time.Since(begun); !errors.Is(err, members.ErrTooFast) || took < 10*time.Second || took > 12*time.Second {
			t.Errorf("after %s: %v", took, err)
		}
	})
}
