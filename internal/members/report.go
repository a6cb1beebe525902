// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tunnel"
)

// agentURL is the base of requests to an agent. The host is never resolved: the tunnel leads to the agent.
const agentURL = "http://agent"

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

// usualReport is the size of the buffer that each tunnel keeps for its next report, in bytes. It grows for a larger one.
const usualReport = 1 << 10

// watch reads the report of a session until its tunnel ends, and takes the session out then.
func (r *Registry) watch(s *session) {
	defer r.sessions.Done()
	defer r.ended(s)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	switch err := r.readReports(ctx, s); {
	case errors.Is(err, ErrReportEnded):
		r.drain(s)
	case errors.Is(err, ErrReportMalformed):
		r.blame(s, err)
		s.Close()
	case errors.Is(err, ErrTooFast):
		r.blame(s, err)
		r.TooFast(s.peer.Name(), "reports")
	case errors.Is(err, errNoReport):
		r.setReport(s, nil, err)
	default: // the tunnel is about to end, and says itself why; or this request alone was broken off
		s.Close()
		<-s.Done()
		if errors.Is(s.Err(), tunnel.ErrClosed) {
			r.blame(s, fmt.Errorf("%w: %w", ErrReportEnded, err))
		}
	}
	<-s.Done()
}

// errNoReport says that an agent has no report to give.
var errNoReport = errors.New("the agent does not report")

// readReports returns ErrReportEnded when the agent ended a report well, ErrReportMalformed, ErrTooFast, errNoReport, or the tunnel's error.
func (r *Registry) readReports(ctx context.Context, s *session) error {
	body, err := openReport(ctx, s)
	if err != nil {
		return err
	}
	defer body.Close()
	intake := rate.NewLimiter(intakePerSecond, intakeBurst)
	inbox := &inbox{show: func(report *protocol.Report) { r.setReport(s, report, nil) }, pace: rate.NewLimiter(reportsPerSecond, reportBurst)}
	defer inbox.close()
	lines := NewLines(body, usualReport, protocol.MaxReport)
	for lines.Scan() {
		if !intake.Allow() {
			return ErrTooFast
		}
		report := &protocol.Report{}
		if json.Unmarshal(lines.Bytes(), report) != nil {
			if err := lines.Err(); err != nil {
				return err // cut off in the middle of the line
			}
			return fmt.Errorf("%w: a line is no report", ErrReportMalformed) // the cause quotes the line
		}
		report.Bound()
		inbox.put(report)
	}
	return reportEnd(lines.Err())
}

// inbox shows reports at a pace, and of those that come faster the newest.
type inbox struct {
	show func(*protocol.Report)
	pace *rate.Limiter

	mu     sync.Mutex // guards what follows
	newest *protocol.Report
	timer  *time.Timer // runs while newest waits
	closed bool
}

// put shows a report, at once or when the pace allows it.
func (i *inbox) put(report *protocol.Report) {
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
func (i *inbox) flush() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.newest != nil && !i.closed {
		i.show(i.newest)
	}
	i.newest = nil
}

// close shows nothing more.
func (i *inbox) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	if i.timer != nil {
		i.timer.Stop()
	}
}

// reportEnd returns the reason for the end of a report that ended with err.
func reportEnd(err error) error {
	switch {
	case err == nil:
		return ErrReportEnded
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("%w: a line is longer than %d bytes", ErrReportMalformed, protocol.MaxReport)
	default:
		return err
	}
}

// openReport asks an agent for its report.
func openReport(ctx context.Context, s *session) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, agentURL+protocol.PathReport, nil)
	if err != nil {
		return nil, err
	}
	resp, err := s.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return resp.Body, nil
	case http.StatusNotFound: // an agent that does not know the path never will
		err = fmt.Errorf("%w: it answers %d to %s", errNoReport, resp.StatusCode, protocol.PathReport)
	default:
		err = fmt.Errorf("the agent answers %d to %s", resp.StatusCode, protocol.PathReport)
	}
	_ = resp.Body.Close() // what is wrong is known
	return nil, err
}

func (r *Registry) setReport(s *session, report *protocol.Report, err error) {
	r.mu.Lock()
	s.report, s.reportErr = report, err
	r.mu.Unlock()
	r.changed(s.peer.Name())
}

// blame notes why a session ends, unless that is known.
func (r *Registry) blame(s *session, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.cause == nil {
		s.cause = cause
	}
}
