// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package stream sends the latest state of everything that the agent reports to the hub as lines of JSON.
package stream

import (
	"encoding/json"
	"net/http"
	"sync"

	"github.com/drover-dev/drover/internal/protocol"
)

// Stream is the http.Handler for protocol.PathReport. It can have any number of readers. A slow reader receives only
// the latest state of each key.
type Stream struct {
	// Opened is called before a reader receives its first line. It may be nil.
	Opened func()

	ended  chan struct{} // closed when no more lines will follow
	topics map[string]*Topic

	mu      sync.Mutex    // guards the fields below, and all topics
	changed chan struct{} // closed and replaced when there is something to send
}

// New returns a stream without lines.
func New() *Stream {
	s := &Stream{ended: make(chan struct{}), changed: make(chan struct{}), topics: map[string]*Topic{}}
	for _, subject := range protocol.AllSubjects() {
		s.topics[subject] = &Topic{stream: s, subject: subject, read: make(chan struct{}), entries: map[string]entry{}}
	}
	return s
}

// Topic returns the topic for a subject. The subject must be one of the subjects in package protocol.
func (s *Stream) Topic(subject string) *Topic { return s.topics[subject] }

// End ends the stream for all readers.
func (s *Stream) End() { close(s.ended) }

// wakeLocked makes readers check for new lines.
func (s *Stream) wakeLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// ServeHTTP responds to GET with the lines of the subjects that the request names, until the client disconnects or the
// stream ends.
func (s *Stream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		http.Error(w, "reports are read with GET", http.StatusMethodNotAllowed)
		return
	}
	if s.Opened != nil {
		s.Opened()
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	to := reader{}
	for _, subject := range protocol.Subjects(r.URL) {
		if topic := s.topics[subject]; topic != nil {
			to[topic] = &received{versions: map[string]uint64{}}
		}
	}
	control, encoder := http.NewResponseController(w), json.NewEncoder(w)
	// HTML escaping is off, because it can turn one byte into six. A line longer than protocol.MaxLine would end the
	// tunnel.
	encoder.SetEscapeHTML(false)
	for {
		lines, changed := s.unsent(to)
		for _, line := range lines {
			if err := encoder.Encode(line); err != nil {
				return // the reader has disconnected
			}
		}
		if err := control.Flush(); err != nil {
			return
		}
		to.flushed()
		select {
		case <-changed:
		case <-s.ended:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// unsent returns the lines that a reader has not received, and a channel that is closed when there may be more lines.
func (s *Stream) unsent(to reader) (lines []*protocol.Line, more <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, subject := range protocol.AllSubjects() {
		if has := to[s.topics[subject]]; has != nil {
			lines = append(lines, s.topics[subject].unsentLocked(has)...)
		}
	}
	return lines, s.changed
}

// reader records the lines that one reader has received, by topic.
type reader map[*Topic]*received

// received records the lines from one topic that one reader has received.
type received struct {
	round    int
	versions map[string]uint64
	synced   bool
}

// flushed marks topics as read if the reader has received them completely.
func (r reader) flushed() {
	for topic, has := range r {
		if has.synced {
			topic.setRead()
		}
	}
}
