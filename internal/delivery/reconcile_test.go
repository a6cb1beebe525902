// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/test/testkit"
)

// fakeMembers stands for members whose agents respond to each PUT after respond is closed.
type fakeMembers struct {
	respond          chan struct{}
	now, most, taken atomic.Int64
}

func (f *fakeMembers) State(types.NamespacedName) members.State { return members.State{} }
func (f *fakeMembers) TooFast(types.NamespacedName, string)     {}
func (f *fakeMembers) Leading(types.NamespacedName) (http.RoundTripper, error) {
	return f, nil
}

func (f *fakeMembers) RoundTrip(r *http.Request) (*http.Response, error) {
	for now, most := f.now.Add(1), f.most.Load(); now > most && !f.most.CompareAndSwap(most, now); most = f.most.Load() {
	}
	defer f.now.Add(-1)
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	select {
	case <-f.respond:
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	f.taken.Add(1)
	id, digest, err := idAndDigest(raw)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(protocol.SetState{ID: id, Digest: digest, Phase: protocol.SetApplied})
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(body))}, err
}

// idAndDigest reads the beginning of a set. Parsing a whole set of 4 MiB takes seconds with the race detector.
func idAndDigest(raw []byte) (id, digest string, err error) {
	begin, _, found := bytes.Cut(raw, []byte(`,"content":`))
	if !found {
		return "", "", errors.New("a set without content was sent")
	}
	var s struct{ ID, Digest string }
	err = json.Unmarshal(append(bytes.Clone(begin), '}'), &s)
	return s.ID, s.Digest, err
}

// startStore returns a running store with count workers.
func startStore(t testing.TB, f interface {
	State(name types.NamespacedName) members.State
	Leading(name types.NamespacedName) (http.RoundTripper, error)
}, count int,
) *Store {
	t.Helper()
	d := New(Options{State: f.State, Leading: f.Leading, Pause: time.Millisecond, Log: logr.Discard()})
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[target]())
	if err := d.begin(t.Context(), queue); err != nil {
		t.Fatalf("begin: %v", err)
	}
	var running sync.WaitGroup
	for range count {
		running.Go(func() {
			for next, ended := queue.Get(); !ended; next, ended = queue.Get() {
				_, _ = d.reconcile(context.Background(), next) // it returns no error
				queue.Done(next)
			}
		})
	}
	t.Cleanup(func() {
		queue.ShutDown()
		d.close()
		running.Wait()
		d.sends.Wait()
	})
	return d
}

// newContent returns the content of a set that an owner wants in a single member.
func newContent(s *set.Set) content { return (&owner{}).content(s, map[string]content{}) }

// ready adds a member that is connected and has reported its sets.
func (d *Store) ready(name string) *member {
	g := d.lock()
	defer d.unlock()
	m := newMember(types.NamespacedName{Namespace: "team-a", Name: name})
	m.connected, m.reported, m.synced = true, true, true
	g.members[m.name] = m
	return m
}

func sized(t testing.TB, id string, size int) *set.Set {
	t.Helper()
	s, err := set.New(id, nil, set.Content{Objects: []*unstructured.Unstructured{{Object: map[string]any{
		"kind": "ConfigMap", "metadata": map[string]any{"name": "x"}, "data": map[string]any{"x": strings.Repeat("x",
			size)}}}}})
	if err != nil {
		t.Fatalf("make set: %v", err)
	}
	return s
}

