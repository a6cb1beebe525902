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

// Reports that one tunnel takes. An agent sends one in 200 ms at most; what comes without end is no agent's, and ends the tunnel. They are read as
// they come: what waits in a tunnel is held in memory, a megabyte for each.
const (
	intakePerSecond = 20
	intakeBurst     = 200
)

// watch reads the report of a session until its tunnel ends, and takes the session out then.
func (r *Registry) watch(s *session) {
	defer r.sessions.Done()
	defer r.ended(s)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r.noReports(s, r.readReports(ctx, s))
	<-s.Done()
}

// noReports does what follows of the end of a session's reports.
func (r *Registry) noReports(s *session, err error) {
	switch fast := (tooFast{}); {
	case errors.Is(err, ErrReportEnded):
		r.drain(s)
	case errors.Is(err, ErrReportMalformed):
		r.setCause(s, err)
		s.Close()
	case errors.As(err, &fast):
		r.setCause(s, err)
		r.TooFast(s.peer.Name(), fast.what)
	case errors.Is(err, errNoReport):
		r.setReport(s, nil, err)
	default: // the tunnel is about to end, and says itself why; or this request alone was broken off
		s.Close()
		<-s.Done()
		if errors.Is(s.Err(), tunnel.ErrClosed) {
			r.setCause(s, fmt.Errorf("%w: %w", ErrReportEnded, err))
		}
	}
}

// errNoReport says that an agent has no report to give.
var errNoReport = errors.New("the agent does not report")

// readReports reads what comes from the agent of a session. Its errors are those of stream.read.
func (r *Registry) readReports(ctx context.Context, s *session) error {
	inbox := newLatestReports(func(report *protocol.Report) { r.setReport(s, report, nil) })
	defer inbox.close()
	s.stream.reports = inbox.put
	return s.stream.read(ctx, func() (streamRequest, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return streamRequest{agent: s, subjects: r.subjectsLocked(s.peer.Name())}, nil
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

func (r *Registry) setReport(s *session, report *protocol.Report, err error) {
	r.mu.Lock()
	s.report, s.reportErr = report, err
	r.mu.Unlock()
	r.changed(s.peer.Name())
}

// known is the peer of a session, with what it has reported. Registry.mu is held.
func (s *session) known() Peer {
	p := s.peer
	p.Leads = s.report != nil && s.report.Leader
	return p
}

// setCause notes why a session ends, unless that is known.
func (r *Registry) setCause(s *session, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.cause == nil {
		s.cause = cause
	}
}
