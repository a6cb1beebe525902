// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

const (
	holdFor     = time.Millisecond // maximum wait for the body; the body normally follows within a tenth of this time
	holdAtMost  = 1 << 10          // maximum size of a header that is held back, in bytes
	joinedBytes = 16 << 10         // maximum size of a message that is copied after a header, in bytes
)

// joiner delays the header of a response for a short time, so that the header and the body are sent in one message.
// HTTP/2 writes them separately, and each write would wake up every goroutine along the path through the hub.
type joiner struct {
	net.Conn
	timeout time.Duration // timeout for a write that no caller waits for

	mu    sync.Mutex // guards writes and the fields below
	held  []byte     // a header; empty if none is held back
	timer *time.Timer
	err   error // the error from a write that no caller waited for
}

// Write writes the delayed header, if any, followed by p, or delays p.
func (j *joiner) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err != nil {
		return 0, j.err
	}
	if len(j.held) == 0 && isHeaderOnly(p) {
		j.hold(p)
		return len(p), nil
	}
	if len(j.held) > 0 {
		j.timer.Stop()
		if len(p) <= joinedBytes {
			both := append(j.held, p...)
			j.held = both[:0]
			if _, err := j.Conn.Write(both); err != nil {
				return 0, err
			}
			return len(p), nil
		}
		if err := j.release(); err != nil {
			return 0, err
		}
	}
	return j.Conn.Write(p)
}

// hold delays p until the next write, or until holdFor has passed.
func (j *joiner) hold(p []byte) {
	j.held = append(j.held, p...)
	if j.timer == nil {
		j.timer = time.AfterFunc(holdFor, j.late)
		return
	}
	j.timer.Reset(holdFor)
}

// late writes the delayed header before any body has followed it, for example for a watch without events.
func (j *joiner) late() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.held) == 0 || j.err != nil {
		return // another write came first
	}
	if j.err = j.Conn.SetWriteDeadline(time.Now().Add(j.timeout)); j.err == nil {
		j.err = j.release()
	}
	if j.err == nil {
		j.err = j.Conn.SetWriteDeadline(time.Time{})
	}
}

// release writes the delayed header.
func (j *joiner) release() error {
	held := j.held
	j.held = held[:0]
	_, err := j.Conn.Write(held)
	return err
}

// SetWriteDeadline sets the deadline for later writes. The write of a late header has its own deadline.
func (j *joiner) SetWriteDeadline(t time.Time) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.Conn.SetWriteDeadline(t)
}

// isHeaderOnly reports whether p consists of the complete, small header of a single response that has a body.
func isHeaderOnly(p []byte) bool {
	if len(p) < frameHeadSize || len(p) > holdAtMost {
		return false
	}
	length := int(p[0])<<16 | int(p[1])<<8 | int(p[2])
	flags := http2.Flags(p[4])
	return http2.FrameType(p[3]) == http2.FrameHeaders && length == len(p)-frameHeadSize &&
		flags.Has(http2.FlagHeadersEndHeaders) && !flags.Has(http2.FlagHeadersEndStream)
}
