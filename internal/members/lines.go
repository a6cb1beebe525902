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

// Lines reads the lines that an agent sends. It is a bufio.Scanner that gives back what a long line took: of thousands of members each may
// send one.
type Lines struct {
	reader *bufio.Reader
	most   int
	long   []byte // what is read so far of a line that is longer than the reader's buffer
	line   []byte
	err    error
}

// NewLines reads lines of at most so many bytes. It keeps a buffer of usual bytes.
func NewLines(r io.Reader, usual, most int) *Lines {
	return &Lines{reader: bufio.NewReaderSize(r, usual), most: most}
}

// Scan reads the next line and reports whether there is one. A last line without an end counts.
func (l *Lines) Scan() bool {
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
func (l *Lines) Bytes() []byte { return l.line }

// Err is why there is no line any more, nil for an end that is one.
func (l *Lines) Err() error {
	if errors.Is(l.err, io.EOF) {
		return nil
	}
	return l.err
}

// Pace is how fast the lines of one stream are read on. Whoever sends faster is held back by the stream's window, which costs memory: so that
// lasts for some time only.
type Pace struct {
	limiter  *rate.Limiter
	patience time.Duration
	behind   time.Time // since when the agent has been held back without a break; zero if it is not
}

// NewPace lets rate lines a second pass, and burst at once. It holds an agent back for patience.
func NewPace(perSecond rate.Limit, burst int, patience time.Duration) *Pace {
	return &Pace{limiter: rate.NewLimiter(perSecond, burst), patience: patience}
}

// Wait returns when the next line may be read on, ErrTooFast if the agent has run ahead for too long, or the error of ctx.
func (p *Pace) Wait(ctx context.Context) error {
	if p.limiter.Allow() {
		p.behind = time.Time{}
		return nil
	}
	now := time.Now()
	if p.behind.IsZero() {
		p.behind = now
	}
	if now.Sub(p.behind) > p.patience {
		return ErrTooFast
	}
	return p.limiter.Wait(ctx)
}
