// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	pieceSize = 32 << 10
	// underWay is the maximum number of pieces in each direction of a slow link. When it is reached, the link blocks.
	underWay = 64
)

func (r *Relay) accept() {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return
		}
		if in, ok := conn.(*net.TCPConn); ok && r.admit(in) {
			r.running.Go(func() { r.serve(in) })
		}
	}
}

func (r *Relay) serve(in *net.TCPConn) {
	defer r.end(in)
	if r.options.Proxy && r.greet(in) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(r.closed, dialLimit)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.target())
	if err != nil {
		reset(in)
		return
	}
	out, ok := conn.(*net.TCPConn)
	if !ok || !r.admit(out) {
		reset(in)
		return
	}
	defer r.end(out)
	var both sync.WaitGroup
	both.Go(func() { r.carry(in, out) })
	both.Go(func() { r.carry(out, in) })
	both.Wait()
}

// greet responds to CONNECT. The client sends no more data before the response.
func (r *Relay) greet(in *net.TCPConn) error {
	reader := bufio.NewReader(in)
	request, err := http.ReadRequest(reader)
	if err != nil {
		return err
	}
	if request.Method != http.MethodConnect || reader.Buffered() > 0 {
		return fmt.Errorf("%s, and %d bytes more, instead of a CONNECT", request.Method, reader.Buffered())
	}
	if err := r.pass(time.Now()); err != nil {
		return err
	}
	_, err = io.WriteString(in, "HTTP/1.1 200 Connection established\r\n\r\n")
	return err
}

// piece contains the bytes of one read, and the time at which they arrive. err is the reason why there is no more data.
type piece struct {
	bytes []byte
	due   time.Time
	err   error
}

// carry forwards the bytes of one direction, and their end.
func (r *Relay) carry(from, to *net.TCPConn) {
	queue := make(chan piece, underWay)
	var reader sync.WaitGroup
	reader.Go(func() { r.read(from, queue) })
	defer reader.Wait()
	if err := r.write(to, queue); err != nil {
		reset(from)
		for range queue { // lets the reader end
		}
	}
}

// write writes the pieces in the queue.
func (r *Relay) write(to *net.TCPConn, queue <-chan piece) error {
	for p := range queue {
		if err := r.pass(p.due); err != nil {
			return err
		}
		if _, err := to.Write(p.bytes); err != nil {
			return err
		}
		switch {
		case errors.Is(p.err, io.EOF):
			_ = to.CloseWrite()
		case p.err != nil:
			reset(to)
		}
	}
	return nil
}

// read fills the queue until the end of from.
func (r *Relay) read(from *net.TCPConn, queue chan<- piece) {
	defer close(queue)
	var free, last time.Time // when the link is free again, and when the last piece arrives
	for {
		buffer := make([]byte, pieceSize)
		n, err := from.Read(buffer)
		travel, busy := r.delays(n)
		if now := time.Now(); free.Before(now) {
			free = now
		}
		free = free.Add(busy)
		if due := free.Add(travel); due.After(last) {
			last = due
		}
		queue <- piece{bytes: buffer[:n], due: last, err: err}
		if err != nil {
			return
		}
	}
}

// pass returns when bytes may flow and the piece is due. It returns an error if the relay is closed.
func (r *Relay) pass(due time.Time) error {
	if wait := time.Until(due); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.closed.Done():
			return r.closed.Err()
		}
	}
	select {
	case <-r.flow():
		return nil
	case <-r.closed.Done():
		return r.closed.Err()
	}
}
