// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/drover-dev/drover/internal/protocol"
)

// When a change is reported. What users wait for is sent at once. What pods request changes all the time, and each report becomes a write
// on the hub.
const (
	firstWithin      = 5 * time.Second        // a first report goes even if something is still unknown
	podsWithin       = 250 * time.Millisecond // a first report waits no longer for pods, once the rest is known
	settle           = 200 * time.Millisecond // changes within it are one
	requestsSettle   = 2 * time.Second
	requestsInterval = time.Minute
)

// publish makes a report whenever one is due, until ctx ends.
func (r *Reporter) publish(ctx context.Context) {
	if !r.awaitFirst(ctx) {
		return
	}
	counted := 0 // the leadership in which requested was counted
	if leadership, known := r.podsKnown(); known {
		counted = leadership
	}
	requested, requestedAt := r.pods.strings(), time.Now()
	r.latest.set(r.build(requested))
	soon, later := stopped(), stopped()
	defer soon.Stop()
	defer later.Stop()
	var soonSet, laterSet bool
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.soon:
			if !soonSet {
				soonSet = true
				soon.Reset(settle)
			}
			continue
		case <-r.later:
			if !laterSet {
				laterSet = true
				later.Reset(max(requestsSettle, time.Until(requestedAt.Add(requestsInterval))))
			}
			continue
		case <-soon.C:
			soonSet = false
			if leadership, known := r.podsKnown(); known && leadership != counted {
				counted, requested, requestedAt = leadership, r.pods.strings(), time.Now()
			}
		case <-later.C:
			laterSet = false
			requested, requestedAt = r.pods.strings(), time.Now()
		}
		r.latest.set(r.build(requested))
	}
}

// awaitFirst returns when there is enough for a first report, and false when ctx ends before.
func (r *Reporter) awaitFirst(ctx context.Context) bool {
	timer := time.NewTimer(firstWithin)
	defer timer.Stop()
	hurry := false
	for {
		enough, pods := r.readiness()
		if enough && pods {
			return true
		}
		if enough && !hurry {
			hurry = true
			timer.Reset(podsWithin)
		}
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-r.soon:
		case <-r.later:
		}
	}
}

// latest is the latest report, for any number of streams.
type latest struct {
	ended chan struct{} // closed when there will be no more

	mu      sync.Mutex // guards the rest
	known   bool
	report  protocol.Report
	changed chan struct{} // closed, and replaced, when streams should look
}

func newLatest() *latest {
	return &latest{changed: make(chan struct{}), ended: make(chan struct{})}
}

// set replaces the report, unless it is the same.
func (l *latest) set(report protocol.Report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known && bytes.Equal(encode(l.report), encode(report)) {
		return
	}
	l.known, l.report = true, report
	l.wake()
}

// touch makes streams look again.
func (l *latest) touch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wake()
}

// wake must be called under mu.
func (l *latest) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// get returns the report, if there is one yet, and a channel that is closed when it is time to look again.
func (l *latest) get() (report protocol.Report, known bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.report, l.known, l.changed
}

// end ends all streams.
func (l *latest) end() { close(l.ended) }

// ServeHTTP answers GET with the latest report at once and each further one when there is one, until the client or the Reporter ends.
func (r *Reporter) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		http.Error(w, "reports are read with GET", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	var sent []byte
	for {
		report, known, changed := r.latest.get()
		report.SettingsDigest = r.options.SettingsDigest() // as of now: it changes between joining and connecting
		if report.Leader {
			report.Deployment, report.Left = r.options.Deployment(), r.options.Left()
		}
		if line := encode(report); known && !bytes.Equal(line, sent) {
			if _, err := w.Write(line); err != nil {
				return // the client is gone
			}
			sent = line
		}
		if err := control.Flush(); err != nil {
			return
		}
		r.read.CompareAndSwap(false, sent != nil)
		select {
		case <-changed:
		case <-r.latest.ended:
			return
		case <-req.Context().Done():
			return
		}
	}
}
