// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"bufio"
	"net"
	"net/http"
)

// Aborted is the status of a request that received no response, because the caller disconnected or the connection was
// closed intentionally.
const Aborted = 0

// Recorder is an http.ResponseWriter that records the status of the response. Use NewRecorder to create a Recorder.
type Recorder struct {
	http.ResponseWriter
	status int
	begun  func(status int) // may be nil
}

// NewRecorder wraps w. http.ResponseController can still reach w. If w is already a Recorder, NewRecorder returns it,
// so that audit, metrics and spans share one Recorder.
func NewRecorder(w http.ResponseWriter) *Recorder {
	if r, ok := w.(*Recorder); ok {
		return r
	}
	return &Recorder{ResponseWriter: w}
}

// OnBegin registers a function that is called with the status when the response starts.
func (r *Recorder) OnBegin(f func(status int)) { r.begun = f }

// Status returns the status of the response. It is 101 for a hijacked connection, and Aborted until a response starts.
func (r *Recorder) Status() int { return r.status }

// WriteHeader implements http.ResponseWriter. Informational responses are ignored.
func (r *Recorder) WriteHeader(status int) {
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		r.begin(status)
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (r *Recorder) Write(p []byte) (int, error) {
	r.implied()
	return r.ResponseWriter.Write(p)
}

// FlushError is called by http.ResponseController. Flushing sends the headers.
func (r *Recorder) FlushError() error {
	r.implied()
	return http.NewResponseController(r.ResponseWriter).Flush()
}

// Hijack is called by http.ResponseController. Handlers hijack a connection to switch protocols.
func (r *Recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(r.ResponseWriter).Hijack()
	if err == nil {
		r.begin(http.StatusSwitchingProtocols)
	}
	return conn, buffered, err
}

// Unwrap is called by http.ResponseController.
func (r *Recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// Done records that the handler has returned. If the handler wrote nothing, the status is 200.
func (r *Recorder) Done() { r.implied() }

func (r *Recorder) implied() { r.begin(http.StatusOK) }

func (r *Recorder) begin(status int) {
	if r.status != Aborted {
		return
	}
	if r.status = status; r.begun != nil {
		r.begun(status)
	}
}
