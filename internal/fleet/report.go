// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"golang.org/x/time/rate"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tunnel"
)

// agentURL is the base of requests to an agent. The host is never resolved: the tunnel leads to the agent.
const agentURL = "http://agent"

// Reports that one agent can make the hub look at. One that says more waits: nothing is lost, the tunnel holds it back.
const (
	reportsPerSecond = 1
	reportBurst      = 10
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

// readReports returns ErrReportEnded when the agent ended a report well, ErrReportMalformed, errNoReport, or the tunnel's error.
func (r *Registry) readReports(ctx context.Context, s *session) error {
	body, err := openReport(ctx, s)
	if err != nil {
		return err
	}
	defer body.Close()
	limiter := rate.NewLimiter(reportsPerSecond, reportBurst)
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 0, usualReport), protocol.MaxReport)
	for lines.Scan() {
		if err := r.takeReport(s, lines); err != nil {
			return err
		}
		if err := limiter.Wait(ctx); err != nil {
			return err
		}
	}
	return reportEnd(lines.Err())
}

// takeReport reads one line of a report.
func (r *Registry) takeReport(s *session, lines *bufio.Scanner) error {
	report := &protocol.Report{}
	if json.Unmarshal(lines.Bytes(), report) != nil {
		if err := lines.Err(); err != nil {
			return err // cut off in the middle of the line
		}
		return fmt.Errorf("%w: a line is no report", ErrReportMalformed) // the cause quotes the line
	}
	report.Bound()
	r.setReport(s, report, nil)
	return nil
}

// reportEnd says what it means that a report ended with err.
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
