// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bufio"
	"encoding/binary"
	"errors"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"

	"golang.org/x/net/http2"
)

// readFrames reads frames until the connection ends or the other end violates the protocol.
func (c *Client) readFrames(framer *http2.Framer, in *bufio.Reader) error {
	defer c.wake()
	for first := true; ; first = false {
		frame, err := framer.ReadFrame()
		var reset http2.StreamError
		switch {
		case err == nil:
		case errors.As(err, &reset):
			if s := c.stream(reset.StreamID); s != nil {
				s.refuse(reset.Code, err)
			}
			continue
		default:
			return err
		}
		if _, settings := frame.(*http2.SettingsFrame); first && !settings {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		if err := c.process(frame); err != nil {
			return err
		}
		if c.waking != nil && !bringsMore(in, c.waking.id) {
			c.wake()
		}
	}
}

// wake wakes up the goroutine that is waiting for a response.
func (c *Client) wake() {
	if s := c.waking; s != nil {
		c.waking = nil
		s.wake()
	}
}

// bringsMore reports whether the buffer contains a complete next frame with more of the stream's body. The body of a
// small response arrives together with the response's header. The goroutine that is waiting for the response then has
// to be woken up only once.
func bringsMore(in *bufio.Reader, id uint32) bool {
	if in.Buffered() < frameHeadSize {
		return false
	}
	head, err := in.Peek(frameHeadSize)
	if err != nil {
		return false
	}
	length := int(head[0])<<16 | int(head[1])<<8 | int(head[2])
	return http2.FrameType(head[3]) == http2.FrameData && binary.BigEndian.Uint32(head[5:]) == id &&
		in.Buffered() >= frameHeadSize+length
}

func (c *Client) process(frame http2.Frame) error {
	switch f := frame.(type) {
	case *http2.MetaHeadersFrame:
		return c.headers(f)
	case *http2.DataFrame:
		return c.data(f)
	case *http2.SettingsFrame:
		return c.settings(f)
	case *http2.WindowUpdateFrame:
		return c.enlarge(f)
	case *http2.RSTStreamFrame:
		c.cfg.CountError("recv_rststream_" + f.ErrCode.String())
		if s := c.stream(f.StreamID); s != nil {
			s.abort(http2.StreamError{StreamID: f.StreamID, Code: f.ErrCode, Cause: errPeerReset})
		}
	case *http2.PingFrame:
		return c.pinged(f)
	case *http2.GoAwayFrame:
		c.leave(f)
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

var errPeerReset = errors.New("received from the other end")

func (c *Client) stream(id uint32) *stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streams[id]
}

// idle reports whether a stream has never been opened.
func (c *Client) idle(id uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return id%2 == 0 || id >= c.state.next
}

func (c *Client) pinged(f *http2.PingFrame) error {
	if !f.IsAck() {
		return c.answer(append(appendFrameHead(nil, 8, http2.FramePing, http2.FlagPingAck, 0), f.Data[:]...))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if answered, known := c.pings[f.Data]; known {
		delete(c.pings, f.Data)
		close(answered)
	}
	return nil
}

// leave aborts the streams that the other end will not process.
func (c *Client) leave(f *http2.GoAwayFrame) {
	if f.ErrCode != http2.ErrCodeNo {
		c.cfg.CountError("recv_goaway_" + f.ErrCode.String())
	}
	var lost []*stream
	c.mu.Lock()
	c.state.leaving = true
	for id, s := range c.streams {
		if id > f.LastStreamID {
			lost = append(lost, s)
		}
	}
	c.changed.Broadcast()
	c.mu.Unlock()
	for _, s := range lost {
		s.abort(errLeaving)
	}
}

func (c *Client) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.peer.acknowledged {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		c.peer.acknowledged = true
		return nil
	}
	select {
	case c.out.lock <- struct{}{}: // the writer's lock also guards the encoder
	case <-c.ended:
		return errClientEnded
	}
	if err := c.announced(f); err != nil {
		<-c.out.lock
		return err
	}
	// as in answer, but no header may be sent between the change to the encoder and this frame
	go func() { _ = c.write(appendFrameHead(nil, 0, http2.FrameSettings, http2.FlagSettingsAck, 0)) }()
	return nil
}

// announced stores the settings that the other end has announced. The caller must hold the writer's lock.
func (c *Client) announced(f *http2.SettingsFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	streams := false
	err := f.ForeachSetting(func(s http2.Setting) error {
		if err := s.Valid(); err != nil {
			return err
		}
		switch s.ID {
		case http2.SettingMaxFrameSize:
			c.peer.frame = int(s.Val)
		case http2.SettingMaxConcurrentStreams:
			c.peer.streams, streams = int(s.Val), true
		case http2.SettingMaxHeaderListSize:
			c.peer.headerList = uint64(s.Val)
		case http2.SettingInitialWindowSize:
			c.peer.window = int64(s.Val)
		case http2.SettingHeaderTableSize:
			c.out.encoder.SetMaxDynamicTableSize(s.Val)
		}
		return nil
	})
	if !c.peer.known && !streams {
		c.peer.streams = unlimited
	}
	c.peer.known = true
	c.changed.Broadcast()
	return err
}

// enlarge increases the number of bytes that this end may send.
func (c *Client) enlarge(f *http2.WindowUpdateFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	window := &c.state.window
	var s *stream
	initial := int64(0)
	if f.StreamID != 0 {
		if s = c.streams[f.StreamID]; s == nil {
			return nil
		}
		window, initial = &s.window, c.peer.window
	}
	if *window += int64(f.Increment); *window+initial > largestWindow {
		if s == nil {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		go s.refuse(http2.ErrCodeFlowControl, http2.StreamError{StreamID: s.id, Code: http2.ErrCodeFlowControl})
		return nil
	}
	c.changed.Broadcast()
	return nil
}

func (c *Client) headers(f *http2.MetaHeadersFrame) error {
	s := c.stream(f.StreamID)
	if s == nil {
		if c.idle(f.StreamID) {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		return nil // the request was abandoned while the response was on its way
	}
	if s.answered() {
		return s.trailers(f)
	}
	response, err := s.parse(f)
	switch {
	case err != nil:
		s.refuse(http2.ErrCodeProtocol,
			http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol, Cause: err})
	case response != nil:
		s.answer(response, f.StreamEnded())
	}
	return nil
}

// parse turns a response header into a response. It returns nil for an informational response.
func (s *stream) parse(f *http2.MetaHeadersFrame) (*http.Response, error) {
	if f.Truncated {
		return nil, errResponseHeader
	}
	text := f.PseudoValue("status")
	status, err := strconv.Atoi(text)
	if err != nil || status < 100 || status > 999 {
		return nil, errNoStatus
	}
	if status < 200 {
		for _, field := range f.Fields {
			s.informational += int(field.Size())
		}
		switch {
		case f.StreamEnded():
			return nil, errEarlyEnd
		case s.informational > s.client.maxHeaderBytes:
			return nil, errResponseHeader
		}
		return nil, nil
	}
	response := &http.Response{
		Status: text + " " + http.StatusText(status), StatusCode: status, Proto: "HTTP/2.0", ProtoMajor: 2,
		ContentLength: -1,
	}
	fields := f.RegularFields()
	header, values := make(http.Header, len(fields)), make([]string, len(fields))
	for i, field := range fields {
		name := textproto.CanonicalMIMEHeaderKey(field.Name)
		if before, more := header[name]; more {
			header[name] = append(before, field.Value)
			continue
		}
		values[i] = field.Value
		header[name] = values[i : i+1 : i+1]
	}
	response.Header = header
	announceTrailer(response)
	for _, name := range []string{"Connection", "Proxy-Connection", "Keep-Alive", "Transfer-Encoding", "Upgrade"} {
		delete(header, name)
	}
	s.length(response, f.StreamEnded())
	return response, nil
}

// announceTrailer moves the names of the trailer's fields to Response.Trailer, as net/http does.
func announceTrailer(response *http.Response) {
	for _, list := range response.Header["Trailer"] {
		for name := range strings.SplitSeq(list, ",") {
			if response.Trailer == nil {
				response.Trailer = http.Header{}
			}
			if name = textproto.TrimString(name); name != "" {
				response.Trailer[textproto.CanonicalMIMEHeaderKey(name)] = nil
			}
		}
	}
	delete(response.Header, "Trailer")
}

// length parses the Content-Length header. It drops the header if the value is invalid or if there are contradictory
// values.
func (s *stream) length(response *http.Response, ended bool) {
	if lengths := response.Header["Content-Length"]; len(lengths) > 0 {
		n, err := strconv.ParseUint(lengths[0], 10, 63)
		for _, other := range lengths[1:] {
			if other != lengths[0] {
				err = strconv.ErrSyntax
			}
		}
		if err != nil {
			delete(response.Header, "Content-Length")
		} else {
			response.Header["Content-Length"], response.ContentLength = lengths[:1], int64(n)
		}
	}
	if response.ContentLength < 0 && ended && !s.head {
		response.ContentLength = 0
	}
}

func (c *Client) data(f *http2.DataFrame) error {
	length := int64(f.Length)
	c.mu.Lock()
	s := c.streams[f.StreamID]
	if s == nil && (f.StreamID%2 == 0 || f.StreamID >= c.state.next) {
		c.mu.Unlock()
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if c.state.arriving.credit -= length; c.state.arriving.credit < 0 {
		c.mu.Unlock()
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	c.mu.Unlock()
	refund := int(length)
	if s != nil {
		taken, err := s.arrive(f.Data(), f.StreamEnded())
		refund -= taken
		if err != nil {
			s.refuse(http2.ErrCodeProtocol,
				http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol, Cause: err})
		}
	}
	if frames := c.credit(s, refund); frames != nil {
		return c.answer(frames)
	}
	return nil
}

// report records that n more bytes have been read. Once enough bytes have been read, it reports them to the other end.
// The stream is nil if it has already ended.
func (c *Client) report(s *stream, n int) error {
	if frames := c.credit(s, n); frames != nil {
		return c.control(frames)
	}
	return nil
}

// credit records that n more bytes have been read. Once enough bytes have been read, it returns the frames that report
// them to the other end.
func (c *Client) credit(s *stream, n int) []byte {
	if n == 0 {
		return nil
	}
	c.mu.Lock()
	all := c.state.arriving.add(n)
	c.mu.Unlock()
	var one uint32
	if s != nil {
		one = s.reads(n)
	}
	var frames []byte
	if all > 0 {
		frames = appendNumber(frames, http2.FrameWindowUpdate, 0, all)
	}
	if one > 0 {
		frames = appendNumber(frames, http2.FrameWindowUpdate, s.id, one)
	}
	return frames
}
