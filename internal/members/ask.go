// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/drover-dev/drover/internal/protocol"
)

// Ask sends a request to an agent by a transport of the Registry, with a body of JSON if there is one, and returns a response with status 200. The
// caller closes its body. Any other response is a *ResponseError.
func Ask(ctx context.Context, agent http.RoundTripper, method, path string, body []byte) (*http.Response, error) {
	var reader io.Reader
	if body != nil {
		reader = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, agentURL+path, reader)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := agent.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorText)) // what can be read of it
	return nil, &ResponseError{Code: resp.StatusCode, Text: strings.TrimSpace(protocol.Cut(string(text), maxErrorText))}
}

// IsStatus reports whether an error is a response of an agent with that status code.
func IsStatus(err error, code int) bool {
	var response *ResponseError
	return errors.As(err, &response) && response.Code == code
}
