// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	headerListBytes = 320       // added to Config.MaxHeaderBytes, as in net/http, for the overhead of ten fields
	connWindow      = 1 << 30   // less than math.MaxInt32, so that adding the initial 65,535 does not overflow
	unlimited       = 100_000   // number of streams if the other end announces no limit
	lastStream      = 1<<31 - 1 // see RFC 9113, section 5.1.1
	firstWindow     = 1<<16 - 1 // see RFC 9113, section 6.9.2
	largestWindow   = 1<<31 - 1 // see RFC 9113, section 6.9.1
	firstStreams    = 100       // number of streams that may be open before the other end has sent its SETTINGS
	firstFrameSize  = 16 << 10  // see RFC 9113, section 6.5.2
	headerTable     = 4 << 10   // maximum size of each HPACK table, in bytes
	reportRead      = 4 << 10   // number of bytes that are read before the reads are reported to the other end
	bodyPiece       = 32 << 10  // bytes of a request body in one frame, which fits in a WebSocket frame
	readBuffer      = 512       // size of each connection's read buffer, in bytes; larger reads bypass the buffer

	goodbyeTimeout = 250 * time.Millisecond // time for sending the reason to a peer that may no longer be reading
)

var (
	errLeaving     = errors.New("the other end takes no more requests")
	errClientEnded = errors.New("the connection has ended")
	errBodyClosed  = errors.New("read after the body was closed")
)

// Client sends requests over one connection. The caller's goroutine sends the request's header and receives the
// response from the stream. A single goroutine reads from the connection and fills the streams. As a result, a request
// without a body does not start a goroutine.
type Client struct {
	conn           net.Conn
	cfg            Config
	maxHeaderBytes int // maximum size of a response's header, in bytes
	out            writer
	ended          chan struct{}
	waking         *stream // the stream to wake up after its data has been read; used only by the reader

	mu      sync.Mutex // guards the fields below
	changed sync.Cond  // uses mu; signals changes to streams and windows, and the end of the connection
	streams map[uint32]*stream
	state   clientState
	peer    peerSettings
	pings   map[[8]byte]chan struct{}
}

// clientState is the mutable state of a Client.
type clientState struct {
	next     uint32 // ID of the next stream
	opening  int    // number of streams that have a slot but no ID yet
	window   int64  // number of bytes of request bodies that may be sent on all streams together
	arriving inflow
	leaving  bool  // set if either end has sent GOAWAY, or if no stream IDs are left
	ended    error // why the connection has ended
}

type peerSettings struct {
	streams    int
	window     int64
	frame      int
	headerList uint64
	known      bool
	// acknowledged is set when the other end has acknowledged the SETTINGS of this end.
	acknowledged bool
}

// inflow counts the bytes that may still arrive.
type inflow struct {
	credit int64
	read   int64 // number of bytes that have been read but not yet reported to the other end
}

// add records that n more bytes have been read, and returns how many bytes to report now.
func (f *inflow) add(n int) uint32 {
	f.read += int64(n)
	if f.read < reportRead && f.read < f.credit {
		return 0
	}
	n, f.read = int(f.read), 0
	f.credit += int64(n)
	return uint32(n)
}

