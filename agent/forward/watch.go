// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"io"
	"net/url"
	"sync/atomic"
)

// isWatch is whether a request is for a watch, which never ends by itself.
func isWatch(u *url.URL) bool {
	switch u.Query().Get("watch") {
	case "", "0", "false":
		return false
	}
	return true
}

// watchBody is the body of a watch.
type watchBody struct {
	io.ReadCloser
	stopped atomic.Bool
	forget  func() bool
}

// endWith makes a body end when ctx does, as if the API server had ended it: API servers do so every few minutes, and clients go on from
// where they were. A body that were cut off would be an error to them.
func endWith(ctx context.Context, body io.ReadCloser) io.ReadCloser {
	w := &watchBody{ReadCloser: body}
	w.forget = context.AfterFunc(ctx, func() {
		w.stopped.Store(true)
		_ = body.Close() // ends the read under way
	})
	return w
}

// Read is a clean end where the agent ended it.
func (w *watchBody) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if err != nil && w.stopped.Load() {
		err = io.EOF
	}
	return n, err
}

// Close closes the body.
func (w *watchBody) Close() error {
	w.forget()
	return w.ReadCloser.Close()
}
