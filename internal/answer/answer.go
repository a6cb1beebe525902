// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package answer notes what a request was answered with, for metrics and traces, and lends what answers are copied with.
package answer

import (
	"bufio"
	"net"
	"net/http"
)

// Aborted is the status of a request that got no answer: its caller had gone, or the connection was ended on purpose.
const Aborted = 0

// Recorder is an http.ResponseWriter that notes the status. Make it with New.
type Recorder struct {
	http.ResponseWriter
	status int
}

// New wraps w, which http.ResponseController still finds behind it.
func New(w http.ResponseWriter) *Recorder { return &Recorder{ResponseWriter: w} }

// Status is the status of the answer: 101 of a connection that was taken over, Aborted while there is no answer.
func (r *Recorder) Status() int { return r.status }

// WriteHeader implements http.ResponseWriter. Informational answers do not count.
func (r *Recorder) WriteHeader(status int) {
	if r.status == Aborted && (status >= http.StatusOK || status == http.StatusSwitchingProtocols) {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (r *Recorder) Write(p []byte) (int, error) {
	r.implied()
	return r.ResponseWriter.Write(p)
}

// FlushError is for http.ResponseController. Flushing sends the header.
func (r *Recorder) FlushError() error {
	r.implied()
	return http.NewResponseController(r.ResponseWriter).Flush()
}

// Hijack is for http.ResponseController. Who takes a connection over does so to switch protocols.
func (r *Recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(r.ResponseWriter).Hijack()
	if err == nil && r.status == Aborted {
		r.status = http.StatusSwitchingProtocols
	}
	return conn, buffered, err
}

// Unwrap is for http.ResponseController.
func (r *Recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// Done says that the handler has returned. An answer of which nothing was written is one with status 200.
func (r *Recorder) Done() { r.implied() }

func (r *Recorder) implied() {
	if r.status == Aborted {
		r.status = http.StatusOK
	}
}