// New sends the client's preface and SETTINGS, and starts the client's reader. When the client ends, it closes the
// connection. If New fails, the caller must close the connection.
func New(conn net.Conn, cfg Config) (*Client, error) {
	c := &Client{
		conn: conn, cfg: cfg, maxHeaderBytes: cfg.MaxHeaderBytes + headerListBytes,
		out: writer{lock: make(chan struct{}, 1)}, ended: make(chan struct{}),
		streams: map[uint32]*stream{}, pings: map[[8]byte]chan struct{}{},
		state: clientState{next: 1, window: firstWindow, arriving: inflow{credit: connWindow + firstWindow}},
		peer: peerSettings{
			streams: firstStreams, window: firstWindow, frame: firstFrameSize, headerList: largestWindow,
		},
	}
	c.changed.L = &c.mu
	c.out.encoder = hpack.NewEncoder(&c.out.header)
	c.out.encoder.SetMaxDynamicTableSizeLimit(headerTable)
	begin := bytes.NewBufferString(http2.ClientPreface)
	framer := http2.NewFramer(begin, nil)
	err := framer.WriteSettings(
		http2.Setting{ID: http2.SettingEnablePush, Val: 0},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(cfg.StreamWindow)},
		http2.Setting{ID: http2.SettingMaxFrameSize, Val: uint32(cfg.MaxFrameSize)},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: uint32(c.maxHeaderBytes)},
	)
	if err = errors.Join(err, framer.WriteWindowUpdate(0, connWindow)); err != nil {
		return nil, err
	}
	c.out.lock <- struct{}{}
	if err := c.write(begin.Bytes()); err != nil {
		return nil, err
	}
	go c.read()
	return c, nil
}

// open waits until another stream may be opened.
func (c *Client) open(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.full() {
		stop := context.AfterFunc(ctx, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.changed.Broadcast()
		})
		defer stop()
	}
	for {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case c.state.ended != nil:
			return c.state.ended
		case c.state.leaving:
			return errLeaving
		case !c.full():
			c.state.opening++
			return nil
		}
		c.changed.Wait()
	}
}

func (c *Client) full() bool { return len(c.streams)+c.state.opening >= c.peer.streams }

// RoundTrip sends a request with additional header fields. It returns the response as soon as the response's header
// has arrived. Closing the response's body ends the request.
func (c *Client) RoundTrip(r *http.Request, more ...Field) (*http.Response, error) {
	fields, err := c.fieldsOf(r, more)
	if err != nil {
		CloseBody(r)
		return nil, err
	}
	ctx := r.Context()
	if err := c.open(ctx); err != nil {
		CloseBody(r)
		return nil, err
	}
	s := newStream(c, r, fields.method)
	if err := c.begin(ctx, s, fields); err != nil {
		s.abort(err)
		return nil, err
	}
	if ctx.Done() != nil {
		s.watch(ctx)
	}
	if s.body != nil {
		go s.body.send()
	}
	response, err := s.await()
	if err != nil {
		return nil, err
	}
	response.Request = r
	return response, nil
}

// begin assigns an ID to a stream and sends the stream's header. IDs must increase on the wire, so both happen under
// one lock.
func (c *Client) begin(ctx context.Context, s *stream, fields *requestFields) error {
	var err error
	select {
	case c.out.lock <- struct{}{}:
	case <-ctx.Done():
		return c.enter(nil, 0, ctx.Err())
	case <-c.ended:
		return c.enter(nil, 0, c.end())
	}
	if err = c.enter(s, fields.size, nil); err != nil {
		<-c.out.lock
		return err
	}
	c.out.header.Reset()
	c.out.header.Write(make([]byte, frameHeadSize))
	fields.each(func(name, value string) {
		_ = c.out.encoder.WriteField(hpack.HeaderField{Name: name, Value: value}) // a write to a buffer never fails
	})
	return c.write(headersFrames(c.out.header.Bytes(), s.id, s.body == nil, c.frame()))
}

// enter assigns an ID to a stream, using the slot that open has reserved. If there is an error, it releases the slot.
func (c *Client) enter(s *stream, headerBytes uint64, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state.opening--
	switch {
	case err != nil:
	case c.state.ended != nil:
		err = c.state.ended
	case c.state.leaving:
		err = errLeaving
	case headerBytes > c.peer.headerList:
		err = errPeerHeader
	}
	if err != nil {
		c.changed.Broadcast()
		return err
	}
	s.id = c.state.next
	if c.state.next += 2; c.state.next > lastStream {
		c.state.leaving = true // the agent will open a new connection
	}
	c.streams[s.id] = s
	return nil
}

