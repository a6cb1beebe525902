// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"io"
	"strings"
	"sync"
)

// maxLine is the maximum length of a buffered line, in bytes. A longer line is printed in pieces.
const maxLine = 64 << 10

// merged prints the output lines of several Clusters. It prints only whole lines, and puts the name of the Cluster in
// front of each line.
type merged struct {
	to io.Writer

	mu  sync.Mutex
	err error
}

// of returns a writer for one Cluster's output. The writer is not safe for concurrent use.
func (m *merged) of(cluster string) *lines { return &lines{merged: m, prefix: "[" + cluster + "] "} }

func (m *merged) write(line string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := io.WriteString(m.to, line); err != nil && m.err == nil {
		m.err = err
	}
}

// lines buffers a line until the line is complete.
type lines struct {
	merged  *merged
	prefix  string
	pending []byte
}

// Write never returns an error, because a failure to print the output must not make the command fail.
func (l *lines) Write(text []byte) (int, error) {
	l.pending = append(l.pending, text...)
	for {
		end := bytes.IndexByte(l.pending, '\n')
		if end < 0 && len(l.pending) < maxLine {
			return len(text), nil
		}
		if end < 0 {
			end = len(l.pending)
		}
		l.merged.write(l.prefix + strings.TrimSuffix(string(l.pending[:end]), "\r") + "\n")
		l.pending = l.pending[min(end+1, len(l.pending)):]
	}
}

// end prints the last line even if the line is incomplete.
func (l *lines) end() {
	if len(l.pending) > 0 {
		l.merged.write(l.prefix + string(l.pending) + "\n")
		l.pending = nil
	}
}

// bounds keeps only the first maxCaptured bytes of the output.
type bounds struct {
	strings.Builder
	more bool // whether output was dropped
}

// Write keeps only the bytes that still fit. It always succeeds.
func (b *bounds) Write(text []byte) (int, error) {
	kept := text[:min(len(text), maxCaptured-b.Len())]
	b.more = b.more || len(kept) < len(text)
	_, _ = b.Builder.Write(kept)
	return len(text), nil
}
