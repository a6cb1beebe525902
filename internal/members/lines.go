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

// ErrTooFast ends a stream on which an agent sends faster than the hub reads.
var ErrTooFast = errors.New("the agent sends faster than the hub lets it")

// lines reads the lines that an agent sends. It is a bufio.Scanner that gives back what a long line took: of thousands
// of members each may send one.
type lines struct {
	reader *bufio.Reader
	most   int
	long   []byte // what is read so far of a line that is longer than the reader's buffer
	line   []byte
	err    error
}

// Newlines reads lines of at most so many bytes. It keeps a buffer of usual bytes.
func newLines(r io.Reader, usual, most int) *lines {
	return &lines{reader: bufio.NewReaderSize(r, usual), most: most}
}

// Scan reads the next line and reports whether there is one. A last line without an end counts.
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

// Bytes is the line that Scan read. It is good until the next Scan.
func (l *lines) Bytes() []byte { return l.line }

// Err is why there is no line any more, nil for an end that is one.
func (l *lines) Err() error {
	if errors.Is(l.err, io.EOF) {
		return nil
	}
	return l.err
}

// pace is how fast the lines of one stream are read on. Whoever sends faster is held back by the stream's window, which
// costs memory: so that lasts for some time only.
type pace struct {
	limiter *rate.Limiter
	behind  time.Time // since when the agent has been held back without a break; zero if it is not
}

// newPace lets pass what a limiter lets, which several may share. It holds an agent back for maxAhead.
func newPace(limiter *rate.Limiter) *pace { return &pace{limiter: limiter} }

// wait returns when a line that costs n may be read on, ErrTooFast if the agent has run ahead for too long, or the
// error of ctx.
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
