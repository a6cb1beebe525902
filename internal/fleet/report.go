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

	"github.com/drover-dev/drover/internal/protocol"
)

// agentURL is the base of requests to an agent. The host is never resolved: the tunnel leads to the agent.
const agentURL = "http://agent"

// watch reads the report of a session until its tunnel ends, and takes the session out then.
func (r *Registry) watch(s *session) {
	defer r.sessions.Done()
	defer r.ended(s)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	err := r.readReports(ctx, s)
	select {
	case <-s.Done():
		return
	default:
	}
	r.setReport(s, nil, err)
	if errors.Is(err, ErrReportEnded) {
		r.mu.Lock()
		s.cause = err
		r.mu.Unlock()
		s.Close()
	}
	<-s.Done()
}

// readReports returns ErrReportEnded when a report that had begun ends, and any other error when it could not be had at all.
func (r *Registry) readReports(ctx context.Context, s *session) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, agentURL+protocol.PathReport, nil)
	if err != nil {
		return err
	}
	resp, err := s.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrReportEnded, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the agent answers %d to %s", resp.StatusCode, protocol.PathReport)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, protocol.MaxBody)
	for lines.Scan() {
		report := &protocol.Report{}
		if err := json.Unmarshal(lines.Bytes(), report); err != nil {
			return fmt.Errorf("%w: malformed line", ErrReportEnded)
		}
		r.setReport(s, report, nil)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrReportEnded, err)
	}
	return fmt.Errorf("%w: %w", ErrReportEnded, io.EOF)
}

func (r *Registry) setReport(s *session, report *protocol.Report, err error) {
	r.mu.Lock()
	s.report, s.reportErr = report, err
	r.mu.Unlock()
	r.notify(s.peer.Name())
}