func TestDue(t *testing.T) {
	const id = "crtb/x"
	mine := sized(t, id, 1)
	state := func(digest string) map[string]*protocol.SetState {
		return map[string]*protocol.SetState{id: {ID: id, Digest: digest, Phase: protocol.SetFailed}}
	}
	want := func(s *set.Set) map[string]*wanted { return map[string]*wanted{id: {content: newContent(s)}} }
	for name, tt := range map[string]struct {
		change func(g *guarded, m *member)
		want   bool
	}{
		"a set that the member lacks is sent": {
			func(_ *guarded, m *member) { m.wants = want(mine) }, true,
		},
		"a set that it has with another digest is sent": {
			func(_ *guarded, m *member) { m.wants, m.has = want(mine), state("other") }, true,
		},
		"a set that it has is not sent, whether or not it is applied": {
			func(_ *guarded, m *member) { m.wants, m.has = want(mine), state(mine.Digest) }, false,
		},
		"a set is not sent twice at once": {
			func(_ *guarded, m *member) { m.wants, m.sends[id] = want(mine), &sending{} }, false,
		},
		"nothing is sent to a member that is away": {
			func(_ *guarded, m *member) { m.wants, m.connected = want(mine), false }, false,
		},
		"nothing is sent before it has reported all its sets": {
			func(_ *guarded, m *member) { m.wants, m.synced = want(mine), false }, false,
		},
		"nothing is sent to an agent that accepts no sets": {
			func(_ *guarded, m *member) { m.wants, m.refuses = want(mine), "AgentTooOld" }, false,
		},
		"nothing is sent while its Cluster is being deleted": {
			func(_ *guarded, m *member) { m.wants, m.forgotten = want(mine), true }, false,
		},
		"nothing is sent after the store has stopped": {
			func(g *guarded, m *member) { m.wants, g.queue = want(mine), nil }, false,
		},
		"an unchanged set is neither sent nor removed": {func(g *guarded, m *member) {
			m.wants, m.has, g.owners.complete = want(Unchanged(id)), state("other"), true
		}, false},
		"an unchanged set that is lacking is not sent": {
			func(_ *guarded, m *member) { m.wants = want(Unchanged(id)) }, false,
		},
		"an absent set is removed": {
			func(_ *guarded, m *member) { m.wants, m.has = want(Absent(id)), state("other") }, true,
		},
		"an absent set that is lacking is not removed": {func(_ *guarded, m *member) { m.wants = want(Absent(id)) }, false},
		"a withdrawn set is removed before the store is complete": {func(g *guarded, m *member) {
			m.has, m.wants = state("other"), want(mine)
			g.withdraw(m, id, Key{})
		}, true},
		"a set without an owner stays until the store is complete": {
			func(_ *guarded, m *member) { m.has = state("other") }, false,
		},
		"a set without an owner is removed after the store is complete": {
			func(g *guarded, m *member) { m.has, g.owners.complete = state("other"), true }, true,
		},
		"CVE-2021-36782: ReadOnly in the spec removes sets": {
			func(_ *guarded, m *member) { m.wants, m.has, m.withheld = want(mine), state("other"), true }, true,
		},
		"CVE-2021-36782: ReadOnly in the spec sends nothing": {
			func(_ *guarded, m *member) { m.wants, m.withheld = want(mine), true }, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := New(Options{Log: logr.Discard()})
			m := d.ready("a")
			g := d.lock()
			defer d.unlock()
			g.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[target]())
			defer g.queue.ShutDown()
			queue := g.queue
			tt.change(g, m)
			if got := g.enqueue(m, id); got != tt.want {
				t.Errorf("due is %t, want %t", got, tt.want)
			}
			g.queue = queue
		})
	}
}

