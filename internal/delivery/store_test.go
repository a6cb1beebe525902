// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery_test

import (
	"context"
	"fmt"
	"io"
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
	"github.com/drover-dev/drover/internal/checkpoint"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/kinds"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/test/testkit"
)

// fixture is a store with a registry to which fake agents in memory connect.
type fixture struct {
	*delivery.Store
	t        *testing.T
	registry *members.Registry

	stop          func()
	leaving       atomic.Pointer[types.NamespacedName] // the member whose Cluster is being deleted
	leavingCalled atomic.Bool                          // whether the store has called Leaving for it

	readOnly  atomic.Pointer[types.NamespacedName] // the member whose spec says ReadOnly
	confirmed atomic.Pointer[string]               // the confirmed checkpoint, which the hub has no record of
	// the checkpoint that is waiting for a confirmation, according to the status of Clusters
	waits atomic.Pointer[string]

	mu       sync.Mutex // guards notified
	notified []delivery.Key
}

func open(t *testing.T) *fixture {
	t.Helper()
	o := &fixture{t: t, registry: members.New(logr.Discard(), time.Now)}
	t.Cleanup(o.registry.Close)
	return o.replace()
}

// replace starts a new store, like a manager that becomes the leader.
func (o *fixture) replace() *fixture {
	next := &fixture{t: o.t, registry: o.registry}
	next.readOnly.Store(o.readOnly.Load())
	store := delivery.New(delivery.Options{
		State: o.registry.State, Leading: o.registry.Leading, Pause: time.Millisecond, Log: logr.Discard(),
		ReadOnly: func(_ context.Context, name types.NamespacedName) (bool, error) {
			readOnly := next.readOnly.Load()
			return readOnly != nil && *readOnly == name, nil
		},
		Restore: checkpoint.Policy{
			Current: func() string { return "present" }, Rules: kinds.Rules(),
			Lost: func(_ context.Context, _ types.NamespacedName, checkpoint string) string {
				confirmed, waits := next.confirmed.Load(), next.waits.Load()
				if checkpoint == "" && waits != nil {
					checkpoint = *waits
				}
				if checkpoint != "lost" || confirmed != nil && *confirmed == checkpoint {
					return ""
				}
				return checkpoint
			},
		},
		Leaving: func(_ context.Context, name types.NamespacedName) bool {
			leaving := next.leaving.Load()
			if leaving == nil || *leaving != name {
				return false
			}
			next.leavingCalled.Store(true)
			return true
		},
	})
	next.Store = store
	store.OnResult("test", func(k delivery.Key) {
		next.mu.Lock()
		defer next.mu.Unlock()
		next.notified = append(next.notified, k)
	})
	o.registry.OnChange(store.Changed)
	o.registry.FollowSets(store)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = store.Start(ctx) })
	running.Go(func() { _ = o.registry.Lead(ctx) })
	next.stop = func() { cancel(); running.Wait() }
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
	o.registry.Add(members.Peer{Cluster: protocol.ClusterRef{Namespace: "team-a", Name: name, UID: "u"}, Key: "k"},
		agent.Session)
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

