// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/protocol"
)

// Bounds on a Record, which another replica sent that may be of another version.
const (
	maxTunnels = 16
	maxText    = 1 << 10
	maxID      = 256
)

// Record is what one replica knows of one member by itself, for the others. One without content says that it knows
// nothing any more.
type Record struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Tunnels that end there, but for those that carry nothing new.
	Tunnels []Peer `json:"tunnels,omitempty"`
	// Report is what the agent at the far end of the tunnel with the epoch Reported says, and ReportErr why it says
	// nothing.
	Report    *protocol.Report `json:"report,omitempty"`
	ReportErr string           `json:"reportErr,omitempty"`
	Reported  int64            `json:"reported,omitempty"`
	// Loss is how the last tunnel there ended.
	Loss    *Loss      `json:"loss,omitempty"`
	Refusal *Rejection `json:"refusal,omitempty"`
}

// Loss is when and why the last tunnel of a member ended at one replica.
type Loss struct {
	At      time.Time `json:"at"`
	Because string    `json:"because,omitempty"`
	// Left reports whether the agent disconnected by itself.
	Left bool `json:"left,omitempty"`
}

// Cluster that the record is of.
func (r *Record) Cluster() types.NamespacedName {
	return types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
}

// empty reports whether it says nothing.
func (r *Record) empty() bool {
	return len(r.Tunnels) == 0 && r.Loss == nil && r.Refusal == nil
}

// Bound cuts a record to size: texts to 1 KiB, tunnels to the first 16, the report as Report.Bound does. Tunnels
// without an ID or of another member are left out.
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
		r.Refusal.Reason, r.Refusal.Message = protocol.Cut(r.Refusal.Reason, maxText), protocol.Cut(r.Refusal.Message, maxText)
	}
}

// notAfter puts what is said to have happened after now, by a clock that is ahead, to now: who waits for a while after
// a loss would wait for as long as the clocks differ.
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

func (r *Record) said() agentState {
	said := agentState{report: r.Report, epoch: r.Reported}
	if r.ReportErr != "" {
		said.err = errors.New(r.ReportErr)
	}
	return said
}

// recordLocked returns what this replica knows of a member by itself.
func (t *table) recordLocked(name types.NamespacedName) Record {
	record := Record{Namespace: name.Namespace, Name: name.Name}
	m := t.members[name]
	if m == nil {
		return record
	}
	for _, s := range m.sessions {
		record.Tunnels = append(record.Tunnels, s.known())
	}
	said := m.stateHere()
	record.Report, record.ReportErr, record.Reported = said.report, errorText(said.err), said.epoch
	if !m.loss.at.IsZero() {
		record.Loss = &Loss{At: m.loss.at, Because: errorText(m.loss.because), Left: errors.Is(m.loss.because, ErrReportEnded)}
	}
	if m.refusal != nil && t.now().Sub(m.refusal.At) < RefusalMemory {
		refusal := *m.refusal
		record.Refusal = &refusal
	}
	return record
}

// Replicas tells the other replicas of the hub about the members here, by a Feed for each, and takes in their members,
// by a Mirror of each.
type Replicas struct {
	table   *table
	notices *Notices
}

// Feed reports the changes here. However slow its reader is, it holds no more than the name of each member.
type Feed struct {
	notices *Notices
	wake    chan struct{}
	dirty   map[types.NamespacedName]struct{} // table.mu guards it
}

// Feed makes a feed that begins with all members. Close ends it.
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

// Wake has a value when there may be more to take.
func (f *Feed) Wake() <-chan struct{} { return f.wake }

// Take returns the present state of at most n members that have changed since they were taken last, none if none has.
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

// notifyFeedsLocked notes that something changed here. The end of all tunnels with the registry is not reported: agents
// are back elsewhere sooner than the others notice that this replica is gone.
func (n *Notices) notifyFeedsLocked(name types.NamespacedName) {
	if n.table.closed {
		return
	}
	for f := range n.feeds {
		f.dirty[name] = struct{}{}
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
}