func TestRoom(t *testing.T) {
	for name, tt := range map[string]struct {
		sends int
		slow  bool
		want  bool
		taken int           // successful sends
		ago   time.Duration // how long ago they were
	}{
		"many sends at once":                              {maxMemberSends - 1, false, true, 0, 0},
		"no more than the bound":                          {maxMemberSends, false, false, 0, 0},
		"few while one of them is slow":                   {maxSlowSends - 1, true, true, 0, 0},
		"no more than few while one of them is slow":      {maxSlowSends, true, false, 0, 0},
		"more for a member that accepts many":             {49, true, true, 50, 0},
		"no more than it has accepted":                    {50, true, false, 50, 0},
		"no more than the bound, however many it accepts": {maxMemberSends, true, false, 2 * maxMemberSends, 0},
		"few for a member that accepts few":               {maxSlowSends, true, false, maxSlowSends - 1, 0},
		"few for a member that accepted many earlier":     {maxSlowSends, true, false, 50, 2 * slowSend},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMember(types.NamespacedName{Namespace: "team", Name: "a"})
			for i := range tt.sends {
				m.sends[fmt.Sprint(i)] = &sending{slow: tt.slow && i == 0}
			}
			for range tt.taken {
				m.took(time.Now().Add(-tt.ago))
			}
			if got := m.room(nil); got != tt.want {
				t.Errorf("room in addition to %d sends: %t, want %t", tt.sends, got, tt.want)
			}
		})
	}
}

func TestTookCountsRecentSends(t *testing.T) {
	start := time.Now()
	var f flow
	for _, step := range []struct {
		after time.Duration
		want  [2]int
	}{
		{0, [2]int{1, 0}}, {slowSend - 1, [2]int{2, 0}}, {slowSend, [2]int{1, 2}}, {2*slowSend - 1,
			[2]int{2, 2}}, {2 * slowSend, [2]int{1, 2}},
		{4*slowSend - 1, [2]int{1, 1}}, {7 * slowSend, [2]int{1, 0}},
	} {
		if f.took(start.Add(step.after)); f.taken != step.want {
			t.Errorf("after %s the member has accepted %v, want %v", step.after, f.taken, step.want)
		}
	}
}

func TestBoundsOnSendsToAMember(t *testing.T) {
	for name, tt := range map[string]struct{ count, size, workers, least, atOnce int }{
		// fewer sends than the bound if one is already slow
		"sends in progress are bounded, and the rest follows": {
			maxMemberSends + 100, 1, workers, maxSlowSends, maxMemberSends,
		},
		"bytes in progress are bounded, and one set may exceed the bound": {5, maxMemberBytes + 1, workers, 1, 1},
		"sets that fit into the bound of bytes are sent together":         {9, maxMemberBytes/3 - 1000, workers, 3, 3},
		"an agent that does not respond does not occupy all workers": {
			maxMemberSends, 1, maxSlowSends, maxSlowSends, maxSlowSends,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeMembers{respond: make(chan struct{})}
			d := startStore(t, f, tt.workers)
			m := d.ready("a")
			for i := range tt.count {
				s := sized(t, fmt.Sprintf("crtb/x%d", i), tt.size)
				d.Replace(Key{Name: fmt.Sprint(i)}, map[types.NamespacedName]*set.Set{m.name: s})
			}
			testkit.Eventually(t, 30*time.Second, func(context.Context) error {
				d.lock()
				held := len(m.waiting)
				d.unlock()
				if got := int(f.now.Load()); got < tt.least || got > tt.atOnce || got+held != tt.count {
					return fmt.Errorf("%d sends are in progress and %d sets are waiting, want %d to %d, and the rest of %d",
						got, held, tt.least, tt.atOnce, tt.count)
				}
				return nil
			})
			if got := f.most.Load(); got > int64(tt.atOnce) {
				t.Errorf("%d sends were in progress at once, want at most %d", got, tt.atOnce)
			}
			close(f.respond)
			testkit.Eventually(t, 30*time.Second, func(context.Context) error {
				if got := f.taken.Load(); got != int64(tt.count) {
					return fmt.Errorf("got %d sets, want %d", got, tt.count)
				}
				return nil
			})
			atOnce := tt.atOnce
			if tt.workers < workers {
				atOnce = maxMemberSends // an agent that responds again is no longer limited by slow sends
			}
			if got := f.most.Load(); got > int64(atOnce) {
				t.Errorf("%d sends were in progress at once in the end, want at most %d", got, atOnce)
			}
		})
	}
}

