// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"time"

	"golang.org/x/time/rate"
)

// ErrTooFast is returned when a stream is ended because its agent sends faster than the hub allows.
var ErrTooFast = errors.New("the agent sends faster than the hub allows")

// lines reads the lines that an agent sends. It resembles bufio.Scanner, but releases the memory of a long line,
// because each of thousands of members may send one.
type lines struct {
	reader *bufio.Reader
	most   int
	long   []byte // the part that was read so far of a line longer than the reader's buffer
	line   []byte
	err    error
}

// newLines returns a reader of lines of up to most bytes each. The reader has a buffer of usual bytes.
func newLines(r io.Reader, usual, most int) *lines {
	return &lines{reader: bufio.NewReaderSize(r, usual), most: most}
}

// Scan reads the next line and reports whether there was one. A final line without a line break counts as well.
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

// Bytes returns the line that Scan has read. It is valid until the next call of Scan.
func (l *lines) Bytes() []byte { return l.line }

// Err returns why there are no more lines. It returns nil at the end of the input.
func (l *lines) Err() error {
	if errors.Is(l.err, io.EOF) {
		return nil
	}
	return l.err
}

// pace limits how fast the lines of one stream are read. An agent that sends faster is held back by the stream's flow
// control window. Holding an agent back costs memory, so it is done only for a limited time.
type pace struct {
	limiter *rate.Limiter
	behind  time.Time // when the agent started to be held back continuously; zero if it is not held back
}

// newPace returns a pace that uses a limiter's rate. Several streams can share a limiter. It holds an agent back for at
// most maxAhead.
func newPace(limiter *rate.Limiter) *pace { return &pace{limiter: limiter} }

// wait returns nil when a line that costs n can be processed, ErrTooFast if the agent has exceeded the rate for too
// long, or the error of ctx.
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