// frame returns the maximum size of a frame that the other end accepts.
func (c *Client) frame() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peer.frame
}

// forget removes a stream that has ended. If this was the last stream, and GOAWAY has been sent or no stream IDs are
// left, forget also closes the connection.
func (c *Client) forget(s *stream) {
	c.mu.Lock()
	known := c.streams[s.id] == s
	delete(c.streams, s.id)
	last := known && c.state.leaving && len(c.streams)+c.state.opening == 0
	if known && (s.body != nil || last || len(c.streams)+1+c.state.opening >= c.peer.streams) {
		c.changed.Broadcast()
	}
	c.mu.Unlock()
	if last {
		go func() { _ = c.conn.Close() }()
	}
}

// Ping waits until the other end has responded to a PING.
func (c *Client) Ping(ctx context.Context) error {
	var content [8]byte
	_, _ = rand.Read(content[:]) // never fails
	answered := make(chan struct{})
	c.mu.Lock()
	c.pings[content] = answered
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.pings, content)
	}()
	// ignore the error, because a failed write ends the tunnel
	go func() { _ = c.control(append(appendFrameHead(nil, 8, http2.FramePing, 0, 0), content[:]...)) }()
	select {
	case <-answered:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ended:
		return c.end()
	}
}

// GoingAway reports whether either end has sent GOAWAY and the connection is still open.
func (c *Client) GoingAway() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.leaving && c.state.ended == nil
}

func (c *Client) end() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.ended
}

// Shutdown sends GOAWAY and waits until no streams are left.
func (c *Client) Shutdown(ctx context.Context) error {
	c.mu.Lock()
	said := c.state.leaving
	c.state.leaving = true
	c.mu.Unlock()
	if !said {
		c.sayGoodbye(ctx)
	}
	stop := context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.changed.Broadcast()
	})
	defer stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.streams)+c.state.opening > 0 && c.state.ended == nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.changed.Wait()
	}
	return nil
}

// sayGoodbye sends GOAWAY. It returns when ctx is done, because the other end may no longer be reading.
func (c *Client) sayGoodbye(ctx context.Context) {
	written := make(chan struct{})
	go func() {
		defer close(written)
		_ = c.control(goAway(http2.ErrCodeNo)) // a failed write ends the tunnel
	}()
	select {
	case <-written:
	case <-ctx.Done():
	}
}

// Close ends the connection and all requests.
func (c *Client) Close() error {
	c.fail(errClientEnded)
	return nil
}

// fail ends the connection and all requests for the given reason.
func (c *Client) fail(err error) {
	c.cfg.Ends() // called first, because the callers of failed requests ask for the reason
	c.mu.Lock()
	if c.state.ended != nil {
		c.mu.Unlock()
		return
	}
	c.state.ended = err
	streams := c.streams
	c.streams = map[uint32]*stream{}
	close(c.ended)
	c.changed.Broadcast()
	c.mu.Unlock()
	for _, s := range streams {
		s.abort(err)
	}
	_ = c.conn.Close() // callers need the reason, not this error
}

func (c *Client) read() {
	in := bufio.NewReaderSize(c.conn, readBuffer)
	framer := http2.NewFramer(io.Discard, in)
	framer.SetMaxReadFrameSize(uint32(c.cfg.MaxFrameSize))
	framer.SetReuseFrames()
	framer.MaxHeaderListSize = uint32(c.maxHeaderBytes)
	framer.ReadMetaHeaders = hpack.NewDecoder(headerTable, nil)
	err := c.readFrames(framer, in)
	var broken http2.ConnectionError
	if errors.As(err, &broken) {
		c.cfg.CountError("read_frame_conn_error_" + http2.ErrCode(broken).String())
		c.lastWords(http2.ErrCode(broken))
	} else if errors.Is(err, http2.ErrFrameTooLarge) {
		c.cfg.CountError("read_frame_too_large")
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	c.fail(err)
}
