// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"errors"
	"io"
	"net/http"
)

// ReadToEnd makes httputil.ReverseProxy deliver all data that the server sends on an upgraded connection, even if the
// server no longer reads. ReverseProxy closes both connections when a write fails. For example, kubectl sends a ping
// every 5 s, but a server may have sent all output of a command and closed its connection by then. The ping then fails,
// and a user who reads slowly would lose the rest of the output.
func ReadToEnd(response *http.Response) {
	if body, ok := response.Body.(upgraded); ok && response.StatusCode == http.StatusSwitchingProtocols {
		response.Body = &upgradedBody{upgraded: body}
	}
}

// upgraded is the body of a response with status 101.
type upgraded interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// upgradedBody discards what the user sends after the first failed write. If a write fails, either the server has
// closed the connection or the connection is broken. In both cases, Read returns the data that has already arrived, and
// then ends.
type upgradedBody struct {
	upgraded
	failed bool // used only by the goroutine that writes
}

// Write implements io.Writer. It never fails.
func (b *upgradedBody) Write(p []byte) (int, error) {
	if !b.failed {
		_, err := b.upgraded.Write(p)
		b.failed = err != nil
	}
	return len(p), nil
}

// CloseWrite fails only if the connection does not support it. In that case, ReverseProxy closes the connection.
func (b *upgradedBody) CloseWrite() error {
	if err := b.upgraded.CloseWrite(); errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}
