// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

const (
	// quickLane is the maximum number of concurrent writes that are not yet overdue. slowLane is the maximum number
	// of concurrent writes that are overdue. API servers count both against the agent's concurrency limit.
	quickLane = 16
	slowLane  = 48
	// probeLane is the maximum number of slow-lane writes that may be probes. A probe tests whether a hanging place
	// responds again.
	probeLane = 32
	// overdue is how long a write may stay in the quick lane.
	overdue = 200 * time.Millisecond
	// hangTime is how long a write may wait for a response before its place is considered hanging.
	hangTime = 2 * time.Second
	// writeTimeout is the timeout for one write. It exceeds the default webhook timeout of 10 s, so a write still
	// succeeds if a webhook that fails open does not respond.
	writeTimeout = 15 * time.Second
	// troubleMemory is how long the state of a hanging place is kept in memory after the last write to that place.
	troubleMemory = 10 * time.Minute
)

// place returns the destination of a write, which is a namespace or a cluster-scoped object. An admission webhook may
// hang for some places and respond for others.
func (r ref) place() string {
	switch {
	case r.kind == kindNamespace:
		return "namespace " + r.name
	case r.namespace != "":
		return "namespace " + r.namespace
	}
	return r.String()
}

// hangingError is returned for a write to a place where earlier writes are hanging.
type hangingError struct{ place string }

func (e *hangingError) Error() string {
	return fmt.Sprintf("the API server does not answer writes to %s: check the admission webhooks of this cluster",
		e.place)
}

// lanes limits concurrent writes, so that hanging writes to one place do not delay writes to other places.
//
// A write starts in the quick lane and moves to the slow lane when it is overdue. If the slow lane is full, the overdue
// write is canceled. Other writes to the same place wait until the overdue write ends. If the API server does not
// respond within hangTime, the place counts as hanging. Writes to a hanging place are refused, except for probes. One
// probe at a time checks whether the place still hangs.
type lanes struct {
	quick, slow chan struct{}
	// recovered is called when a place responds again. It receives the IDs of the sets whose writes to that place were
	// refused.
	recovered func(ids []string)

	mu      sync.Mutex // guards the fields below
	trouble map[string]*trouble
	probes  int // number of current writes to hanging places
}

// trouble is the state of a place that has an overdue write, or whose last write was overdue when it ended.
type trouble struct {
	running int // number of overdue writes in progress
	hangs   bool
	again   time.Time       // earliest time of the next probe
	refused map[string]bool // IDs of the sets whose writes were refused
	changed chan struct{}   // closed when the place begins to hang or responds
}

func newLanes(recovered func(ids []string)) *lanes {
	return &lanes{
		quick: make(chan struct{}, quickLane), slow: make(chan struct{}, slowLane),
		recovered: recovered, trouble: map[string]*trouble{},
	}
}

// admitted is a write that a lane has admitted. lanes.mu guards its fields.
type admitted struct {
	place   string
	lane    chan struct{}
	cancel  context.CancelFunc
	began   time.Time
	trouble *trouble // nil until the write is overdue
	probe   bool
	given   bool // canceled because the slow lane was full
	ended   bool
	timer   *time.Timer
}

