// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package request_test

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/drover-dev/drover/internal/request"
)

func TestRecorder(t *testing.T) {
	for name, tt := range map[string]struct {
		serve http.HandlerFunc
		want  int
	}{
		"a status is recorded": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) },
			http.StatusTeapot},
		"a body without a status means 200": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "x") },
			http.StatusOK},
		"a handler that writes nothing means 200": {func(http.ResponseWriter, *http.Request) {}, http.StatusOK},
		"the first of two statuses counts": {func(w http.ResponseWriter,
			_ *http.Request) {
			w.WriteHeader(404)
			w.WriteHeader(500)
		}, http.StatusNotFound},
		"an informational response is ignored": {func(w http.ResponseWriter,
			_ *http.Request) {
			w.WriteHeader(103)
			w.WriteHeader(409)
		}, http.StatusConflict},
		"a flush sends the header": {func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).Flush()
			w.WriteHeader(500)
		}, http.StatusOK},
		"a deadline reaches the wrapped writer":     {deadline, http.StatusNoContent},
		"a connection that is taken over means 101": {hijack, http.StatusSwitchingProtocols},
		"a handler that aborts means no response": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			request.Aborted},
	} {
		t.Run(name, func(t *testing.T) {
			got := make(chan int, 1)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				recorder := request.NewRecorder(w)
				defer func() { got <- recorder.Status() }()
				tt.serve(recorder, r)
				recorder.Done()
			}))
			defer server.Close()
			server.Config.ErrorLog = quiet(t)
			if resp, err := server.Client().Get(server.URL); err == nil {
				resp.Body.Close()
			}
			if status := <-got; status != tt.want {
				t.Errorf("recorded %d, want %d", status, tt.want)
			}
		})
	}
}

func deadline(w http.ResponseWriter, _ *http.Request) {
	if http.NewResponseController(w).SetReadDeadline(time.Now().Add(time.Minute)) == nil {
		w.WriteHeader(http.StatusNoContent)
	}
}

func hijack(w http.ResponseWriter, _ *http.Request) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		conn.Close()
	}
}

// quiet returns a logger for net/http's messages about handlers that misbehave on purpose.
func quiet(t *testing.T) *log.Logger { return log.New(t.Output(), "", 0) }

func TestRecorderIsSharedAndReportsTheBeginOfTheResponse(t *testing.T) {
	outer := request.NewRecorder(httptest.NewRecorder())
	var begun []int
	outer.OnBegin(func(status int) { begun = append(begun, status) })
	inner := request.NewRecorder(outer)
	if inner != outer {
		t.Error("a recorder was wrapped in another one, want it shared")
	}
	inner.WriteHeader(http.StatusEarlyHints)
	inner.WriteHeader(http.StatusTeapot)
	_, _ = io.WriteString(inner, "x")
	inner.Done()
	if len(begun) != 1 || begun[0] != http.StatusTeapot || outer.Status() != http.StatusTeapot {
		t.Errorf("OnBegin got %v, status %d; want one call with 418", begun, outer.Status())
	}
}
