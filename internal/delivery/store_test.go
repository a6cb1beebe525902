// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery_test

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/expansion"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

// fixture is a store with a registry that agents in memory connect to.
type fixture struct {
	*delivery.Store
	t        *testing.T
	registry *members.Registry

	stop          func()
	leaving       atomic.Pointer[types.NamespacedName] // the member whose Cluster is going
	leavingCalled atomic.Bool                          // the store has called Leaving for it

	readOnly atomic.Pointer[types.NamespacedName] // the member whose spec says ReadOnly

	mu       sync.Mutex // guards notified
	notified []delivery.Key
}

func open(t *testing.T) *fixture {
	t.Helper()
	o := &fixture{t: t, registry: members.New(logr.Discard(), time.Now)}
	t.Cleanup(o.registry.Close)
	return o.replace()
}

// replace starts a new store, as a manager does that begins to lead.
func (o *fixture) replace() *fixture {
	next := &fixture{t: o.t, registry: o.registry}
	next.readOnly.Store(o.readOnly.Load())
	store := delivery.New(delivery.Options{Members: o.registry, Pause: time.Millisecond, Log: logr.Discard(),
		ReadOnly: func(_ context.Context, name types.NamespacedName) (bool, error) {
			readOnly := next.readOnly.Load()
			return readOnly != nil && *readOnly == name, nil
		},
		Leaving: func(_ context.Context, name types.NamespacedName) bool {
			leaving := next.leaving.Load()
			if leaving == nil || *leaving != name {
				return false
			}
			next.leavingCalled.Store(true)
			return true
		}})
	next.Store = store
	store.OnResult("test", func(k delivery.Key) {
		next.mu.Lock()
		defer next.mu.Unlock()
		next.notified = append(next.notified, k)
	})
	o.registry.OnChange(store.Changed)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = store.Start(ctx)
	}()
	next.stop = func() { cancel(); <-done }
	o.t.Cleanup(next.stop)
	return next
}

// notifications returns how often an owner was notified since the last call.
func (o *fixture) notifications(name string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := len(o.notified)
	o.notified = slices.DeleteFunc(o.notified, func(k delivery.Key) bool { return k == key(name) })
	return before - len(o.notified)
}

func member(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "team-a", Name: name}
}

func (o *fixture) connect(name string, sets *testkit.Sets, change ...func(*protocol.Report)) *testkit.Agent {
	o.t.Helper()
	report := testkit.HealthyReport()
	for _, f := range change {
		f(&report)
	}
	agent := testkit.ConnectAgentWith(o.t, report, sets)
	o.registry.Add(members.Peer{Cluster: protocol.ClusterRef{Namespace: "team-a", Name: name, UID: "u"}, Key: "k"}, agent.Session)
	return agent
}

func (o *fixture) until(what string, check func() bool) {
	o.t.Helper()
	testkit.Eventually(o.t, 30*time.Second, func(context.Context) error {
		if !check() {
			return fmt.Errorf("not yet: %s", what)
		}
		return nil
	})
}

func (o *fixture) stage(id string, want delivery.Stage, members ...types.NamespacedName) {
	o.t.Helper()
	o.until(fmt.Sprintf("%s is %d", id, want), func() bool {
		return !slices.ContainsFunc(o.Outcomes(id, members), func(out delivery.Outcome) bool { return out.Stage != want })
	})
}