// do calls write as soon as a lane admits the write. id is the ID of the set that the object belongs to. The error is a
// hangingError if the place hangs.
func (l *lanes) do(ctx context.Context, place, id string, write func(context.Context) error) error {
	for {
		probe, wait, err := l.admit(place, id)
		switch {
		case err != nil:
			return err
		case probe != nil:
			return l.run(ctx, probe, write)
		case wait != nil:
			select {
			case <-wait:
			case <-ctx.Done():
				return ctx.Err()
			}
			continue
		}
		select {
		case l.quick <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		if !l.troubled(place) {
			return l.run(ctx, &admitted{place: place, lane: l.quick}, write)
		}
		<-l.quick
	}
}

// admit decides whether a write to a place starts as a probe, must wait, or is refused. If all results are nil, the
// write may start in the quick lane.
func (l *lanes) admit(place, id string) (probe *admitted, wait <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.trouble[place]
	switch {
	case t == nil:
		return nil, nil, nil
	case !t.hangs:
		return nil, t.changed, nil
	case t.running == 0 && !time.Now().Before(t.again) && l.probes < probeLane:
		select {
		case l.slow <- struct{}{}:
			l.probes++
			t.running++
			return &admitted{place: place, lane: l.slow, trouble: t, probe: true}, nil, nil
		default:
		}
	}
	if id != "" {
		t.refused[id] = true
	}
	return nil, nil, &hangingError{place}
}

func (l *lanes) troubled(place string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trouble[place] != nil
}

func (l *lanes) run(ctx context.Context, w *admitted, write func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	l.mu.Lock()
	w.cancel, w.began = cancel, time.Now()
	if !w.probe {
		w.timer = time.AfterFunc(overdue, func() { l.delay(w) })
	}
	l.mu.Unlock()
	err := write(limited)
	l.end(w, err, ctx.Err() != nil)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return &hangingError{w.place}
	}
	return err
}

// delay moves an overdue write to the slow lane, or cancels it if that lane is full.
func (l *lanes) delay(w *admitted) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.ended {
		return
	}
	t := l.trouble[w.place]
	if t == nil {
		maps.DeleteFunc(l.trouble, func(_ string, t *trouble) bool {
			return t.running == 0 && time.Since(t.again) > troubleMemory
		})
		t = &trouble{refused: map[string]bool{}, changed: make(chan struct{})}
		l.trouble[w.place] = t
	}
	t.running++
	w.trouble = t
	select {
	case l.slow <- struct{}{}:
		<-w.lane
		w.lane = l.slow
		w.timer = time.AfterFunc(hangTime-overdue, func() { l.hang(w) })
	default:
		w.given = true
		w.cancel()
	}
}

// hang marks the place of a write as hanging.
func (l *lanes) hang(w *admitted) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !w.ended && l.trouble[w.place] == w.trouble {
		w.trouble.hang(time.Now())
	}
}

// hang marks the place as hanging until the next probe, which is due at the given time. The caller must hold lanes.mu.
func (t *trouble) hang(again time.Time) {
	t.again = again
	if !t.hangs {
		t.hangs = true
		close(t.changed)
	}
}

// end removes a finished write from its lane. It marks the write's place as hanging if the write failed after hangTime
// or was canceled by delay. stopped is true if the caller's context is done.
func (l *lanes) end(w *admitted, err error, stopped bool) {
	l.mu.Lock()
	w.ended = true
	if w.timer != nil {
		w.timer.Stop()
	}
	<-w.lane
	if w.probe {
		l.probes--
	}
	var ids []string
	if t := w.trouble; t != nil {
		t.running--
		switch took := time.Since(w.began); {
		case l.trouble[w.place] != t: // the place has responded to another write
		case !stopped && err != nil && (w.given || took >= hangTime):
			t.hang(time.Now().Add(max(took, hangTime)))
		case stopped && (t.hangs || t.running > 0):
		default:
			delete(l.trouble, w.place)
			if !t.hangs {
				close(t.changed)
			}
			for id := range t.refused {
				ids = append(ids, id)
			}
		}
	}
	l.mu.Unlock()
	if len(ids) > 0 {
		l.recovered(ids)
	}
}

// newQueue returns a queue of sets that are due for a pass.
func newQueue(now func() time.Time) workqueue.TypedRateLimitingInterface[string] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, maxRetry),
		workqueue.TypedRateLimitingQueueConfig[string]{Clock: timeOfDay{now: now}},
	)
}

// timeOfDay is a clock that follows changes to the system time. The queue checks it every ten seconds. If the system
// time is set forward past a set's expiry time, the set therefore becomes due soon afterward.
type timeOfDay struct {
	clock.RealClock
	now func() time.Time
}

// Now returns the time without a monotonic reading, because a monotonic reading ignores changes to the system time.
func (c timeOfDay) Now() time.Time { return c.now().Round(0) }
