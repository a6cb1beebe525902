// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ndjson answers a request with events, each a line of JSON, as they come.
package ndjson

import (
	"encoding/json"
	"net/http"
)

// Stream answers with events, each a line of JSON, until the reader is gone or ended is closed. news is called for the events since it was
// called last, and for a channel that is closed when there may be more.
func Stream[E any](w http.ResponseWriter, r *http.Request, ended <-chan struct{}, news func() (events []E, more <-chan struct{})) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	encoder := json.NewEncoder(w)
	for {
		events, more := news()
		for i := range events {
			if err := encoder.Encode(events[i]); err != nil {
				return // the reader is gone
			}
		}
		if err := control.Flush(); err != nil {
			return
		}
		select {
		case <-more:
		case <-ended:
			return
		case <-r.Context().Done():
			return
		}
	}
}
