// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/untrusted"
)

// Limits on the events that an agent sends in addition to its reports. They are needed because events are kept in
// memory and trigger reconciles, and the agent may be malicious.
const (
	// maxSets and maxPlans limit the size of a complete report about a subject, in bytes. The size of an event is the
	// size of its line plus eventCost, the overhead of an event in memory and in a queue. Without eventCost, half a
	// million lines of minimum length would be within the limit.
	maxSets, maxPlans = 16 << 20, 4 << 20
	eventCost         = 512
	// setRate and planRate limit how many changes are read per second. setBurst and planBurst are the corresponding
	// bursts.
	setRate, setBurst   = 200, 5000
	planRate, planBurst = 20, 500
	// maxAhead is how long an agent may exceed its rate limits.
	maxAhead = 10 * time.Second
	// wholeEvery and wholeBurst limit complete reports. An agent sends a complete report when it becomes the leader, which
	// can happen only once every few seconds.
	wholeEvery, wholeBurst = 10 * time.Second, 10
)

// usualLine is the size in bytes of each stream's line buffer. The buffer grows for longer lines.
const usualLine = 128

// errRestart is the context cause when a request is canceled to reopen its stream.
var errRestart = errors.New("the stream is opened again")

// tooFast is an ErrTooFast that also says what kind of data the agent sent too fast.
type tooFast struct{ what string }

// Error implements error.
func (e tooFast) Error() string { return ErrTooFast.Error() + ": " + e.what }

// Is reports whether target is ErrTooFast. It is used by errors.Is.
func (e tooFast) Is(target error) bool { return target == ErrTooFast }

// stream reads the lines that one agent sends. Except for restart, its fields may be used only by the goroutine that
// reads.
type stream struct {
	followers *Followers
	name      types.NamespacedName
	reports   func(*protocol.Report) // nil if no reports are requested
	intake    *rate.Limiter          // limits reports
	offers    *reportBytes           // shared by all streams of the member
	lines     *pace                  // limits lines outside complete reports; also shared by the member's streams
	sets      subject[*protocol.SetEvent]
	plans     subject[*protocol.PlanEvent]
	restart   context.CancelCauseFunc // nil while no request is open; guarded by table.mu
}

func newStream(all *Followers, name types.NamespacedName, offers *reportBytes) *stream {
	s := &stream{
		followers: all, name: name, offers: offers, lines: newPace(offers.lines),
		intake: rate.NewLimiter(intakePerSecond, intakeBurst),
	}
	s.sets.bound(&all.following.sets, "changes of sets", maxSets, newPace(rate.NewLimiter(setRate, setBurst)))
	s.plans.bound(&all.following.plans, "changes of plans", maxPlans, newPace(rate.NewLimiter(planRate, planBurst)))
	return s
}

// streamRequest names an agent and the subjects that a stream requests from it.
type streamRequest struct {
	agent    http.RoundTripper
	subjects []string
}

// read reads lines until the stream ends, and reopens the stream whenever it is restarted. The what function returns
// the request to send. The error is ErrReportEnded if the agent ended the stream normally. Otherwise, it is
// ErrReportMalformed, ErrTooFast, errNoReport or an error from the transport.
func (s *stream) read(ctx context.Context, what func() (streamRequest, error)) error {
	for {
		opened, cancel := context.WithCancelCause(ctx)
		s.setRestart(cancel)
		err := s.readOnce(opened, what)
		if !s.restarted(opened, cancel) || ctx.Err() != nil {
			return err
		}
	}
}

// restarted cancels the context of a request, and reports whether a restart had already canceled it.
func (s *stream) restarted(opened context.Context, cancel context.CancelCauseFunc) bool {
	restarted := errors.Is(context.Cause(opened), errRestart)
	s.setRestart(nil)
	cancel(nil)
	return restarted
}

func (s *stream) setRestart(cancel context.CancelCauseFunc) {
	s.followers.table.mu.Lock()
	defer s.followers.table.mu.Unlock()
	s.restart = cancel
}

// readOnce reads the lines of one response. For each member, a goroutine waits in this function. All other work is done
// in separate functions to keep the stacks of the waiting goroutines small. The garbage collector halves a stack if
// less than a quarter of it is in use.
func (s *stream) readOnce(ctx context.Context, what func() (streamRequest, error)) error {
	body, lines, err := s.open(ctx, what)
	if err != nil {
		return err
	}
	defer body.Close()
	defer s.end()
	for lines.Scan() {
		if err := s.line(ctx, lines); err != nil {
			return err
		}
	}
	return reportEnd(lines.Err())
}

// open sends a request for lines. The caller must close the returned body.
func (s *stream) open(ctx context.Context, what func() (streamRequest, error)) (io.Closer, *lines, error) {
	ask, err := what()
	if err != nil {
		return nil, nil, err
	}
	resp, err := Ask(ctx, ask.agent, http.MethodGet, protocol.StreamPath(ask.subjects...), nil)
	if IsStatus(err, http.StatusNotFound) { // an agent that does not serve the path will never report
		return nil, nil, fmt.Errorf("%w: it answered %d to %s", errNoReport, http.StatusNotFound, protocol.PathReport)
	}
	if err != nil {
		return nil, nil, err
	}
	s.sets.begin(ask.subjects, protocol.SubjectSets)
	s.plans.begin(ask.subjects, protocol.SubjectPlans)
	return resp.Body, newLines(resp.Body, usualLine, protocol.MaxLine), nil
}

