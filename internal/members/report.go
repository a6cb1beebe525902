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

// Limits on the rate at which the hub processes the reports from one agent. When reports arrive faster, the hub skips
// all but the latest.
const (
	reportsPerSecond = 1
	reportBurst      = 10
)

// Limits on the reports accepted from one tunnel. An agent sends at most one report every 200 ms. A faster stream does
// not come from a genuine agent, so the tunnel is closed. The hub reads reports as they arrive, because up to one
// megabyte of unread data per tunnel is held in memory.
const (
	intakePerSecond = 20
	intakeBurst     = 200
)

// watch reads a session's reports until its tunnel ends, and then removes the session.
func (t *Tunnels) watch(s *session) {
	defer t.table.work.Done()
	defer t.ended(s)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	t.noReports(s, t.readReports(ctx, s))
	<-s.Done()
}

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
	default: // the end of the tunnel provides the cause, or only the request for reports was aborted
		s.Close()
		<-s.Done()
		if errors.Is(s.Err(), tunnel.ErrClosed) {
			t.setCause(s, fmt.Errorf("%w: %w", ErrReportEnded, err))
		}
	}
}

// errNoReport is returned if an agent does not send reports.
var errNoReport = errors.New("the agent does not report")

// readReports reads reports and events from a session's agent. It returns the error from stream.read.
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

// latestReports publishes reports at a limited rate. When reports arrive faster, it skips all but the latest.
type latestReports struct {
	show func(*protocol.Report)
	pace *rate.Limiter

	mu     sync.Mutex // guards the following fields
	newest *protocol.Report
	timer  *time.Timer // running while newest is waiting to be published
	closed bool
}

func newLatestReports(show func(*protocol.Report)) *latestReports {
	return &latestReports{show: show, pace: rate.NewLimiter(reportsPerSecond, reportBurst)}
}

// put publishes a report, either immediately or as soon as the rate limit allows.
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

func (i *latestReports) flush() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.newest != nil && !i.closed {
		i.show(i.newest)
	}
	i.newest = nil
}

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

// known returns a session's peer, updated from the session's last report. table.mu must be held.
func (s *session) known() Peer {
	p := s.peer
	p.Leads = s.report != nil && s.report.Leader
	return p
}

// setCause records why a session is ending, unless a cause has already been recorded.
func (t *Tunnels) setCause(s *session, cause error) {
	t.table.mu.Lock()
	defer t.table.mu.Unlock()
	if s.cause == nil {
		s.cause = cause
	}
}
