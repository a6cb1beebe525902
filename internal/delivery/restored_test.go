// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery_test

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/checkpoint"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/test/testkit"
)

// difference waits until the difference in a member is known, and returns it.
func (o *fixture) difference(name types.NamespacedName) *checkpoint.Difference {
	o.t.Helper()
	var found *checkpoint.Difference
	o.until("the difference is known", func() (known bool) {
		found, known = o.Unconfirmed(name)
		return known
	})
	return found
}

func TestRestoredHub(t *testing.T) {
	a := member("a")
	for name, test := range map[string]func(*testing.T, *fixture, *testkit.Sets){
		"nothing is added, changed or removed before it is confirmed": func(t *testing.T, o *fixture, sets *testkit.Sets) {
			sets.Reach("lost")
			o.connect("a", sets)
			o.Expect([]delivery.Key{key("same"), key("changed"), key("deleted")})
			o.Replace(key("same"), to(newSet(t, "crtb/same", "1"), a))
			o.Replace(key("changed"), to(newSet(t, "crtb/changed", "0"), a))
			o.stage("crtb/same", delivery.Applied, a) // the agent has reported
			if _, known := o.Unconfirmed(a); known {
				t.Error("the difference is known before all owners have declared their sets, want it unknown")
			}
			o.Replace(key("deleted"), to(newSet(t, "crtb/deleted", "1"), a))
			want := checkpoint.Difference{
				Checkpoint: "lost", Add: []string{"crtb/deleted"}, Change: []string{"crtb/changed"},
				Remove: []string{"crtb/created"},
			}
			if got := o.difference(a); got == nil || !reflect.DeepEqual(*got, want) {
				t.Errorf("the difference is %+v, want %+v", got, want)
			}
			for id, stage := range map[string]delivery.Stage{
				"crtb/same": delivery.Applied, "crtb/changed": delivery.Refused, "crtb/deleted": delivery.Refused,
			} {
				got := o.Outcomes(id, []types.NamespacedName{a})[0]
				if got.Stage != stage || stage == delivery.Refused && got.Reason != v1.ReasonHubRestored {
					t.Errorf("%s: the outcome is %+v, want the stage %d, and HubRestored if it is Refused", id, got, stage)
				}
			}
			o.Replace(key("deleted"), nil) // the user deletes it again
			o.until("it is no longer listed", func() bool { return len(o.difference(a).Add) == 0 })
			if calls := sets.Calls(); len(calls) > 0 {
				t.Errorf("the agent got %v before the confirmation, want no calls", calls)
			}
			confirmed := "lost"
			o.confirmed.Store(&confirmed)
			if got := o.difference(a); got != nil {
				t.Errorf("after the confirmation the difference is %+v, want none", got)
			}
			o.until("the agent got two calls", func() bool { return len(sets.Calls()) == 2 })
			if calls := sets.Calls(); !slices.Contains(calls, "PUT crtb/changed") ||
				!slices.Contains(calls, "DELETE crtb/created") {
				t.Errorf("the agent got %v, want crtb/changed sent and crtb/created removed", calls)
			}
		},
		"an agent whose checkpoint the hub remembers gets everything": func(t *testing.T, o *fixture, sets *testkit.Sets) {
			sets.Reach("remembered")
			o.connect("a", sets)
			o.Expect(nil)
			o.Replace(key("deleted"), to(newSet(t, "crtb/deleted", "1"), a))
			o.stage("crtb/deleted", delivery.Applied, a)
			o.until("sets without an owner are removed",
				func() bool { return slices.Equal(sets.Held(), []string{"crtb/deleted"}) })
			if got := o.difference(a); got != nil {
				t.Errorf("the difference is %+v, want none", got)
			}
		},
		"where nothing would change, nothing waits, and later changes are sent": func(t *testing.T, o *fixture,
			sets *testkit.Sets) {
			sets.Reach("lost")
			o.connect("a", sets)
			for name, text := range map[string]string{"same": "1", "changed": "1", "created": "1"} {
				o.Replace(key(name), to(newSet(t, "crtb/"+name, text), a))
			}
			o.Expect(nil)
			o.stage("crtb/same", delivery.Applied, a)
			if got := o.difference(a); got != nil {
				t.Errorf("the difference is %+v, want none", got)
			}
			o.Replace(key("new"), to(newSet(t, "crtb/new", "1"), a))
			o.stage("crtb/new", delivery.Applied, a)
		},
		"a member without changes gets the present checkpoint, and the next manager removes sets": func(t *testing.T,
			o *fixture, sets *testkit.Sets) {
			sets.Reach("lost")
			o.connect("a", sets)
			for _, name := range []string{"same", "changed", "created"} {
				o.Replace(key(name), to(newSet(t, "crtb/"+name, "1"), a))
			}
			o.Expect(nil)
			o.until("nothing waits", func() bool { d, known := o.Unconfirmed(a); return known && d == nil })
			if got := sets.Reached(); got != "present" || len(sets.Held()) != 3 {
				t.Errorf("the agent has the checkpoint %q and the sets %v, want present and all three sets", got, sets.Held())
			}
			o.stop()
			o = o.replace()
			for _, name := range []string{"same", "changed"} {
				o.Replace(key(name), to(newSet(t, "crtb/"+name, "1"), a))
			}
			o.Expect(nil)
			o.until("the third set is removed", func() bool { return len(sets.Held()) == 2 })
		},
		"a hold ends after its changes were corrected on the hub and the agent has the present checkpoint": func(t *testing.T,
			o *fixture, sets *testkit.Sets) {
			sets.Reach("lost")
			sets.Answer(http.StatusServiceUnavailable)
			o.connect("a", sets)
			for _, name := range []string{"same", "changed", "created", "deleted"} {
				o.Replace(key(name), to(newSet(t, "crtb/"+name, "1"), a))
			}
			o.Expect(nil)
			if got := o.difference(a); got == nil || len(got.Add) != 1 {
				t.Errorf("the difference is %+v, want one addition", got)
			}
			o.Replace(key("deleted"), nil)
			o.until("the checkpoint was sent three times", func() bool { return len(sets.Calls()) > 3 })
			if got, known := o.Unconfirmed(a); known {
				t.Errorf("the difference %+v is known before the agent has the present checkpoint, want it unknown", got)
			}
			sets.Answer(0)
			o.until("nothing waits", func() bool { d, known := o.Unconfirmed(a); return known && d == nil })
		},
		"a hold does not end while an owner has not decided yet": func(t *testing.T, o *fixture, sets *testkit.Sets) {
			sets.Reach("lost")
			o.connect("a", sets)
			o.Replace(key("same"), to(newSet(t, "crtb/same", "1"), a))
			o.Replace(key("changed"), to(newSet(t, "crtb/changed", "1"), a))
			o.Replace(key("created"), to(delivery.Unchanged("crtb/created"), a))
			o.Expect(nil)
			o.stage("crtb/same", delivery.Applied, a)
			o.Replace(key("created"), to(newSet(t, "crtb/created", "0"), a))
			if got := o.difference(a); got == nil || !slices.Equal(got.Change, []string{"crtb/created"}) ||
				len(sets.Calls()) > 0 {
				t.Errorf("the difference is %+v and the agent got %v, want the change of crtb/created and no calls", got,
					sets.Calls())
			}
		},
		"a set that is deleted after the restore is removed, and the rest still waits": func(t *testing.T, o *fixture,
			sets *testkit.Sets) {
			sets.Reach("lost")
			sets.Hold(newSet(t, "plan/x", "1"), content("1"))
			agent := o.connect("a", sets)
			for _, name := range []string{"same", "changed"} {
				o.Replace(key(name), to(newSet(t, "crtb/"+name, "1"), a))
			}
			o.Replace(key("deleted"), to(newSet(t, "crtb/deleted", "1"), a))
			o.Replace(delivery.Key{Kind: set.Plan, Namespace: "team-a", Name: "x"}, to(newSet(t, "plan/x", "1"), a))
			o.Expect(nil)
			if got := o.difference(a); got == nil || !slices.Equal(got.Remove, []string{"crtb/created"}) {
				t.Errorf("the difference is %+v, want the removal of crtb/created", got)
			}
			o.Replace(key("same"), nil)
			o.until("it is removed", func() bool { return slices.Equal(sets.Calls(), []string{"DELETE crtb/same"}) })
			o.until("its owner knows", func() bool {
				held, away, unreported := o.Remains("crtb/same", []types.NamespacedName{a})
				return held+away+unreported == 0
			})
			agent.Session.Close()
			o.stage("crtb/deleted", delivery.Away, a)
			o.Replace(key("changed"), nil) // while the member is away
			o.Replace(delivery.Key{Kind: set.Plan, Namespace: "team-a", Name: "x"}, nil)
			o.connect("a", sets)
			o.until("it is removed after the member is back", func() bool {
				return slices.Equal(sets.Calls(), []string{"DELETE crtb/same", "DELETE crtb/changed"})
			})
			want := checkpoint.Difference{
				Checkpoint: "lost", Add: []string{"crtb/deleted"}, Remove: []string{"crtb/created", "plan/x"},
			}
			o.until("the rest still waits", func() bool {
				got,
					known := o.Unconfirmed(a)
				return known && reflect.DeepEqual(got, &want)
			})
			if sets.Reached() != "lost" {
				t.Errorf("the agent has the checkpoint %q before the confirmation, want lost", sets.Reached())
			}
			if held, away, unreported := o.Remains("crtb/created", []types.NamespacedName{a}); held != 0 || away != 1 ||
				unreported != 0 {
				t.Errorf("the set counts as held %d, away %d, unreported %d, want it away", held, away, unreported)
			}
		},
		"outdated data for the verification of users' tokens is removed at once, and the rest waits": func(t *testing.T,
			o *fixture, sets *testkit.Sets) {
			sets.Reach("lost")
			sets.Hold(newSet(t, set.Direct, "1"), content("1"))
			o.connect("a", sets)
			for _, name := range []string{"same", "changed"} {
				o.Replace(key(name), to(newSet(t, "crtb/"+name, "1"), a))
			}
			o.Replace(key("direct"), to(newSet(t, set.Direct, "1"), a))
			o.Expect(nil)
			if got := o.difference(a); got == nil || !slices.Equal(got.Remove, []string{"crtb/created"}) ||
				len(sets.Calls()) > 0 {
				t.Errorf("the difference is %+v and the agent got %v, want the removal of crtb/created and no calls", got,
					sets.Calls())
			}
			sets.Answer(http.StatusServiceUnavailable)
			o.Replace(key("direct"), to(newSet(t, set.Direct, "2"), a)) // all sessions were ended
			o.until("the removal was tried twice", func() bool { return len(sets.Calls()) > 1 })
			sets.Answer(0)
			o.until("it is removed", func() bool { return !slices.Contains(sets.Held(), set.Direct) })
			want := checkpoint.Difference{Checkpoint: "lost", Add: []string{set.Direct}, Remove: []string{"crtb/created"}}
			o.until("the rest still waits", func() bool {
				got,
					known := o.Unconfirmed(a)
				return known && reflect.DeepEqual(got, &want)
			})
			calls := sets.Calls()
			others := slices.ContainsFunc(calls, func(call string) bool { return call != "DELETE "+set.Direct })
			if others || sets.Reached() != "lost" {
				t.Errorf("the agent got %v and has the checkpoint %q, want only removals of %s and lost",
					calls, sets.Reached(), set.Direct)
			}
			confirmed := "lost"
			o.confirmed.Store(&confirmed)
			o.Changed(a)
			o.until("it is sent again", func() bool { return slices.Contains(sets.Held(), set.Direct) })
		},
		"an agent that returns without a checkpoint waits until the earlier one is confirmed": func(t *testing.T, o *fixture,
			sets *testkit.Sets) {
			sets.Reach("lost")
			agent := o.connect("a", sets)
			o.Replace(key("deleted"), to(newSet(t, "crtb/deleted", "1"), a))
			o.Expect(nil)
			o.stage("crtb/deleted", delivery.Refused, a)
			lost := o.difference(a).Checkpoint
			o.waits.Store(&lost) // the status of its Cluster shows this from now on
			agent.Session.Close()
			o.stage("crtb/deleted", delivery.Away, a)
			anew := testkit.NewSets()
			o.connect("a", anew)
			want := checkpoint.Difference{Checkpoint: "lost", Add: []string{"crtb/deleted"}}
			o.until("all sets that it lacks wait",
				func() bool { got, known := o.Unconfirmed(a); return known && reflect.DeepEqual(got, &want) })
			if calls := anew.Calls(); len(calls) > 0 {
				t.Errorf("the agent got %v, want no calls", calls)
			}
			o.confirmed.Store(&lost)
			o.Changed(a)
			o.stage("crtb/deleted", delivery.Applied, a)
			if got := o.difference(a); got != nil {
				t.Errorf("after the confirmation the difference is %+v, want none", got)
			}
		},
		"a hold that has ended does not begin again while the status still says that the member waits": func(t *testing.T,
			o *fixture, sets *testkit.Sets) {
			sets.Reach("lost")
			lost := "lost"
			o.waits.Store(&lost)
			o.connect("a", sets)
			for _, name := range []string{"same", "changed", "created"} {
				o.Replace(key(name), to(newSet(t, "crtb/"+name, "1"), a))
			}
			o.Expect(nil)
			o.until("nothing waits", func() bool { d, known := o.Unconfirmed(a); return known && d == nil })
			o.Changed(a)
			if d, known := o.Unconfirmed(a); d != nil || !known {
				t.Errorf("the difference is %+v, known %t, want none, known", d, known)
			}
		},
		"a withdrawn confirmation does not hold an agent that has reported the present checkpoint since": func(t *testing.T,
			o *fixture, sets *testkit.Sets) {
			sets.Reach("lost")
			o.connect("a", sets)
			o.Replace(key("deleted"), to(newSet(t, "crtb/deleted", "1"), a))
			o.Expect(nil)
			o.stage("crtb/deleted", delivery.Refused, a)
			confirmed := "lost"
			o.confirmed.Store(&confirmed)
			o.Changed(a)
			o.stage("crtb/deleted", delivery.Applied, a)
			o.until("the agent has the present checkpoint", func() bool { return sets.Reached() == "present" })
			sets.SetState(protocol.SetState{ID: "crtb/marker", Digest: "1"}) // comes after the checkpoint
			o.until("everything was reported", func() bool { return slices.Contains(sets.Calls(), "DELETE crtb/marker") })
			sets.Answer(http.StatusUnprocessableEntity)
			o.Replace(key("more"), to(newSet(t, "crtb/more", "1"), a)) // a set that cannot be delivered differs
			o.stage("crtb/more", delivery.Failed, a)
			o.confirmed.Store(nil)
			o.Changed(a)
			if got := o.difference(a); got != nil {
				t.Errorf("the difference is %+v, want none", got)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sets := testkit.NewSets()
			for _, name := range []string{"same", "changed", "created"} {
				sets.Hold(newSet(t, "crtb/"+name, "1"), content("1"))
			}
			test(t, open(t), sets)
		})
	}
}