// reportEnd converts the error from reading a stream into the reason why the stream ended.
func reportEnd(err error) error {
	switch {
	case err == nil:
		return ErrReportEnded
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("%w: a line is longer than %d bytes", ErrReportMalformed, protocol.MaxLine)
	default:
		return err
	}
}

func (s *stream) line(ctx context.Context, read *lines) error {
	line := &protocol.Line{}
	if untrusted.JSON(read.Bytes(), line, untrusted.Large().WithBytes(protocol.MaxLine)) != nil {
		if err := read.Err(); err != nil {
			return err // the line was cut off
		}
		return fmt.Errorf("%w: a line is not a report", ErrReportMalformed) // the cause would quote the line
	}
	return s.take(ctx, line, len(read.Bytes()))
}

func (s *stream) take(ctx context.Context, line *protocol.Line, size int) error {
	line.Bound()
	switch set, plan := line.Set, line.Plan; {
	case set != nil && !set.Valid():
		return fmt.Errorf("%w: a line names no set", ErrReportMalformed)
	case set != nil:
		return s.sets.take(ctx, s, set, eventMark{set.Synced, set.Stopped, size + eventCost})
	case plan != nil:
		return s.plans.take(ctx, s, plan, eventMark{plan.Synced, plan.Stopped, size + eventCost})
	case !s.intake.Allow():
		return tooFast{"reports"}
	}
	if err := s.ahead(ctx, s.lines, 1+size/lineUnit, "reports"); err != nil || s.reports == nil {
		return err
	}
	if line.Report == nil {
		line.Report = &protocol.Report{}
	}
	s.reports(line.Report)
	return nil
}

// ahead waits until a pace's rate limit allows a line.
func (s *stream) ahead(ctx context.Context, p *pace, n int, what string) error {
	err := p.wait(ctx, n)
	if errors.Is(err, ErrTooFast) {
		return tooFast{what}
	}
	return err
}

// end records that this stream no longer counts for the member.
func (s *stream) end() {
	s.sets.stop(s)
	s.plans.stop(s)
}

// subject is one of the subjects that a stream carries in addition to reports.
type subject[E any] struct {
	topic  *topic[E]
	what   string // the kind of data, for a tooFast error
	most   int    // maximum size of a complete report, in bytes
	pace   *pace
	wholes *rate.Limiter // limits the rate of complete reports

	asked  bool
	synced bool
	offer  []E // the events received so far of an incomplete report
	bytes  int // the size of offer
}

// eventMark describes the effect of an event on the stream, and the cost of the event in bytes.
type eventMark struct {
	synced, stopped bool
	size            int
}

func (s *subject[E]) bound(topic *topic[E], what string, most int, pace *pace) {
	s.topic, s.what, s.most, s.pace = topic, what, most, pace
	s.wholes = rate.NewLimiter(rate.Every(wholeEvery), wholeBurst)
}

func (s *subject[E]) begin(asked []string, subject string) {
	s.asked, s.synced = slices.Contains(asked, subject), false
}

func (s *subject[E]) take(ctx context.Context, from *stream, event E, m eventMark) error {
	switch {
	case !s.asked:
		return fmt.Errorf("%w: a line belongs to a subject that was not requested", ErrReportMalformed)
	case m.stopped:
		if !s.wholes.Allow() {
			return tooFast{s.what}
		}
		s.stop(from)
	case s.synced:
		if err := from.ahead(ctx, s.pace, 1, s.what); err != nil {
			return err
		}
		if err := from.ahead(ctx, from.lines, 1+m.size/lineUnit, s.what); err != nil {
			return err
		}
		s.topic.event(from, event)
	case m.synced:
		s.synced = true
		s.topic.synced(from, s.offer)
		s.drop(from)
	default:
		if s.bytes+m.size > s.most {
			return fmt.Errorf("%w: the agent reports more than %d bytes at once", ErrReportMalformed, s.most)
		}
		if !from.offers.take(m.size) {
			return tooFast{s.what}
		}
		s.bytes += m.size
		s.offer = append(s.offer, event)
	}
	return nil
}

// stop records that changes may be missed from now on. If this stream counted for its member, stop reopens the member's
// other streams to replace it.
func (s *subject[E]) stop(from *stream) {
	s.drop(from)
	if s.synced && s.topic.stopped(from) {
		from.followers.restart(from)
	}
	s.synced = false
}

// drop discards the events of an incomplete report.
func (s *subject[E]) drop(from *stream) {
	from.offers.give(s.bytes)
	s.offer, s.bytes = nil, 0
}

// restart reopens the member's other streams.
func (s *Followers) restart(but *stream) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	if m := s.table.members[but.name]; m != nil {
		m.restartLocked(but)
	}
}

// restartLocked reopens the streams of a member, except the given ones.
func (m *member) restartLocked(but ...*stream) {
	var all []*stream
	for _, s := range m.sessions {
		all = append(all, s.stream)
	}
	if m.far != nil {
		all = append(all, m.far.stream)
	}
	for _, s := range all {
		if s.restart != nil && !slices.Contains(but, s) {
			s.restart(errRestart)
		}
	}
}
