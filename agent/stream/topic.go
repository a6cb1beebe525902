// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"sync"

	"github.com/drover-dev/drover/internal/protocol"
)

// Topic is one subject of a Stream. It holds the latest line for each key. Readers receive no lines until Sync is
// called.
type Topic struct {
	stream  *Stream
	subject string
	read    chan struct{} // closed by once when a reader has received everything
	once    sync.Once

	// Stream.mu guards the fields below.
	synced  bool
	round   int    // number of calls to Reset
	version uint64 // version of the latest entry
	entries map[string]entry
}

// entry is a line, together with the version that the topic had when the line was stored.
type entry struct {
	line    *protocol.Line
	version uint64
}

// Put sets the line of a key, truncated to the limits, and reports whether it differs from the previous line. The
// caller must not change the line afterward.
func (t *Topic) Put(key string, line *protocol.Line) bool {
	line.Bound()
	t.stream.mu.Lock()
	defer t.stream.mu.Unlock()
	if before, known := t.entries[key]; known && bytes.Equal(encode(before.line), encode(line)) {
		return false
	}
	t.version++
	t.entries[key] = entry{line: line, version: t.version}
	t.stream.wakeLocked()
	return true
}

// Get returns the line of a key, or nil if there is none. The caller must not change the line.
func (t *Topic) Get(key string) *protocol.Line {
	t.stream.mu.Lock()
	defer t.stream.mu.Unlock()
	return t.entries[key].line
}

// Keys returns the keys that have a line, sorted.
func (t *Topic) Keys() []string {
	t.stream.mu.Lock()
	defer t.stream.mu.Unlock()
	return slices.Sorted(maps.Keys(t.entries))
}

// Delete removes the line of a key, and notifies readers of the removal.
func (t *Topic) Delete(key string) {
	t.stream.mu.Lock()
	defer t.stream.mu.Unlock()
	if _, known := t.entries[key]; known {
		delete(t.entries, key)
		t.stream.wakeLocked()
	}
}

// Sync marks the topic as complete. The topic must already have a line for each existing object.
func (t *Topic) Sync() {
	t.stream.mu.Lock()
	defer t.stream.mu.Unlock()
	if !t.synced {
		t.synced = true
		t.stream.wakeLocked()
	}
}

// Reset removes all lines because another replica is now the leader. Readers receive a line to announce that no more
// changes follow. The lines that they have received remain valid.
func (t *Topic) Reset() {
	t.stream.mu.Lock()
	defer t.stream.mu.Unlock()
	t.synced = false
	t.round++
	clear(t.entries)
	t.stream.wakeLocked()
}

// Read returns a channel that is closed when at least one reader has received all lines.
func (t *Topic) Read() <-chan struct{} { return t.read }

func (t *Topic) setRead() { t.once.Do(func() { close(t.read) }) }

// unsentLocked returns the lines that a reader has not received.
func (t *Topic) unsentLocked(has *received) (lines []*protocol.Line) {
	if has.round != t.round {
		if has.synced {
			lines = appendMark(lines, protocol.Stopped(t.subject))
		}
		*has = received{round: t.round, versions: map[string]uint64{}}
	}
	if !t.synced {
		return lines
	}
	var keys []string
	for key, e := range t.entries {
		if has.versions[key] != e.version {
			keys = append(keys, key)
		}
	}
	for key := range has.versions {
		if _, there := t.entries[key]; !there {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		if e, there := t.entries[key]; there {
			has.versions[key] = e.version
			lines = append(lines, e.line)
			continue
		}
		delete(has.versions, key)
		lines = appendMark(lines, protocol.Removed(t.subject, key))
	}
	if !has.synced {
		has.synced = true
		lines = appendMark(lines, protocol.Synced(t.subject))
	}
	return lines
}

// appendMark appends a marker line if the subject has a marker of that kind.
func appendMark(lines []*protocol.Line, mark *protocol.Line) []*protocol.Line {
	if mark == nil {
		return lines
	}
	return append(lines, mark)
}

// encode returns a line as JSON. Equal lines have the same encoding.
func encode(line *protocol.Line) []byte {
	raw, err := json.Marshal(line)
	if err != nil { // strings, numbers and times can always be marshaled
		panic(err)
	}
	return raw
}
