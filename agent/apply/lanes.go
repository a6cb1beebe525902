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
	// quickLane bounds the writes in flight that are not overdue, and slowLane the overdue ones. API servers count both
	// against the agent.
	quickLane = 16
	slowLane  = 48
	// probeLane is how much of the slow lane may be taken by writes to places that are known to hang.
	probeLane = 32
	// overdue is how long a write stays in the quick lane.
	overdue = 200 * time.Millisecond
	// hangTime is when a place where a write is not answered counts as one that hangs.
	hangTime = 2 * time.Second
	// writeTimeout bounds a write. An admission webhook that fails open after its default timeout, 10 s, leaves time for
	// the write.
	writeTimeout = 15 * time.Second
	// troubleMemory is how long a place that hangs is remembered after the last write to it.
	troubleMemory = 10 * time.Minute
)

// place is where a write goes: a namespace, or an object that is in none. Admission webhooks hang for some places and
// not for others.
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
	return fmt.Sprintf("the API server does not answer when %s is written to: see the admission webhooks of this cluster",
		e.place)
}

// lanes admits writes, so that those that hang do not delay writes to other places.
//
// A write begins in the quick lane. When it is overdue, it moves to the slow lane; if that is full, the write is given
// up. Other writes to its place wait until it is answered. When that takes hangTime, the place hangs: writes to it are
// refused, except for one at a time, which finds out whether the place still hangs.
type lanes struct {
	quick, slow chan struct{}
	// recovered is called with the ids of the sets that were refused at a place, when the place answers.
	recovered func(ids []string)

	mu      sync.Mutex // guards what follows
	trouble map[string]*trouble
	probes  int // writes to places that hang
}

// trouble is the state of a place where a write is overdue, or was when it ended.
type trouble struct {
	running int // overdue writes
	hangs   bool
	again   time.Time       // when the next write may find out whether it still hangs
	refused map[string]bool // ids of sets
	changed chan struct{}   // closed when the place hangs or answers
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
	trouble *trouble // nil while it is not overdue
	probe   bool
	given   bool // up, because the slow lane was full
	ended   bool
	timer   *time.Timer
}

// do runs a write to a place for a set when the lanes admit it. The error is a hangingError if the place hangs.
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

// admit decides about a write to a place: it begins as a probe, waits, or is refused. If all results are nil, it may
// begin in the quick lane.
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

// run runs a write that has a place in a lane.
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

// delay moves a write that is overdue to the slow lane, or gives it up.
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

// hang must be called under lanes.mu.
func (t *trouble) hang(again time.Time) {
	t.again = again
	if !t.hangs {
		t.hangs = true
		close(t.changed)
	}
}

// end takes a write out of its lane. Its place hangs if the write failed after hangTime, or was given up. stopped says
// that its caller has left.
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
		case l.trouble[w.place] != t: // it has answered another write
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
