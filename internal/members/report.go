// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tunnel"
)

// Reports that one agent can make the hub look at. Of those that come faster the hub looks at the newest.
const (
	reportsPerSecond = 1
	reportBurst      = 10
)

// Reports that one tunnel takes. An agent sends one in 200 ms at most; what comes without end is no agent's, and ends
// the tunnel. They are read as they come: what waits in a tunnel is held in memory, a megabyte for each.
const (
	intakePerSecond = 20
	intakeBurst     = 200
)

// watch reads the report of a session until its tunnel ends, and takes the session out then.
func (t *Tunnels) watch(s *session) {
	defer t.table.work.Done()
	defer t.ended(s)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	t.noReports(s, t.readReports(ctx, s))
	<-s.Done()
}

// noReports does what follows of the end of a session's reports.
func (t *Tunnels) noReports(s *session, err error) {
	switch fast := (tooFast{}); {
	case errors.Is(err, ErrReportEnded):
		t.drain(s)
	case errors.Is(err, ErrReportMalformed):
		t.setCause(s, err)
		s.Close()
	case errors.As(err, &fast):
		t.setCause(s, err)
		t.admission.suspend(s.peer.Name(), fast.what)
	case errors.Is(err, errNoReport):
		t.setReport(s, nil, err)
	default: // the tunnel is about to end, and says itself why; or this request alone was broken off
		s.Close()
		<-s.Done()
		if errors.Is(s.Err(), tunnel.ErrClosed) {
			t.setCause(s, fmt.Errorf("%w: %w", ErrReportEnded, err))
		}
	}
}

// errNoReport says that an agent has no report to give.
var errNoReport = errors.New("the agent does not report")

// readReports reads what comes from the agent of a session. Its errors are those of stream.read.
func (t *Tunnels) readReports(ctx context.Context, s *session) error {
	inbox := newLatestReports(func(report *protocol.Report) { t.setReport(s, report, nil) })
	defer inbox.close()
	s.stream.reports = inbox.put
	return s.stream.read(ctx, func() (streamRequest, error) {
		t.table.mu.Lock()
		defer t.table.mu.Unlock()
		return streamRequest{agent: s, subjects: t.followers.subjectsLocked(s.peer.Name())}, nil
	})
}

// latestReports publishes reports at a bounded rate. Of reports that come faster it publishes the newest.
type latestReports struct {
	show func(*protocol.Report)
	pace *rate.Limiter

	mu     sync.Mutex // guards what follows
	newest *protocol.Report
	timer  *time.Timer // runs while newest waits
	closed bool
}

// newLatestReports publishes reports by a function.
func newLatestReports(show func(*protocol.Report)) *latestReports {
	return &latestReports{show: show, pace: rate.NewLimiter(reportsPerSecond, reportBurst)}
}

// put shows a report, at once or when the pace allows it.
func (i *latestReports) put(report *protocol.Report) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.newest == nil && i.pace.Allow() {
		i.show(report)
		return
	}
	if i.newest == nil {
		i.timer = time.AfterFunc(i.pace.Reserve().Delay(), i.flush)
	}
	i.newest = report
}

// flush shows the report that waited.
func (i *latestReports) flush() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.newest != nil && !i.closed {
		i.show(i.newest)
	}
	i.newest = nil
}

// close shows nothing more.
func (i *latestReports) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	if i.timer != nil {
		i.timer.Stop()
	}
}

func (t *Tunnels) setReport(s *session, report *protocol.Report, err error) {
	t.table.mu.Lock()
	s.report, s.reportErr = report, err
	t.table.mu.Unlock()
	t.notices.changed(s.peer.Name())
}

// known is the peer of a session, with its last report. table.mu is held.
func (s *session) known() Peer {
	p := s.peer
	p.Leads = s.report != nil && s.report.Leader
	return p
}

// setCause notes why a session ends, unless that is known.
func (t *Tunnels) setCause(s *session, cause error) {
	t.table.mu.Lock()
	defer t.table.mu.Unlock()
	if s.cause == nil {
		s.cause = cause
	}
}
