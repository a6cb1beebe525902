// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
)

// line is the connection of an agent to its API server.
type line struct {
	writes atomic.Int64 // number of requests that write

	mu      sync.Mutex // guards the fields below
	asked   []string   // paths of the requests
	isCut   bool
	streams []io.Closer // bodies of watches
}

func (l *line) wrap(next http.RoundTripper) http.RoundTripper { return through{l, next} }

// paths returns the paths of all requests since they were last forgotten.
func (l *line) paths(forget bool) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	paths := slices.Clone(l.asked)
	if forget {
		l.asked = nil
	}
	return paths
}

// cut ends all watches and refuses new ones, or lets them through again.
func (l *line) cut(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isCut = cut
	for _, stream := range l.streams {
		_ = stream.Close()
	}
	l.streams = nil
}

type through struct {
	*line
	next http.RoundTripper
}

func (t through) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		t.writes.Add(1)
	}
	watches := r.URL.Query().Has("watch")
	t.mu.Lock()
	t.asked = append(t.asked, r.URL.Path)
	cut := t.isCut
	t.mu.Unlock()
	if cut && r.Method == http.MethodGet {
		return nil, errors.New("the line is cut")
	}
	response, err := t.next.RoundTrip(r)
	if err == nil && watches {
		t.mu.Lock()
		t.streams = append(t.streams, response.Body)
		t.mu.Unlock()
	}
	return response, err
}