func TestMembersThatDoNotRespondLeaveWorkersToOthers(t *testing.T) {
	const silent, sets, fewWorkers = 20, 100, 10 // each worker would wait for 200 sends, half a second each
	f := &fakeMembers{respond: make(chan struct{})}
	d := startStore(t, f, fewWorkers)
	defer close(f.respond)
	for i := range silent {
		m := d.ready(fmt.Sprint("silent-", i))
		for k := range sets {
			id := fmt.Sprintf("crtb/x%d", k)
			d.Replace(Key{Name: m.name.Name + id}, map[types.NamespacedName]*set.Set{m.name: sized(t, id, 1)})
		}
	}
	testkit.Eventually(t, 2*time.Minute, func(context.Context) error {
		g := d.lock()
		defer d.unlock()
		held := 0
		for _, m := range g.members {
			held += len(m.waiting)
		}
		if sends := int(f.now.Load()); g.queue.Len() > 0 || sends+held != silent*sets {
			return fmt.Errorf("%d sets are being sent, %d waiting and %d queued, want none queued", sends, held, g.queue.Len())
		}
		return nil
	})
	// Each worker may have started a send to a member before the first send was slow.
	const most = silent * max(maxSlowSends, fewWorkers)
	if got := f.now.Load(); got > most {
		t.Errorf("%d sends have occupied a worker, want at most %d, so that others need not wait", got, most)
	}
}

func TestKept(t *testing.T) {
	const id = "secrets/x"
	mine, name := sized(t, id, 1), types.NamespacedName{Namespace: "team", Name: "a"}
	has := map[string]*protocol.SetState{id: {ID: id, Digest: "earlier", Phase: protocol.SetApplied}}
	for behaviour, tt := range map[string]struct {
		wants *set.Set
		has   map[string]*protocol.SetState
		want  *set.Set
	}{
		"the wanted set if the member has any version of it": {mine, has, mine},
		"nothing if the member has no version of it":         {mine, nil, nil},
		"nothing if the wanted set is Unchanged":             {Unchanged(id), has, nil},
		"an absent set until it is removed":                  {Absent(id), has, Absent(id)},
		"nothing if no owner wants it":                       {nil, has, nil},
		"nothing if it was withdrawn":                        {nil, has, nil},
	} {
		t.Run(behaviour, func(t *testing.T) {
			m := &member{name: name, has: tt.has, wants: map[string]*wanted{}}
			if tt.wants != nil {
				m.wants[id] = &wanted{key: Key{Name: "x"}, content: newContent(tt.wants)}
			}
			if behaviour == "nothing if it was withdrawn" {
				m.wants[id] = &wanted{content: newContent(Absent(id))}
			}
			d := &Store{state: guarded{members: map[types.NamespacedName]*member{name: m}}}
			if got := d.Kept(id, name); (got == nil) != (tt.want == nil) || got != nil && got.Digest != tt.want.Digest {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if got := d.Kept(id, types.NamespacedName{Name: "other"}); got != nil {
				t.Errorf("got %+v for an unknown member, want nothing", got)
			}
		})
	}
}

func TestTheLogNamesTheSourceOfTheStore(t *testing.T) {
	f := &fakeMembers{}
	logged := make(chan string, 64)
	log := funcr.New(func(_, args string) {
		if strings.Contains(args, "Starting EventSource") {
			logged <- args
		}
	}, funcr.Options{})
	ctx, stop := context.WithCancel(t.Context())
	d := New(Options{State: f.State, Leading: f.Leading, Pause: time.Millisecond, Log: log})
	var running sync.WaitGroup
	running.Go(func() {
		if err := d.Start(ctx); err != nil {
			t.Errorf("start the store: %v", err)
		}
	})
	defer running.Wait()
	defer stop()
	select {
	case got := <-logged:
		if !strings.Contains(got, `"source"="changes of sets"`) {
			t.Errorf("the store logs %s, want the name of its source", got)
		}
	case <-time.After(time.Minute):
		t.Error("the store logged no source within a minute, want the name of its source")
	}
}
