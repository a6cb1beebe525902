// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"io"
	"strings"
	"sync"
)

// maxLine bounds a line that waits for its end, in bytes. A longer one is printed in pieces.
const maxLine = 64 << 10

// merged prints lines of several Clusters. Each line is whole and begins with its Cluster.
type merged struct {
	to io.Writer

	mu  sync.Mutex
	err error
}

// of returns a writer for the output of one Cluster. It is for one goroutine.
func (m *merged) of(cluster string) *lines { return &lines{merged: m, prefix: "[" + cluster + "] "} }

func (m *merged) write(line string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := io.WriteString(m.to, line); err != nil && m.err == nil {
		m.err = err
	}
}

// lines keeps the beginning of a line until its end comes.
type lines struct {
	merged  *merged
	prefix  string
	pending []byte
}

// Write never fails: a problem with the output must not end the command.
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

// end prints the last line if it has no end.
func (l *lines) end() {
	if len(l.pending) > 0 {
		l.merged.write(l.prefix + string(l.pending) + "\n")
		l.pending = nil
	}
}

// bounds keeps the first maxCaptured bytes.
type bounds struct {
	strings.Builder
	more bool // whether there was more
}

// Write accepts everything and keeps what there is room for.
func (b *bounds) Write(text []byte) (int, error) {
	kept := text[:min(len(text), maxCaptured-b.Len())]
	b.more = b.more || len(kept) < len(text)
	_, _ = b.Builder.Write(kept)
	return len(text), nil
}
