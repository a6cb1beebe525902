// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// Limits on the memory of windows beyond Config.StreamWindow.
const (
	growthPerTunnel = 32 << 20 // in bytes, for all streams of a tunnel combined
	growthShared    = 64 << 20 // in bytes, for all tunnels that share a Memory
	settingWindow   = 4        // SETTINGS_INITIAL_WINDOW_SIZE
	// fewer unread bytes are ignored, because HTTP/2 reports reads in steps of 4 KiB
	readEnough = 16 << 10
)

var (
	errWindow   = errors.New("the other end sent more than the window of a stream")
	errSettings = errors.New("the SETTINGS frame was written in parts: this version of net/http2 cannot be used")
)

// grow reserves the given number of bytes for larger windows, and reports whether the limit allows it.
func (m *Memory) grow(bytes int64) bool {
	if m.grown.Add(bytes) <= growthShared {
		return true
	}
	m.grown.Add(-bytes)
	return false
}

func (m *Memory) shrink(bytes int64) { m.grown.Add(-bytes) }

// windows lets the window of a stream grow until it covers the data that is in flight during a round trip. net/http2
// supports only a single, fixed window size for all streams. For this reason, net/http2 and the hub's client are
// configured with the maximum window. However, windows announces the initial window to the other end. If a whole window
// of a stream is read within two round trips, windows adds bytes to the stream's next WINDOW_UPDATE. It also checks
// that the other end respects the announced windows.
type windows struct {
	initial, most int64
	client        bool // set if this end opens the streams
	memory        *Memory

	mu        sync.Mutex         // guards the fields below
	streams   map[uint32]*window // the streams on which the other end may send
	last      uint32             // the ID of the newest stream
	pings     roundTrips
	unread    int64 // number of bytes that have arrived but have not been read
	reserved  int64 // number of bytes by which windows exceed the initial size
	lingering int64 // the reserved bytes of streams that have ended but whose data may still be unread
	ended     bool
}

type window struct {
	size   int64     // number of bytes that the other end may have in flight
	credit int64     // number of bytes that the other end may still send
	read   int64     // number of bytes that have been read after the time in the since field
	since  time.Time // when the first byte arrived, or when a whole window was last read
}

func newWindows(cfg Config, client bool) *windows {
	return &windows{
		initial: int64(cfg.StreamWindow), most: int64(cfg.MaxStreamWindow), client: client, memory: cfg.Memory,
	}
}

// sent examines a frame before it is written, and reports whether it has changed the frame's content. If whole is
// false, parts of the frame have already been written, so its content cannot be changed.
func (w *windows) sent(f Frame, content []byte, whole bool) (changed bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch f.Type {
	case http2.FrameSettings:
		w.pings.ask(f)
		return w.announce(f, content, whole)
	case http2.FramePing:
		w.pings.ask(f)
	case http2.FrameHeaders:
		if w.client {
			w.open(f.StreamID)
		}
	case http2.FrameRSTStream:
		w.close(f.StreamID)
	case http2.FrameWindowUpdate:
		if len(content) < 4 {
			return false, nil
		}
		read := int64(binary.BigEndian.Uint32(content))
		if f.StreamID == 0 {
			w.unread = max(w.unread-read, 0) // the first update only enlarges the window of the connection
			w.settle()
			return false, nil
		}
		if more := w.refill(w.streams[f.StreamID], read, whole); more > 0 {
			binary.BigEndian.PutUint32(content, uint32(read+more))
			return true, nil
		}
	}
	return false, nil
}

// received examines the header of a frame before net/http2 processes the frame.
func (w *windows) received(f Frame) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	ends := false
	switch f.Type {
	case http2.FrameSettings, http2.FramePing:
		w.pings.answer(f)
	case http2.FrameHeaders:
		ends = f.Flags.Has(http2.FlagHeadersEndStream)
		if !w.client && !ends {
			w.open(f.StreamID)
		}
	case http2.FrameData:
		ends = f.Flags.Has(http2.FlagDataEndStream)
		if err := w.arrive(w.streams[f.StreamID], int64(f.Length)); err != nil {
			return fmt.Errorf("%w: stream %d", err, f.StreamID)
		}
	case http2.FrameRSTStream:
		ends = true
	}
	if ends {
		w.close(f.StreamID)
	}
	return nil
}

