// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// ErrTooFast is returned when a stream was ended because its agent sends faster than the hub allows.
var ErrTooFast = errors.New("the agent sends faster than the hub allows")

// lines reads an agent's output line by line. Unlike bufio.Scanner, it releases the memory of a long line after use,
// because thousands of members may each send a long line.
type lines struct {
	reader *bufio.Reader
	most   int
	long   []byte // the start of a line that is longer than the reader's buffer
	line   []byte
	err    error
}

// newLines returns a line reader. usual is the size of the reader's buffer, and most is the maximum length of a line,
// both in bytes.
func newLines(r io.Reader, usual, most int) *lines {
	return &lines{reader: bufio.NewReaderSize(r, usual), most: most}
}

// Scan reads the next line and reports whether there was one. The last line does not have to end with a line break.
func (l *lines) Scan() bool {
	l.line, l.long = nil, nil
	for l.err == nil {
		part, err := l.reader.ReadSlice('\n')
		if len(l.long)+len(part) > l.most {
			l.long, l.err = nil, bufio.ErrTooLong
			return false
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			l.long = append(l.long, part...)
			continue
		}
		l.line, l.err = part, err
		if l.long != nil {
			l.long = append(l.long, part...)
			l.line = l.long
		}
		l.line = bytes.TrimRight(l.line, "\r\n")
		return err == nil || len(l.line) > 0
	}
	return false
}

// Bytes returns the line that Scan has read. It is valid until the next call to Scan.
func (l *lines) Bytes() []byte { return l.line }

// Err returns the error that stopped Scan. It returns nil at the end of the input.
func (l *lines) Err() error {
	if errors.Is(l.err, io.EOF) {
		return nil
	}
	return l.err
}

// pace limits how fast the lines of one stream are read. An agent that sends faster is held back by the stream's flow
// control window. Unread data occupies memory, so an agent is held back only for a limited time.
type pace struct {
	limiter *rate.Limiter
	behind  time.Time // when the agent first had to be held back; zero if it is not being held back
}

// newPace returns a pace that uses a limiter's rate. Several streams can share a limiter. The pace holds an agent
// back for at most maxAhead.
func newPace(limiter *rate.Limiter) *pace { return &pace{limiter: limiter} }

// wait returns nil when a line with cost n can be processed. It returns ErrTooFast if the agent has exceeded the rate
// for too long, and the error of ctx if ctx is done first.
func (p *pace) wait(ctx context.Context, n int) error {
	if p.limiter.AllowN(time.Now(), n) {
		p.behind = time.Time{}
		return nil
	}
	now := time.Now()
	if p.behind.IsZero() {
		p.behind = now
	}
	if now.Sub(p.behind) > maxAhead {
		return ErrTooFast
	}
	return p.limiter.WaitN(ctx, n)
}

// Limits on complete reports that are still being received. All streams of one member share these limits. They protect
// the hub from a malicious agent: a member may have twelve tunnels, and each report is held in memory until it is
// complete. An agent that moves to another replica sends complete reports through two tunnels at once.
const (
	maxOffered = 2 * (maxSets + maxPlans)          // bytes at once
	offerRate  = rate.Limit(maxSets+maxPlans) / 10 // bytes per second
)

// Limits on all other lines. All streams of one member share these limits. A line costs one unit, plus one unit per
// KiB, because decoding 64 KiB can take 10 ms of CPU time.
const (
	lineRate, lineBurst = 400, 10_000
	lineUnit            = 1 << 10
)

// reportBytes counts the bytes of complete reports that are still being received, across all streams of a member.
type reportBytes struct {
	pace  *rate.Limiter
	lines *rate.Limiter // limits all other lines

	mu   sync.Mutex // guards held
	held int
}

func newOffers() *reportBytes {
	return &reportBytes{pace: rate.NewLimiter(offerRate, maxOffered), lines: rate.NewLimiter(lineRate, lineBurst)}
}

// take reports whether additional bytes may be held in memory. If so, it counts these bytes.
func (o *reportBytes) take(bytes int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held+bytes > maxOffered || !o.pace.AllowN(time.Now(), bytes) {
		return false
	}
	o.held += bytes
	return true
}

// give records that bytes are no longer held in memory.
func (o *reportBytes) give(bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held -= bytes
}
