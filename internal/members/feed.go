// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/await"
	"github.com/drover-dev/drover/internal/protocol"
)

// Limits on a Record. They are needed because a Record comes from another replica, and that replica may run a different
// version.
const (
	maxTunnels = 16
	maxText    = 1 << 10
	maxID      = 256
)

// Record contains what one replica knows about a member from its own tunnels. Replicas send each other their records. A
// Record without content means that the replica has no more information about the member.
type Record struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Tunnels are the tunnels that end at the sending replica. Draining tunnels are omitted.
	Tunnels []Peer `json:"tunnels,omitempty"`
	// Report is the report that the agent sent through the tunnel whose epoch is Reported. If there is no report,
	// ReportErr explains why.
	Report    *protocol.Report `json:"report,omitempty"`
	ReportErr string           `json:"reportErr,omitempty"`
	Reported  int64            `json:"reported,omitempty"`
	// Loss describes how the last tunnel to the sending replica ended.
	Loss    *Loss      `json:"loss,omitempty"`
	Refusal *Rejection `json:"refusal,omitempty"`
}

// Loss records when and why a member's last tunnel to one replica ended.
type Loss struct {
	At      time.Time `json:"at"`
	Because string    `json:"because,omitempty"`
	// Left is true if the agent disconnected on its own initiative.
	Left bool `json:"left,omitempty"`
}

// Cluster returns the name of the member that the record describes.
func (r *Record) Cluster() types.NamespacedName {
	return types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
}

// empty reports whether the record has no content.
func (r *Record) empty() bool {
	return len(r.Tunnels) == 0 && r.Loss == nil && r.Refusal == nil
}

// Bound limits the size of a record. It truncates strings to 1 KiB, keeps only the first 16 tunnels, and calls
// Report.Bound. It also removes tunnels that have no ID or belong to another member.
func (r *Record) Bound() {
	cluster := r.Cluster()
	r.Tunnels = slices.DeleteFunc(r.Tunnels, func(p Peer) bool {
		long := max(len(p.ID), len(p.Key), len(p.Instance), len(p.TokenID), len(p.Cluster.UID)) > maxID
		return p.ID == "" || long || p.Name() != cluster
	})
	r.Tunnels = slices.Clone(r.Tunnels[:min(len(r.Tunnels), maxTunnels)])
	r.ReportErr = protocol.Cut(r.ReportErr, maxText)
	if r.Report != nil {
		r.Report.Bound()
	}
	if r.Loss != nil {
		r.Loss.Because = protocol.Cut(r.Loss.Because, maxText)
	}
	if r.Refusal != nil {
		r.Refusal.Reason = protocol.Cut(r.Refusal.Reason, maxText)
		r.Refusal.Message = protocol.Cut(r.Refusal.Message, maxText)
	}
}

// notAfter replaces times in the future with the current time. Such times occur if the other replica's clock is ahead.
// Without the replacement, a caller that waits for a fixed time after a loss would wait too long.
func (r *Record) notAfter(now time.Time) {
	if r.Loss != nil && r.Loss.At.After(now) {
		loss := *r.Loss
		loss.At = now
		r.Loss = &loss
	}
	if r.Refusal != nil && r.Refusal.At.After(now) {
		refused := *r.Refusal
		refused.At = now
		r.Refusal = &refused
	}
}

func (r *Record) state() agentState {
	state := agentState{report: r.Report, epoch: r.Reported}
	if r.ReportErr != "" {
		state.err = errors.New(r.ReportErr)
	}
	return state
}

// recordLocked returns this replica's record of a member.
func (t *table) recordLocked(name types.NamespacedName) Record {
	record := Record{Namespace: name.Namespace, Name: name.Name}
	m := t.members[name]
	if m == nil {
		return record
	}
	for _, s := range m.sessions {
		record.Tunnels = append(record.Tunnels, s.known())
	}
	state := m.stateHere()
	record.Report, record.ReportErr, record.Reported = state.report, errorText(state.err), state.epoch
	if !m.loss.at.IsZero() {
		left := errors.Is(m.loss.because, ErrReportEnded)
		record.Loss = &Loss{At: m.loss.at, Because: errorText(m.loss.because), Left: left}
	}
	if m.refusal != nil && t.now().Sub(m.refusal.At) < RefusalMemory {
		refusal := *m.refusal
		record.Refusal = &refusal
	}
	return record
}

// Replicas sends the state of the members that are connected to this replica to the hub's other replicas. Each of them
// reads a Feed. Replicas also holds the state of the members that are connected to other replicas, in one Mirror per
// replica.
type Replicas struct {
	table   *table
	notices *Notices
}

// Feed reports which members have changed on this replica. It holds each member's name at most once, even if the names
// are read slowly.
type Feed struct {
	notices *Notices
	wake    chan struct{}
	dirty   map[types.NamespacedName]struct{} // guarded by table.mu
}

// Feed returns a new feed. The feed first reports all members. The caller must close it.
func (r *Replicas) Feed() *Feed {
	f := &Feed{notices: r.notices, wake: make(chan struct{}, 1), dirty: map[types.NamespacedName]struct{}{}}
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	for name := range r.table.members {
		if record := r.table.recordLocked(name); !record.empty() {
			f.dirty[name] = struct{}{}
		}
	}
	r.notices.feeds[f] = struct{}{}
	return f
}

// Wake returns a channel that signals when Take may have records to return.
func (f *Feed) Wake() <-chan struct{} { return f.wake }

// Take returns the current state of at most n members that have changed since Take last returned them.
func (f *Feed) Take(n int) []Record {
	f.notices.table.mu.Lock()
	defer f.notices.table.mu.Unlock()
	records := make([]Record, 0, min(n, len(f.dirty)))
	for name := range f.dirty {
		if len(records) == n {
			break
		}
		delete(f.dirty, name)
		records = append(records, f.notices.table.recordLocked(name))
	}
	return records
}

// Close ends the feed.
func (f *Feed) Close() {
	f.notices.table.mu.Lock()
	defer f.notices.table.mu.Unlock()
	delete(f.notices.feeds, f)
}

// notifyFeedsLocked records that a member has changed on this replica. While the registry is closing, the end of a
// tunnel is not recorded, because agents connect to another replica before the other replicas notice that this replica
// is gone.
func (n *Notices) notifyFeedsLocked(name types.NamespacedName) {
	if n.table.closed {
		return
	}
	for f := range n.feeds {
		f.dirty[name] = struct{}{}
		await.Signal(f.wake)
	}
}