// announce puts the initial window into the settings of this end.
func (w *windows) announce(f Frame, content []byte, whole bool) (changed bool, err error) {
	if f.Flags.Has(http2.FlagSettingsAck) || w.initial == w.most {
		return false, nil
	}
	for at := 0; at+6 <= len(content); at += 6 {
		if binary.BigEndian.Uint16(content[at:]) == settingWindow {
			binary.BigEndian.PutUint32(content[at+2:], uint32(w.initial))
			changed = true
		}
	}
	if !changed || !whole {
		return false, errSettings
	}
	return true, nil
}

// open adds a stream if it is new. A HEADERS frame may also contain trailers of a known stream.
func (w *windows) open(id uint32) {
	if id <= w.last {
		return
	}
	w.last = id
	if w.streams == nil {
		w.streams = map[uint32]*window{}
	}
	w.streams[id] = &window{size: w.initial, credit: w.initial}
}

// close removes a stream on which no more data will arrive.
func (w *windows) close(id uint32) {
	s := w.streams[id]
	if s == nil {
		return
	}
	delete(w.streams, id)
	w.lingering += s.size - w.initial
	w.settle()
}

// arrive records that more bytes have arrived. The stream is nil if it has already ended.
func (w *windows) arrive(s *window, bytes int64) error {
	w.unread += bytes
	if s == nil {
		return nil
	}
	if s.since.IsZero() {
		s.since = time.Now()
	}
	if s.credit -= bytes; s.credit < 0 {
		return errWindow
	}
	return nil
}

// refill records that more bytes have been read, and returns the number of bytes by which the window grows. If a whole
// window has been read within two round trips, the window is the bottleneck. In this case, refill makes it four times
// as large, or twice as large if the limits do not allow more.
func (w *windows) refill(s *window, read int64, mayGrow bool) (more int64) {
	if s == nil {
		return 0
	}
	s.credit += read
	s.read += read
	if s.read < s.size {
		return 0
	}
	now := time.Now()
	took := now.Sub(s.since)
	s.read, s.since = 0, now
	if !mayGrow || took > 2*w.pings.least {
		return 0
	}
	for _, more := range []int64{min(3*s.size, w.most-s.size), min(s.size, w.most-s.size)} {
		if w.reserve(more) {
			s.size += more
			s.credit += more
			return more
		}
	}
	return 0
}

func (w *windows) reserve(bytes int64) bool {
	if bytes <= 0 || w.ended || w.reserved+bytes > growthPerTunnel || !w.memory.grow(bytes) {
		return false
	}
	w.reserved += bytes
	return true
}

// settle releases the bytes that are reserved for ended streams once the data of these streams has been read.
func (w *windows) settle() {
	unread := w.unread
	if unread < readEnough {
		unread = 0
	}
	if over := w.lingering - unread; over > 0 {
		w.lingering -= over
		w.reserved -= over
		w.memory.shrink(over)
	}
}

// end releases all reserved bytes.
func (w *windows) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	w.memory.shrink(w.reserved)
	w.streams, w.reserved, w.lingering = nil, 0, 0
}

// roundTrips measures how long the other end takes to acknowledge SETTINGS and PING frames.
type roundTrips struct {
	settings, ping time.Time     // when the frames were sent; zero once they have been acknowledged
	least          time.Duration // 0 if no round trip has been measured
}

func (r *roundTrips) of(f Frame) *time.Time {
	if f.Type == http2.FrameSettings {
		return &r.settings
	}
	return &r.ping
}

func (r *roundTrips) ask(f Frame) {
	if !f.Flags.Has(http2.FlagSettingsAck) { // the ACK flag of PING has the same value
		*r.of(f) = time.Now()
	}
}

func (r *roundTrips) answer(f Frame) {
	asked := r.of(f)
	if !f.Flags.Has(http2.FlagSettingsAck) || asked.IsZero() {
		return
	}
	took := time.Since(*asked)
	*asked = time.Time{}
	if r.least == 0 || took < r.least {
		r.least = took
	}
}