func TestRestoredHubWithAHundredMembers(t *testing.T) {
	t.Parallel()
	o := open(t)
	created := newSet(t, "plan/created", "1")
	names, agents := make([]types.NamespacedName, 100), make([]*testkit.Sets, 100)
	for i := range names {
		names[i], agents[i] = member(fmt.Sprintf("m%02d", i)), testkit.NewSets()
		agents[i].Hold(created, content("1"))
		agents[i].Reach("lost")
		if i < 10 { // nothing was sent there since the backup
			agents[i].Reach("remembered")
		}
	}
	o.Expect([]delivery.Key{key("deleted")})
	// The hub knows the wanted sets before agents connect.
	o.Replace(key("deleted"), to(newSet(t, "crtb/deleted", "1"), names...))
	for i, name := range names {
		o.connect(name.Name, agents[i])
	}
	for i, name := range names {
		if i < 10 {
			o.stage("crtb/deleted", delivery.Applied, name)
			o.until("sets without an owner are removed",
				func() bool { return slices.Equal(agents[i].Held(), []string{"crtb/deleted"}) })
			continue
		}
		o.stage("crtb/deleted", delivery.Refused, name)
		if d := o.difference(name); d == nil || len(d.Add) != 1 || len(d.Remove) != 1 {
			t.Errorf("the difference in %s is %+v, want one addition and one removal", name, d)
		}
		if calls := agents[i].Calls(); len(calls) > 0 {
			t.Errorf("the agent of %s got %v, want no calls", name, calls)
		}
	}
}

func TestReadOnlyClusterOfARestoredHubSaysHowToConfirm(t *testing.T) {
	t.Parallel()
	sets := testkit.NewSets()
	sets.Hold(newSet(t, "crtb/x", "1"), content("1"))
	sets.Reach("lost")
	o, a := open(t), member("a")
	o.readOnly.Store(&a)
	o.Replace(key("x"), to(newSet(t, "crtb/x", "1"), a))
	o.Expect(nil)
	o.connect("a", sets)
	o.difference(a)
	got := o.Outcomes("crtb/x", []types.NamespacedName{a})[0]
	if len(got.Failures) != 1 || !strings.Contains(got.Failures[0].Message, "kubectl drover restored") {
		t.Errorf("the outcome is %+v, want the command that confirms", got)
	}
}

func TestCheckpointIsSent(t *testing.T) {
	t.Parallel()
	sets := testkit.NewSets()
	o := open(t)
	o.connect("a", sets)
	o.Replace(key("x"), to(newSet(t, "crtb/x", "1"), member("a")))
	o.stage("crtb/x", delivery.Applied, member("a"))
	if got := sets.Reached(); got != "present" {
		t.Errorf("the agent has the checkpoint %q, want present", got)
	}
}
