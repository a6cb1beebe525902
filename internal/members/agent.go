// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/untrusted"
)

// agentURL is the base URL of requests to an agent. The host is never resolved, because requests go through the tunnel.
const agentURL = "http://agent"

// maxErrorText is the maximum number of bytes kept from an error response.
const maxErrorText = 512

// ResponseError is an error response from an agent.
type ResponseError struct {
	// Code is the HTTP status.
	Code int
	// Text is the beginning of the body, at most 512 bytes.
	Text string
}

// Error implements error.
func (e *ResponseError) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("the agent answers %d", e.Code)
	}
	return fmt.Sprintf("the agent answers %d: %s", e.Code, e.Text)
}

// IsStatus reports whether err is an agent's response with the given status code.
func IsStatus(err error, code int) bool {
	var response *ResponseError
	return errors.As(err, &response) && response.Code == code
}

// Ask sends a request to an agent through a transport from the Registry. It returns the response if the status is
// 2xx, and a *ResponseError otherwise. A non-nil body is sent as JSON. The caller must close the response body.
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
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorText)) // if reading fails, the text is incomplete
	return nil, &ResponseError{Code: resp.StatusCode, Text: strings.TrimSpace(protocol.Cut(string(text), maxErrorText))}
}

// leaderPause is how long send waits between attempts to find the leading agent.
const leaderPause = 500 * time.Millisecond

func (c *Calls) send(ctx context.Context, name types.NamespacedName, ask agentRequest) (raw []byte, err error) {
	if !ask.toLeader {
		return c.sendBy(ctx, c.transports.Transport, name, ask)
	}
	err = wait.PollUntilContextCancel(ctx, leaderPause, true, func(ctx context.Context) (done bool, err error) {
		raw, err = c.sendBy(ctx, c.transports.Leading, name, ask)
		if errors.Is(err, ErrNoLeader) {
			return false, nil // a dead leader's Lease has not expired yet
		}
		return true, err
	})
	return raw, err
}

func (c *Calls) sendBy(
	ctx context.Context, way func(types.NamespacedName) (http.RoundTripper, error),
	name types.NamespacedName, ask agentRequest,
) ([]byte, error) {
	agent, err := way(name)
	var resp *http.Response
	if err == nil {
		resp, err = Ask(ctx, agent, ask.method, ask.target(), ask.body)
	}
	var raw []byte
	if err == nil {
		raw, err = io.ReadAll(io.LimitReader(resp.Body, protocol.MaxBody))
		_ = resp.Body.Close() // the body has been read completely
	}
	if err != nil {
		return nil, fmt.Errorf("%s to cluster %s: %w", ask.path, name, err)
	}
	return raw, nil
}

func uninstallResult(name types.NamespacedName, raw []byte) (result protocol.UninstallResult, err error) {
	if err := untrusted.JSON(raw, &result, untrusted.Large()); err != nil {
		return result, fmt.Errorf("%s to cluster %s: malformed answer: %w", protocol.PathUninstall, name, err)
	}
	result.Bound()
	return result, nil
}
