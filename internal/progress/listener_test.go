// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package progress_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/progress"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

func name(n string) types.NamespacedName { return types.NamespacedName{Namespace: "team-a", Name: n} }

// ear is a listener with a fleet that agents in memory connect to.
type ear struct {
	*progress.Listener
	t     *testing.T
	fleet *members.Registry
}

func listen(t *testing.T) *ear {
	t.Helper()
	e := &ear{t: t, fleet: members.New(logr.Discard(), time.Now)}
	t.Cleanup(e.fleet.Close)
	e.Listener = progress.New(progress.Options{Members: e.fleet, Pause: time.Millisecond, Log: logr.Discard()})
	e.fleet.OnChange(e.Changed)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = e.Start(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return e
}

func (e *ear) connect(n string, sets *testkit.Sets, change ...func(*protocol.Report)) *testkit.Agent {
	e.t.Helper()
	report := testkit.HealthyReport()
	for _, f := range change {
		f(&report)
	}
	agent := testkit.ConnectAgentWith(e.t, report, sets)
	e.fleet.Add(members.Peer{Cluster: protocol.ClusterRef{Namespace: "team-a", Name: n, UID: "u"}, Key: "k"}, agent.Session)
	return agent
}

func (e *ear) until(member string, check func(progress.State) bool) {
	e.t.Helper()
	testkit.Eventually(e.t, 10*time.Second, func(context.Context) error {
		if s := e.State("k3s", name(member)); !check(s) {
			return fmt.Errorf("the state is %+v", s)
		}
		return nil
	})
}

func TestListener(t *testing.T) {
	told := func(revision string) func(progress.State) bool {
		return func(s progress.State) bool { return s.Reported && s.Status != nil && s.Status.Revision == revision }
	}
	for title, test := range map[string]func(*testing.T, *ear){
		"only members that are followed are listened to": func(t *testing.T, e *ear) {
			a, b := e.connect("a", testkit.NewSets()), e.connect("b", testkit.NewSets())
			e.Follow(name("k3s"), []types.NamespacedName{name("a")})
			e.until("a", func(s progress.State) bool { return s.Reported && s.Followed && s.Hold == "" && s.Silent.IsZero() })
			a.Sets.Plans.SetStatus("k3s", v1.PlanStatus{Revision: "1"})
			e.until("a", told("1"))
			e.until("b", func(s progress.State) bool { return s.Connected && !s.Followed && !s.Reported })
			if b.Sets.Plans.Streams() != 0 || e.Streams() != 1 {
				t.Errorf("b was asked %d times, %d streams", b.Sets.Plans.Streams(), e.Streams())
			}
			e.Follow(name("k3s"), nil)
			if e.Streams() != 0 {
				t.Error("a stream stays open")
			}
		},
		"what was said stays while the member is away, and what it says later replaces all": func(t *testing.T, e *ear) {
			e.Follow(name("k3s"), []types.NamespacedName{name("a")})
			a := e.connect("a", testkit.NewSets())
			a.Sets.Plans.SetStatus("k3s", v1.PlanStatus{Revision: "1"})
			a.Sets.Plans.Hold("not now")
			e.until("a", func(s progress.State) bool { return told("1")(s) && s.Hold == "not now" })
			a.Kill()
			e.until("a", func(s progress.State) bool { return !s.Connected && !s.Reported && s.Status != nil })
			a.Sets.Plans.Remove("k3s")
			e.connect("a", a.Sets)
			e.until("a", func(s progress.State) bool { return s.Reported && s.Status == nil && s.Hold == "not now" })
		},
		"an agent that knows no plans, or may run none, refuses and is not asked on": func(t *testing.T, e *ear) {
			e.Follow(name("k3s"), []types.NamespacedName{name("old"), name("lying"), name("readonly")})
			old := e.connect("old", testkit.NewSets(), func(r *protocol.Report) { r.Features = nil })
			lying := testkit.NewSets()
			lying.Plans.Answer(http.StatusNotFound)
			e.connect("lying", lying)
			e.connect("readonly", testkit.NewSets(), func(r *protocol.Report) { r.Profile = string(v1.ProfileReadOnly) })
			e.until("old", func(s progress.State) bool { return s.Refuses == v1.ReasonAgentTooOld })
			e.until("lying", func(s progress.State) bool { return s.Refuses == v1.ReasonAgentTooOld })
			e.until("readonly", func(s progress.State) bool { return s.Refuses == v1.ReasonAgentReadOnly })
			if old.Sets.Plans.Streams() != 0 {
				t.Error("asked nevertheless")
			}
		},
		"an agent that does not lead is silent until it does": func(t *testing.T, e *ear) {
			sets := testkit.NewSets()
			sets.Plans.Answer(http.StatusMisdirectedRequest)
			e.Follow(name("k3s"), []types.NamespacedName{name("a")})
			e.connect("a", sets)
			e.until("a", func(s progress.State) bool { return s.Connected && !s.Reported && !s.Silent.IsZero() })
			sets.Plans.Answer(0)
			e.until("a", func(s progress.State) bool { return s.Reported && s.Silent.IsZero() })
		},
		"CVE-2024-58259: what an agent offers without end is not kept, and it counts as silent": func(t *testing.T, e *ear) {
			sets := testkit.NewSets()
			var offered atomic.Int64
			ended := make(chan struct{}, 1)
			sets.Plans.Serve(func(w http.ResponseWriter, r *http.Request) {
				line := []byte(`{"state":{"name":"k3s","status":{"revision":"` + strings.Repeat("x", 32<<10) + `"}}}` + "\n")
				for r.Context().Err() == nil {
					n, err := w.Write(line)
					if offered.Add(int64(n)); err != nil {
						break
					}
				}
				select {
				case ended <- struct{}{}:
				default:
				}
			})
			e.Follow(name("k3s"), []types.NamespacedName{name("a")})
			e.connect("a", sets)
			<-ended
			if s := e.State("k3s", name("a")); s.Reported || s.Silent.IsZero() || s.Status != nil || offered.Load() > 64<<20 {
				t.Errorf("after %d bytes the state is %+v", offered.Load(), s)
			}
		},
		"CVE-2024-58259: a line without end, and one that is no event, end the stream": func(t *testing.T, e *ear) {
			for _, line := range []string{strings.Repeat("x", 1<<20), "[" + strings.Repeat("[", 60<<10) + "\n", "\n", "{}{}\n"} {
				sets := testkit.NewSets()
				ended := make(chan struct{}, 64)
				sets.Plans.Serve(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.WriteString(w, line)
					_ = http.NewResponseController(w).Flush()
					<-r.Context().Done()
					select {
					case ended <- struct{}{}:
					default:
					}
				})
				e.Follow(name("k3s"), []types.NamespacedName{name("a")})
				a := e.connect("a", sets)
				<-ended
				if s := e.State("k3s", name("a")); s.Reported {
					t.Errorf("%.20s: %+v", line, s)
				}
				a.Kill()
				e.until("a", func(s progress.State) bool { return !s.Connected })
			}
		},
		"the number of plans that are kept without a follower is bounded": func(t *testing.T, e *ear) {
			a := e.connect("a", testkit.NewSets())
			e.Follow(name("os"), []types.NamespacedName{name("a")})
			for i := range 100 {
				a.Sets.Plans.SetStatus(fmt.Sprintf("p%d", i), v1.PlanStatus{Revision: "1"})
			}
			a.Sets.Plans.SetStatus("os", v1.PlanStatus{Revision: "1"})
			testkit.Eventually(t, 10*time.Second, func(context.Context) error {
				if s := e.State("os", name("a")); s.Status == nil {
					return fmt.Errorf("the state is %+v", s)
				}
				return nil
			})
			kept := 0
			for i := range 100 {
				if e.State(fmt.Sprintf("p%d", i), name("a")).Status != nil {
					kept++
				}
			}
			if kept > 65 {
				t.Errorf("%d are kept", kept)
			}
		},
	} {
		t.Run(title, func(t *testing.T) { test(t, listen(t)) })
	}
}