func newSet(t testing.TB, id, text string) *set.Set {
	t.Helper()
	s, err := set.New(id, nil, content(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func content(text string) set.Content {
	return set.Content{Objects: []*unstructured.Unstructured{{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": "x", "namespace": "default"}, "data": map[string]any{"text": text},
	}}}}
}

func key(name string) delivery.Key {
	return delivery.Key{Kind: "test", Namespace: "team-a", Name: name}
}

func to(s *set.Set, members ...types.NamespacedName) map[types.NamespacedName]*set.Set {
	all := map[types.NamespacedName]*set.Set{}
	for _, m := range members {
		all[m] = s
	}
	return all
}

func TestStore(t *testing.T) {
	a, b := member("a"), member("b")
	for name, test := range map[string]func(*testing.T, *fixture){
		"a set is sent, sent again after a change, and removed when it is no longer wanted": func(t *testing.T, o *fixture) {
			sets := testkit.NewSets()
			o.connect("a", sets)
			o.Replace(key("x"), to(newSet(t, "crtb/x", "1"), a))
			o.stage("crtb/x", delivery.Applied, a)
			o.Replace(key("x"), to(newSet(t, "crtb/x", "1"), a))
			o.Replace(key("x"), to(newSet(t, "crtb/x", "2"), a))
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
				t.Error("the owner was not notified, want it notified")
			}
		},
		"a member that was away gets its sets, and loses sets that were withdrawn": func(t *testing.T, o *fixture) {
			sets := testkit.NewSets()
			o.Replace(key("x"), to(newSet(t, "crtb/x", "1"), a, b))
			o.until("no member has it", func() bool { // they may count as Unreported, because the store has just started
				return !slices.ContainsFunc(o.Outcomes("crtb/x", []types.NamespacedName{a, b}), func(out delivery.Outcome) bool {
					return out.Stage != delivery.Away && out.Stage != delivery.Unreported
				})
			})
			agent := o.connect("a", sets)
			o.stage("crtb/x", delivery.Applied, a)
			agent.Kill()
			o.until("lost", func() bool { return !o.registry.State(a).Connected() })
			o.stage("crtb/x", delivery.Applied, a) // the member still has it
			o.Replace(key("x"), nil)
			o.Replace(key("y"), to(newSet(t, "crtb/y", "1"), a))
			o.Expect(nil)
			o.connect("a", sets)
			o.stage("crtb/y", delivery.Applied, a)
			o.until("removal", func() bool { return slices.Equal(sets.Held(), []string{"crtb/y"}) })
		},
		"a new manager keeps existing sets until all owners have declared theirs": func(t *testing.T, o *fixture) {
			sets := testkit.NewSets()
			o.connect("a", sets)
			for _, name := range []string{"x", "y", "z"} {
				o.Replace(key(name), to(newSet(t, "crtb/"+name, "1"), a))
				o.stage("crtb/"+name, delivery.Applied, a)
			}
			o.stop()
			next := o.replace()
			next.Expect([]delivery.Key{key("x"), key("y")})
			next.Replace(key("x"), to(newSet(t, "crtb/x", "1"), a))
			next.stage("crtb/x", delivery.Applied, a)
			if next.Complete() || len(sets.Held()) != 3 || len(sets.Calls()) != 3 {
				t.Errorf("complete, held and calls are %v, %v, %v, want not complete, three sets and no removal",
					next.Complete(), sets.Held(), sets.Calls())
			}
			next.Replace(key("y"), to(newSet(t, "crtb/y", "1"), a))
			next.until("z, which has no owner, is removed", func() bool {
				return slices.Equal(sets.Held(), []string{"crtb/x", "crtb/y"})
			})
			if got := len(sets.Calls()); got != 4 {
				t.Errorf("the agent got %v, want one more removal", sets.Calls())
			}
		},
		"an owner that wants a set absent is notified of members that return with or without it": func(t *testing.T,
			o *fixture) {
			sets := testkit.NewSets()
			agent := o.connect("a", sets)
			o.connect("b", testkit.NewSets())
			o.Replace(key("x"), to(newSet(t, "crtb/x", "1"), a))
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
			o.until("one member is away with it, and the other never had it", remains(0, 1, 0))
			o.until("earlier notifications have arrived", func() bool { return o.notifications("x") > 0 })
			again := o.connect("a", sets)
			o.until("removal", remains(0, 0, 0))
			o.until("the owner is notified", func() bool { return o.notifications("x") > 0 })
			if len(sets.Held()) > 0 {
				t.Errorf("the agent holds %v, want nothing", sets.Held())
			}
			again.Kill()
			o.until("lost again", func() bool { return !o.registry.State(a).Connected() })
			if !remains(0, 0, 0)() {
				t.Error("a member that no longer had it counts again after it disconnected, want it not counted")
			}
		},
		"a member that is connected only by a node agent is away, because a node agent accepts no sets": func(t *testing.T,
			o *fixture) {
			sets := testkit.NewSets()
			agent := o.connect("a", sets)
			o.Replace(key("x"), to(newSet(t, "crtb/x", "1"), a))
			o.stage("crtb/x", delivery.Applied, a)
			node := testkit.ConnectNodeAgent(t, testkit.HealthyReport())
			o.registry.Add(members.Peer{
				Cluster: protocol.ClusterRef{Namespace: "team-a", Name: "a", UID: "u"}, Key: "k", Instance: "n", NodeAgent: true,
			}, node.Session)
			agent.Kill()
			o.until("only a node agent is connected", func() bool { return o.registry.State(a).ByNodeAgent() })
			o.Replace(key("y"), to(newSet(t, "crtb/y", "1"), a))
			o.stage("crtb/y", delivery.Away, a)
			o.stage("crtb/x", delivery.Applied, a)
			o.Replace(key("x"), to(delivery.Absent("crtb/x"), a))
			for id, want := range map[string]int{"crtb/x": 1, "crtb/never": 0} {
				held, away, unreported := o.Remains(id, []types.NamespacedName{a})
				if held != 0 || away != want || unreported != 0 {
					t.Errorf("%s remains in %d, %d away, %d unreported, want %d away", id, held, away, unreported, want)
				}
			}
			o.connect("a", sets)
			o.stage("crtb/y", delivery.Applied, a)
			o.until("removal", func() bool { return slices.Equal(sets.Held(), []string{"crtb/y"}) })
		},
		"a withdrawn set is removed before all owners have declared their sets": func(t *testing.T, o *fixture) {
			sets := testkit.NewSets()
			o.Expect([]delivery.Key{key("never")})
			o.connect("a", sets)
			o.Replace(key("x"), to(newSet(t, "crtb/x", "1"), a))
			o.stage("crtb/x", delivery.Applied, a)
			o.Replace(key("x"), nil)
			o.until("removal", func() bool { return len(sets.Held()) == 0 })
		},
		"a set that fails is retried and reported": func(t *testing.T, o *fixture) {
			sets := testkit.NewSets()
			sets.Answer(http.StatusInternalServerError)
			o.connect("a", sets)
			o.Replace(key("x"), to(newSet(t, "crtb/x", "1"), a))
			o.stage("crtb/x", delivery.Failed, a)
			sets.Answer(0)
			o.stage("crtb/x", delivery.Applied, a)
		},
		"a set that the agent rejects is reported at once, and not sent again until it changes": func(t *testing.T,
			o *fixture) {
			sets := testkit.NewSets()
			sets.Answer(http.StatusUnprocessableEntity)
			o.connect("a", sets)
			o.Replace(key("x"), to(newSet(t, "crtb/x", "1"), a))
			o.stage("crtb/x", delivery.Failed, a)
			sets.Answer(0)
			o.Replace(key("x"), to(newSet(t, "crtb/x", "2"), a))
			o.stage("crtb/x", delivery.Applied, a)
			if got := len(sets.Calls()); got != 2 {
				t.Errorf("the agent got %v, want two calls", sets.Calls())
			}
		},
		"an agent that does not respond does not delay others": func(t *testing.T, o *fixture) {
			o.connect("a", testkit.NewSets()).StopAnswering()
			o.connect("b", testkit.NewSets())
			o.Replace(key("x"), to(newSet(t, "crtb/x", "1"), a, b))
			o.stage("crtb/x", delivery.Applied, b)
		},
		"agents that do not respond do not delay others, however many sets they should get": func(t *testing.T, o *fixture) {
			for _, name := range []string{"c", "d", "e"} {
				o.connect(name, testkit.NewSets()).StopAnswering()
				for i := range 256 {
					o.Replace(key(fmt.Sprint(name, i)), to(newSet(t, fmt.Sprintf("crtb/x%d", i), "1"), member(name)))
				}
			}
			o.connect("b", testkit.NewSets())
			o.Replace(key("x"), to(newSet(t, "crtb/x", "1"), b))
			o.stage("crtb/x", delivery.Applied, b)
		},
		"an agent that does not know sets or accepts none is reported": func(t *testing.T, o *fixture) {
			// as in the previous version
			o.connect("a", testkit.NewSets(), func(r *protocol.Report) { r.Features = []string{"sets"} })
			o.connect("b", testkit.NewSets(), func(r *protocol.Report) { r.Profile = "ReadOnly" })
			o.Replace(key("x"), to(newSet(t, "crtb/x", "1"), a, b))
			o.stage("crtb/x", delivery.Refused, a, b)
			outcomes := o.Outcomes("crtb/x", []types.NamespacedName{a, b})
			if outcomes[0].Reason != v1.ReasonAgentTooOld || outcomes[1].Reason != v1.ReasonAgentReadOnly {
				t.Errorf("the outcomes are %v, want AgentTooOld and AgentReadOnly", outcomes)
			}
		},
		"CVE-2021-36782: ReadOnly in the spec removes all sets, whatever the agent reports": func(t *testing.T, o *fixture) {
			sets := testkit.NewSets()
			o.Expect([]delivery.Key{key("never")}) // the store is not complete
			o.connect("a", sets)
			o.Replace(key("x"), to(newSet(t, "crtb/x", "1"), a))
			o.stage("crtb/x", delivery.Applied, a)
			sets.Answer(http.StatusInternalServerError)
			o.readOnly.Store(&a)
			o.Changed(a)
			o.stage("crtb/x", delivery.Refused, a)
			o.until("the failed removal is reported", func() bool {
				message := o.Outcomes("crtb/x", []types.NamespacedName{a})[0].Failures[0].Message
				return strings.Contains(message, "removing the existing objects failed")
			})
			sets.Answer(0)
			o.until("it is removed", func() bool { return len(sets.Held()) == 0 })
			puts := func() int {
				return len(slices.DeleteFunc(sets.Calls(), func(call string) bool { return !strings.HasPrefix(call, "PUT") }))
			}
			before := puts()
			o.Replace(key("x"), to(newSet(t, "crtb/x", "2"), a))
			o.Replace(key("y"), to(newSet(t, "crtb/y", "1"), a, b))
			o.connect("b", testkit.NewSets())
			o.stage("crtb/y", delivery.Applied, b)
			o.stage("crtb/x", delivery.Refused, a)
			got := o.Outcomes("crtb/y", []types.NamespacedName{a})[0]
			if got.Stage != delivery.Refused || got.Reason != v1.ReasonAgentReadOnly || puts() != before {
				t.Errorf("got %+v and the calls %v, want Refused with AgentReadOnly and nothing sent", got, sets.Calls())
			}
			o.readOnly.Store(nil)
			o.Changed(a)
			o.stage("crtb/x", delivery.Applied, a)
			o.stage("crtb/y", delivery.Applied, a)
		},
		"a new manager sends nothing where the spec says ReadOnly, and removes existing sets": func(t *testing.T,
			o *fixture) {
			sets := testkit.NewSets()
			o.connect("a", sets)
			o.Replace(key("x"), to(newSet(t, "crtb/x", "1"), a))
			o.stage("crtb/x", delivery.Applied, a)
			o.stop()
			o.readOnly.Store(&a)
			next := o.replace()
			next.Expect([]delivery.Key{key("never")})
			next.Replace(key("x"), to(newSet(t, "crtb/x", "2"), a))
			next.until("it is removed", func() bool { return len(sets.Held()) == 0 })
			next.stage("crtb/x", delivery.Refused, a)
			if got := len(sets.Calls()); got != 2 {
				t.Errorf("the agent got %v, want two calls", sets.Calls())
			}
		},
		"sets of an agent that changes to ReadOnly count as refused until it changes back": func(t *testing.T, o *fixture) {
			agent := o.connect("a", testkit.NewSets())
			o.Replace(key("x"), to(newSet(t, "crtb/x", "1"), a))
			o.stage("crtb/x", delivery.Applied, a)
			agent.Report(func(r *protocol.Report) { r.Profile = "ReadOnly" })
			o.stage("crtb/x", delivery.Refused, a)
			agent.Report(func(r *protocol.Report) { r.Profile = "" })
			o.stage("crtb/x", delivery.Applied, a)
		},
		"a change in the member is reported": func(t *testing.T, o *fixture) {
			sets := testkit.NewSets()
			o.connect("a", sets)
			s := newSet(t, "crtb/x", "1")
			o.Replace(key("x"), to(s, a))
			o.stage("crtb/x", delivery.Applied, a)
			sets.SetState(protocol.SetState{
				ID: s.ID, Digest: s.Digest, Phase: protocol.SetFighting, Message: "kustomize-controller changes it back",
			})
			o.stage("crtb/x", delivery.Failed, a)
			if v := delivery.Summarize(o.Outcomes(s.ID, []types.NamespacedName{a})); v.Reason != v1.ReasonFighting ||
				!v.Stalled {
				t.Errorf("the summary is %+v, want Fighting, stalled", v)
			}
		},
		"a member whose Cluster was deleted is left alone": func(t *testing.T, o *fixture) {
			sets := testkit.NewSets()
			o.connect("a", sets)
			o.Expect(nil)
			o.Replace(key("x"), to(newSet(t, "crtb/x", "1"), a))
			o.stage("crtb/x", delivery.Applied, a)
			o.Forget(a)
			o.Replace(key("x"), nil)
			o.Changed(a)
			o.Replace(key("y"), to(newSet(t, "crtb/y", "1"), b))
			o.connect("b", testkit.NewSets())
			o.stage("crtb/y", delivery.Applied, b)
			if got := sets.Held(); len(got) != 1 {
				t.Errorf("the agent holds %v, want one set", got)
			}
		},
		"a set stays if it is withdrawn shortly before its Cluster is deleted": func(t *testing.T, o *fixture) {
			sets := testkit.NewSets()
			o.connect("a", sets)
			o.Replace(key("x"), to(newSet(t, "crtb/x", "1"), a))
			o.stage("crtb/x", delivery.Applied, a)
			o.leaving.Store(&a)
			o.Replace(key("x"), nil)
			o.until("the store calls Leaving", o.leavingCalled.Load)
			o.connect("b", testkit.NewSets())
			o.Replace(key("y"), to(newSet(t, "crtb/y", "1"), b))
			o.stage("crtb/y", delivery.Applied, b)
			if got := sets.Calls(); !slices.Equal(got, []string{"PUT crtb/x"}) {
				t.Errorf("the agent got %v, want only PUT crtb/x", got)
			}
		},
		"large sets of a workspace are kept up to a bound, and the rest when there is room": func(t *testing.T, o *fixture) {
			const most = 128 / 7                                     // sets of 7 MiB
			large := newSet(t, "plan/p", strings.Repeat("x", 7<<20)) // each owner requires it in another member
			refused := func(id string, m types.NamespacedName) bool {
				return o.Outcomes(id, []types.NamespacedName{m})[0].Stage == delivery.Failed
			}
			for i := range most + 1 {
				o.Replace(key(fmt.Sprint(i)), to(large, member(fmt.Sprint(i))))
			}
			o.Replace(key("small"), to(newSet(t, "crtb/x", "1"), a))
			last, other := member(fmt.Sprint(most)), types.NamespacedName{Namespace: "team-b", Name: "b"}
			o.Replace(delivery.Key{Kind: "test", Namespace: "team-b", Name: "p"}, to(large, other))
			if !refused(large.ID, last) || refused(large.ID, member("0")) || refused("crtb/x", a) || refused(large.ID, other) {
				t.Error("want the last large set of the workspace refused, but no other set")
			}
			v := delivery.Summarize(o.Outcomes(large.ID, []types.NamespacedName{last}))
			if v.Reason != v1.ReasonDeliveryFailed || !strings.Contains(v.Message, "128 MiB") {
				t.Errorf("the summary is %+v, want DeliveryFailed with the bound", v)
			}
			o.notifications(fmt.Sprint(most))
			o.Replace(key("0"), nil)
			if o.notifications(fmt.Sprint(most)) == 0 {
				t.Error("the owner was not notified that there is room, want it notified")
			}
			if o.Replace(key(fmt.Sprint(most)), to(large, last)); refused(large.ID, last) {
				t.Error("the last set is refused although there is room, want it kept")
			}
		},
		"many sets that are wanted at once are all sent, each once": func(t *testing.T, o *fixture) {
			sets := testkit.NewSets()
			o.connect("a", sets)
			for i := range 200 {
				o.Replace(key(fmt.Sprint(i)), to(newSet(t, fmt.Sprintf("crtb/x%d", i), "1"), a))
			}
			for i := range 200 {
				o.stage(fmt.Sprintf("crtb/x%d", i), delivery.Applied, a)
			}
			if got := len(sets.Calls()); got != 200 {
				t.Errorf("got %d calls, want 200", got)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

func TestMaliciousAgentCostsTheHubLittle(t *testing.T) {
	a, b := member("a"), member("b")
	for name, test := range map[string]func(*testing.T, *fixture, *testkit.Sets){
		"an agent that reports another digest gets the set again only after pauses": func(t *testing.T, o *fixture,
			sets *testkit.Sets) {
			sets.Become(func(set.Content) protocol.SetState {
				return protocol.SetState{Digest: "other", Phase: protocol.SetApplied}
			})
			o.connect("a", sets)
			o.stage("crtb/x", delivery.Failed, a)
			if got := len(sets.Calls()); got > 20 {
				t.Errorf("got %d calls, want at most 20", got)
			}
		},
		"an agent that loses a set each time gets it again only after pauses": func(t *testing.T, o *fixture,
			sets *testkit.Sets) {
			lost := make(chan struct{})
			done := sync.OnceFunc(func() { close(lost) })
			sets.Serve(func(w http.ResponseWriter, r *http.Request) {
				fmt.Fprintf(w, "{\"features\":[%q]}\n{\"set\":{\"synced\":true}}\n", protocol.FeatureSets)
				for range 4000 { // fewer than a burst
					_, _ = io.WriteString(w, "{\"set\":{\"removed\":\"crtb/x\"}}\n")
					if http.NewResponseController(w).Flush() != nil {
						return
					}
				}
				done()
				<-r.Context().Done()
			})
			o.connect("a", sets)
			<-lost
			o.until("the set is sent again", func() bool { return len(sets.Calls()) > 3 })
			if got := len(sets.Calls()); got > 20 {
				t.Errorf("got %d calls, want at most 20", got)
			}
		},
		"the number of sets without an owner that are remembered is bounded": func(t *testing.T, o *fixture,
			sets *testkit.Sets) {
			o.Expect([]delivery.Key{key("never")})
			o.connect("a", sets)
			o.stage("crtb/x", delivery.Applied, a)
			s := newSet(t, "crtb/z", "1") // the last one, because the agent reports changes in the order of their IDs
			o.Replace(key("z"), to(s, a))
			o.stage(s.ID, delivery.Applied, a)
			for i := range 3000 {
				sets.SetState(protocol.SetState{ID: fmt.Sprintf("crtb/y%d", i), Phase: protocol.SetApplied})
			}
			sets.SetState(protocol.SetState{ID: s.ID, Digest: s.Digest, Phase: protocol.SetConflict})
			o.stage(s.ID, delivery.Failed, a)
			o.Expect(nil)
			o.until("removals", func() bool { return len(sets.Calls()) > 1024 })
			o.Replace(key("last"), to(newSet(t, "crtb/last", "1"), a))
			o.stage("crtb/last", delivery.Applied, a)
			if got := len(sets.Calls()); got > 1100 {
				t.Errorf("got %d calls, want at most 1100", got)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := open(t)
			o.Replace(key("x"), to(newSet(t, "crtb/x", "1"), a, b))
			o.connect("b", testkit.NewSets())
			test(t, o, testkit.NewSets())
			o.stage("crtb/x", delivery.Applied, b)
		})
	}
}
