// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"
)

const (
	// quickLane is the maximum number of writes in flight that are not overdue, and slowLane is the maximum number of
	// overdue writes. API servers count all of these writes against the limit for the agent.
	quickLane = 16
	slowLane  = 48
	// probeLane is the maximum number of writes in the slow lane that probe places that hang.
	probeLane = 32
	// overdue is how long a write may stay in the quick lane.
	overdue = 200 * time.Millisecond
	// hangTime is how long a write may wait for a response before its place counts as hanging.
	hangTime = 2 * time.Second
	// writeTimeout is the timeout of a write. It leaves enough time for the write even if an admission webhook fails
	// open after its default timeout of 10 s.
	writeTimeout = 15 * time.Second
	// troubleMemory is how long a hanging place is remembered after the last write to that place.
	troubleMemory = 10 * time.Minute
)

// place returns the destination of a write: a namespace, or a cluster-scoped object. Admission webhooks may hang for
// some places and not for others.
func (r ref) place() string {
	switch {
	case r.kind == kindNamespace:
		return "namespace " + r.name
	case r.namespace != "":
		return "namespace " + r.namespace
	}
	return r.String()
}

// hangingError is returned for a write to a place that hangs.
type hangingError struct{ place string }

func (e *hangingError) Error() string {
	return fmt.Sprintf("the API server does not answer writes to %s: check the admission webhooks of this cluster",
		e.place)
}

// lanes controls when writes may start, so that writes that hang do not delay writes to other places.
//
// A write starts in the quick lane. When it is overdue, it moves to the slow lane. If the slow lane is full, the write
// is canceled. Other writes to the same place wait for the response to an overdue write. If there is no response after
// hangTime, the place counts as hanging. Writes to such a place are refused, except for one write at a time that probes
// whether the place still hangs.
type lanes struct {
	quick, slow chan struct{}
	// recovered is called when a place responds again. It receives the IDs of the sets whose writes to that place were
	// refused.
	recovered func(ids []string)

	mu      sync.Mutex // guards the fields below
	trouble map[string]*trouble
	probes  int // writes to places that hang
}

// trouble is the state of a place that has an overdue write, or whose last write was overdue when it ended.
type trouble struct {
	running int // overdue writes
	hangs   bool
	again   time.Time       // when the next write may check whether the place still hangs
	refused map[string]bool // set IDs
	changed chan struct{}   // closed when the place hangs or responds
}

func newLanes(recovered func(ids []string)) *lanes {
	return &lanes{
		quick: make(chan struct{}, quickLane), slow: make(chan struct{}, slowLane),
		recovered: recovered, trouble: map[string]*trouble{},
	}
}

// admitted is a write in a lane. lanes.mu guards it.
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

// do runs a write to a place for a set as soon as the lanes admit the write. The error is a hangingError if the place
// hangs.
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

// admit decides whether a write to a place starts as a probe, waits, or is refused. If all results are nil, the write
// may start in the quick lane.
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

// run runs a write that a lane has admitted.
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

// hang records that the place of a write hangs.
func (l *lanes) hang(w *admitted) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !w.ended && l.trouble[w.place] == w.trouble {
		w.trouble.hang(time.Now())
	}
}

// hang sets the place's state to hanging. The caller must hold lanes.mu.
func (t *trouble) hang(again time.Time) {
	t.again = again
	if !t.hangs {
		t.hangs = true
		close(t.changed)
	}
}

// end takes a write out of its lane. The place counts as hanging if the write failed after hangTime or was canceled by
// delay. stopped is true if the caller's context has ended.
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
