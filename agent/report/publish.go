// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"time"

	"github.com/drover-dev/drover/internal/protocol"
)

// Delays before a change is reported. Changes that users wait for are sent immediately. Other changes are delayed,
// because pods' resource requests change constantly, and each report causes a write on the hub.
const (
	firstWithin      = 5 * time.Second        // after this time, the first report is sent even if some data is unknown
	podsWithin       = 250 * time.Millisecond // how long the first report waits for pods once all other data is known
	settle           = 200 * time.Millisecond // changes within this time are combined into one report
	requestsSettle   = 2 * time.Second
	requestsInterval = time.Minute
)

// publish sends a report whenever one is due, until ctx is done.
func (r *Reporter) publish(ctx context.Context) {
	if !r.awaitFirst(ctx) {
		return
	}
	counted := 0 // the number of the leadership during which requested was computed
	if leadership, known := r.podsKnown(); known {
		counted = leadership
	}
	requested, requestedAt := r.pods.strings(), time.Now()
	r.set(r.build(requested))
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
		r.set(r.build(requested))
	}
}

// awaitFirst returns when enough is known for a first report. It returns false if ctx is done first.
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

func (r *Reporter) set(report protocol.Report) {
	r.publishing.Lock()
	defer r.publishing.Unlock()
	r.latest = &report
	r.putLocked()
}

// Touch publishes the report again. Call it when the settings or the Deployment may have changed.
func (r *Reporter) Touch() {
	r.publishing.Lock()
	defer r.publishing.Unlock()
	if r.latest != nil {
		r.putLocked()
	}
}

// putLocked publishes the latest report together with the fields that other parts of the agent provide.
func (r *Reporter) putLocked() {
	report := *r.latest
	report.SettingsDigest, report.DirectAuthority = r.options.SettingsDigest(), r.options.DirectAuthority()
	if report.Leader {
		report.Deployment, report.Left, report.Unclaimed = r.options.Deployment(), r.options.Left(), r.options.Unclaimed()
	}
	r.topic.Put("", &protocol.Line{Report: &report})
	r.topic.Sync()
}