func set(t *testing.T, id, text string) *delivery.Set {
	t.Helper()
	s, err := delivery.NewSet(id, nil, content(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func content(text string) expansion.Content {
	return expansion.Content{Objects: []*unstructured.Unstructured{{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "x", "namespace": "default"}, "data": map[string]any{"text": text}}}}}
}

func key(name string) delivery.Key {
	return delivery.Key{Kind: "test", Namespace: "team-a", Name: name}
}

func to(s *delivery.Set, members ...types.NamespacedName) map[types.NamespacedName]*delivery.Set {
	all := map[types.NamespacedName]*delivery.Set{}
	for _, m := range members {
		all[m] = s
	}
	return all
}

func TestStore(t *testing.T) {
	a, b := member("a"), member("b")
	for name, test := range map[string]func(*testing.T, *fixture){
		"what is wanted is sent, what is changed is sent again, what is no longer wanted is removed": func(t *testing.T, o *fixture) {
			sets := testkit.NewSets()
			o.connect("a", sets)
			o.Replace(key("x"), to(set(t, "crtb/x", "1"), a))
			o.stage("crtb/x", delivery.Applied, a)
			o.Replace(key("x"), to(set(t, "crtb/x", "1"), a))
			o.Replace(key("x"), to(set(t, "crtb/x", "2"), a))
			o.stage("crtb/x", delivery.Applied, a)
			o.Replace(key("x"), nil)
			o.until("removal", func() bool { return len(sets.Held()) == 0 })
			want := []string{"PUT crtb/x", "PUT crtb/x", "DELETE crtb/x"}
			if got := sets.Calls(); !reflect.DeepEqual(got, want) {
				t.Errorf("calls %v, want %v", got, want)
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			if !slices.Contains(o.notified, key("x")) {
				t.Error("the owner was not notified")
			}
		},
		"a member that is away gets it when it connects, and loses what was withdrawn meanwhile": func(t *testing.T, o *fixture) {
			sets := testkit.NewSets()
			o.Replace(key("x"), to(set(t, "crtb/x", "1"), a, b))
			o.until("no member has it", func() bool { // away, or about to come back as far as a store knows that has just started
				return !slices.ContainsFunc(o.Outcomes("crtb/x", []types.NamespacedName{a, b}), func(out delivery.Outcome) bool {
					return out.Stage != delivery.Away && out.Stage != delivery.Unreported
				})
			})
			agent := o.connect("a", sets)
			o.stage("crtb/x", delivery.Applied, a)
			agent.Kill()
			o.until("lost", func() bool { return !o.registry.State(a).Connected() })
			o.stage("crtb/x", delivery.Applied, a) // it has it still
			o.Replace(key("x"), nil)
			o.Replace(key("y"), to(set(t, "crtb/y", "1"), a))
			o.Expect(nil)
			o.connect("a", sets)
			o.stage("crtb/y", delivery.Applied, a)
			o.until("removal", func() bool { return slices.Equal(sets.Held(), []string{"crtb/y"}) })
		},
		"what is there is not sent again by a new manager, and nothing is removed before all is known": func(t *testing.T, o *fixture) {
			sets := testkit.NewSets()
			o.connect("a", sets)
			for _, name := range []string{"x", "y", "z"} {
				o.Replace(key(name), to(set(t, "crtb/"+name, "1"), a))
				o.stage("crtb/"+name, delivery.Applied, a)
			}
			o.stop()
			next := o.replace()
			next.Expect([]delivery.Key{key("x"), key("y")})
			next.Replace(key("x"), to(set(t, "crtb/x", "1"), a))
			next.stage("crtb/x", delivery.Applied, a)
			if next.Complete() || len(sets.Held()) != 3 || len(sets.Calls()) != 3 {
				t.Error(next.Complete(), sets.Held(), sets.Calls())
			}
			next.Replace(key("y"), to(set(t, "crtb/y", "1"), a))
			next.until("z is removed, which has no owner", func() bool { return slices.Equal(sets.Held(), []string{"crtb/x", "crtb/y"}) })
			if got := len(sets.Calls()); got != 4 {
				t.Error(sets.Calls())
			}
		},
		"an owner that wants a set absent is notified of members that come back with it, or without it": func(t *testing.T, o *fixture) {
			sets := testkit.NewSets()
			agent := o.connect("a", sets)
			o.connect("b", testkit.NewSets())
			o.Replace(key("x"), to(set(t, "crtb/x", "1"), a))
			o.stage("crtb/x", delivery.Applied, a)
			agent.Kill()
			o.until("lost", func() bool { return !o.registry.State(a).Connected() })
			remains := func(held, away, unreported int) func() bool {
				return func() bool {
					h, w, u := o.Remains("crtb/x", []types.NamespacedName{a, b})
					return h == held && w == away && u == unreported
				}
			}
			o.Replace(key("x"), to(delivery.Absent("crtb/x"), a, b))
			o.until("one is away with it, the other never had it", remains(0, 1, 0))
			o.until("notifications of what was before", func() bool { return o.notifications("x") > 0 })
			again := o.connect("a", sets)
			o.until("removal", remains(0, 0, 0))
			o.until("the owner is notified", func() bool { return o.notifications("x") > 0 })
			if len(sets.Held()) > 0 {
				t.Error(sets.Held())
			}
			again.Kill()
			o.until("lost again", func() bool { return !o.registry.State(a).Connected() })
			if !remains(0, 0, 0)() {
				t.Error("a member that had lost it counts again when it goes")
			}
		},
		"a withdrawal does not wait for the others": func(t *testing.T, o *fixture) {
			sets := testkit.NewSets()
			o.Expect([]delivery.Key{key("never")})
			o.connect("a", sets)
			o.Replace(key("x"), to(set(t, "crtb/x", "1"), a))
			o.stage("crtb/x", delivery.Applied, a)
			o.Replace(key("x"), nil)
			o.until("removal", func() bool { return len(sets.Held()) == 0 })
		},
		"what fails is retried and reported": func(t *testing.T, o *fixture) {
			sets := testkit.NewSets()
			sets.Answer(http.StatusInternalServerError)
			o.connect("a", sets)
			o.Replace(key("x"), to(set(t, "crtb/x", "1"), a))
			o.stage("crtb/x", delivery.Failed, a)
			sets.Answer(0)
			o.stage("crtb/x", delivery.Applied, a)
		},
		"what is refused permanently is reported at once, and not sent again until it changes": func(t *testing.T, o *fixture) {
			sets := testkit.NewSets()
			sets.Answer(http.StatusUnprocessableEntity)
			o.connect("a", sets)
			o.Replace(key("x"), to(set(t, "crtb/x", "1"), a))
			o.stage("crtb/x", delivery.Failed, a)
			sets.Answer(0)
			o.Replace(key("x"), to(set(t, "crtb/x", "2"), a))
			o.stage("crtb/x", delivery.Applied, a)
			if got := len(sets.Calls()); got != 2 {
				t.Error(sets.Calls())
			}
		},
		"an agent that does not respond does not delay others": func(t *testing.T, o *fixture) {
			o.connect("a", testkit.NewSets()).StopAnswering()
			o.connect("b", testkit.NewSets())
			o.Replace(key("x"), to(set(t, "crtb/x", "1"), a, b))
			o.stage("crtb/x", delivery.Applied, b)
		},
		"agents that do not respond do not delay others, however much is sent to them": func(t *testing.T, o *fixture) {
			for _, name := range []string{"c", "d", "e"} {
				o.connect(name, testkit.NewSets()).StopAnswering()
				for i := range 256 {
					o.Replace(key(fmt.Sprint(name, i)), to(set(t, fmt.Sprintf("crtb/x%d", i), "1"), member(name)))
				}
			}
			o.connect("b", testkit.NewSets())
			o.Replace(key("x"), to(set(t, "crtb/x", "1"), b))
			o.stage("crtb/x", delivery.Applied, b)
		},
		"an agent that knows no sets, or takes none, is reported": func(t *testing.T, o *fixture) {
			o.connect("a", testkit.NewSets(), func(r *protocol.Report) { r.Features = nil })
			o.connect("b", testkit.NewSets(), func(r *protocol.Report) { r.Profile = "ReadOnly" })
			o.Replace(key("x"), to(set(t, "crtb/x", "1"), a, b))
			o.stage("crtb/x", delivery.Refused, a, b)
			outcomes := o.Outcomes("crtb/x", []types.NamespacedName{a, b})
			if outcomes[0].Reason != v1.ReasonAgentTooOld || outcomes[1].Reason != v1.ReasonAgentReadOnly {
				t.Error(outcomes)
			}
		},
		"CVE-2021-36782: a spec that says ReadOnly has all taken back, whatever the agent reports, and nothing sent": func(t *testing.T, o *fixture) {
			sets := testkit.NewSets()
			o.Expect([]delivery.Key{key("never")}) // the store is not complete
			o.connect("a", sets)
			o.Replace(key("x"), to(set(t, "crtb/x", "1"), a))
			o.stage("crtb/x", delivery.Applied, a)
			sets.Answer(http.StatusInternalServerError)
			o.readOnly.Store(&a)
			o.Changed(a)
			o.stage("crtb/x", delivery.Refused, a)
			o.until("what cannot be taken back shows", func() bool {
				return strings.Contains(o.Outcomes("crtb/x", []types.NamespacedName{a})[0].Failures[0].Message, "could not be taken back")
			})
			sets.Answer(0)
			o.until("it is taken back", func() bool { return len(sets.Held()) == 0 })
			puts := func() int {
				return len(slices.DeleteFunc(sets.Calls(), func(call string) bool { return !strings.HasPrefix(call, "PUT") }))
			}
			before := puts()
			o.Replace(key("x"), to(set(t, "crtb/x", "2"), a))
			o.Replace(key("y"), to(set(t, "crtb/y", "1"), a, b))
			o.connect("b", testkit.NewSets())
			o.stage("crtb/y", delivery.Applied, b)
			o.stage("crtb/x", delivery.Refused, a)
			if got := o.Outcomes("crtb/y", []types.NamespacedName{a})[0]; got.Stage != delivery.Refused || got.Reason != v1.ReasonAgentReadOnly || puts() != before {
				t.Errorf("%+v, calls %v", got, sets.Calls())
			}
			o.readOnly.Store(nil)
			o.Changed(a)
			o.stage("crtb/x", delivery.Applied, a)
			o.stage("crtb/y", delivery.Applied, a)
		},
		"a new manager sends nothing where the spec says ReadOnly, and takes back what is there": func(t *testing.T, o *fixture) {
			sets := testkit.NewSets()
			o.connect("a", sets)
			o.Replace(key("x"), to(set(t, "crtb/x", "1"), a))
			o.stage("crtb/x", delivery.Applied, a)
			o.stop()
			o.readOnly.Store(&a)
			next := o.replace()
			next.Expect([]delivery.Key{key("never")})
			next.Replace(key("x"), to(set(t, "crtb/x", "2"), a))
			next.until("it is taken back", func() bool { return len(sets.Held()) == 0 })
			next.stage("crtb/x", delivery.Refused, a)
			if got := len(sets.Calls()); got != 2 {
				t.Error(sets.Calls())
			}
		},
		"an agent that comes to take none keeps nothing, until it takes them again": func(t *testing.T, o *fixture) {
			agent := o.connect("a", testkit.NewSets())
			o.Replace(key("x"), to(set(t, "crtb/x", "1"), a))
			o.stage("crtb/x", delivery.Applied, a)
			agent.Report(func(r *protocol.Report) { r.Profile = "ReadOnly" })
			o.stage("crtb/x", delivery.Refused, a)
			agent.Report(func(r *protocol.Report) { r.Profile = "" })
			o.stage("crtb/x", delivery.Applied, a)
		},
		"what happens in the member is reported": func(t *testing.T, o *fixture) {
			sets := testkit.NewSets()
			o.connect("a", sets)
			s := set(t, "crtb/x", "1")
			o.Replace(key("x"), to(s, a))
			o.stage("crtb/x", delivery.Applied, a)
			sets.SetState(protocol.SetState{ID: s.ID, Digest: s.Digest, Phase: protocol.SetFighting, Message: "kustomize-controller changes it back"})
			o.stage("crtb/x", delivery.Failed, a)
			if v := delivery.Summarize(o.Outcomes(s.ID, []types.NamespacedName{a})); v.Reason != v1.ReasonFighting || !v.Stalled {
				t.Errorf("%+v", v)
			}
		},
		"a member whose Cluster goes is left alone": func(t *testing.T, o *fixture) {
			sets := testkit.NewSets()
			o.connect("a", sets)
			o.Expect(nil)
			o.Replace(key("x"), to(set(t, "crtb/x", "1"), a))
			o.stage("crtb/x", delivery.Applied, a)
			o.Forget(a)
			o.Replace(key("x"), nil)
			o.Changed(a)
			o.Replace(key("y"), to(set(t, "crtb/y", "1"), b))
			o.connect("b", testkit.NewSets())
			o.stage("crtb/y", delivery.Applied, b)
			if got := sets.Held(); len(got) != 1 {
				t.Error(got)
			}
		},
		"what is withdrawn because a Cluster goes stays in the member, even if that is said first": func(t *testing.T, o *fixture) {
			sets := testkit.NewSets()
			o.connect("a", sets)
			o.Replace(key("x"), to(set(t, "crtb/x", "1"), a))
			o.stage("crtb/x", delivery.Applied, a)
			o.leaving.Store(&a)
			o.Replace(key("x"), nil)
			o.until("the store calls Leaving", o.leavingCalled.Load)
			o.connect("b", testkit.NewSets())
			o.Replace(key("y"), to(set(t, "crtb/y", "1"), b))
			o.stage("crtb/y", delivery.Applied, b)
			if got := sets.Calls(); !slices.Equal(got, []string{"PUT crtb/x"}) {
				t.Error(got)
			}
		},
		"many sets at once all arrive, each once": func(t *testing.T, o *fixture) {
			sets := testkit.NewSets()
			o.connect("a", sets)
			for i := range 200 {
				o.Replace(key(fmt.Sprint(i)), to(set(t, fmt.Sprintf("crtb/x%d", i), "1"), a))
			}
			for i := range 200 {
				o.stage(fmt.Sprintf("crtb/x%d", i), delivery.Applied, a)
			}
			if got := len(sets.Calls()); got != 200 {
				t.Errorf("%d calls", got)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

// An agent may be malicious.
func TestALyingAgentCostsTheHubLittle(t *testing.T) {
	a, b := member("a"), member("b")
	for name, test := range map[string]func(*testing.T, *fixture, *testkit.Sets){
		"one that reports another digest is sent the set again after pauses": func(t *testing.T, o *fixture, sets *testkit.Sets) {
			sets.Become(func(protocol.Set) protocol.SetState {
				return protocol.SetState{Digest: "other", Phase: protocol.SetApplied}
			})
			o.connect("a", sets)
			o.stage("crtb/x", delivery.Failed, a)
			if got := len(sets.Calls()); got > 20 {
				t.Errorf("%d calls", got)
			}
		},
		"a report with an ID that is not valid is dropped": func(_ *testing.T, o *fixture, sets *testkit.Sets) {
			sets.SetState(protocol.SetState{ID: "../uninstall", Phase: protocol.SetApplied})
			o.connect("a", sets)
			o.until("the stream is opened again", func() bool { return sets.Streams() > 3 })
			o.stage("crtb/x", delivery.Unreported, a)
		},
		"a first report without end is dropped": func(_ *testing.T, o *fixture, sets *testkit.Sets) {
			for i := range 300 {
				sets.SetState(protocol.SetState{ID: fmt.Sprintf("crtb/y%d", i), Phase: protocol.SetApplied, Message: strings.Repeat("a", 60<<10)})
			}
			o.connect("a", sets)
			o.until("the stream is opened again", func() bool { return sets.Streams() > 3 })
			o.stage("crtb/x", delivery.Unreported, a)
		},
		"the number of sets without owner that are remembered is bounded": func(t *testing.T, o *fixture, sets *testkit.Sets) {
			o.Expect([]delivery.Key{key("never")})
			o.connect("a", sets)
			o.stage("crtb/x", delivery.Applied, a)
			s := set(t, "crtb/x", "1")
			for i := range 3000 {
				sets.SetState(protocol.SetState{ID: fmt.Sprintf("crtb/y%d", i), Phase: protocol.SetApplied})
			}
			sets.SetState(protocol.SetState{ID: s.ID, Digest: s.Digest, Phase: protocol.SetConflict})
			o.stage("crtb/x", delivery.Failed, a)
			o.Expect(nil)
			o.until("removals", func() bool { return len(sets.Calls()) > 1024 })
			o.Replace(key("last"), to(set(t, "crtb/last", "1"), a))
			o.stage("crtb/last", delivery.Applied, a)
			if got := len(sets.Calls()); got > 1100 {
				t.Errorf("%d calls", got)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := open(t)
			o.Replace(key("x"), to(set(t, "crtb/x", "1"), a, b))
			o.connect("b", testkit.NewSets())
			test(t, o, testkit.NewSets())
			o.stage("crtb/x", delivery.Applied, b)
		})
	}
}
