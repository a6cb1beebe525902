// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/drover-dev/drover/internal/protocol"
)

// maxErrorText bounds what is kept of a response that is an error, in bytes.
const maxErrorText = 512

// PutSettings sends settings to a member. When it returns nil, the agent has stored them.
func (r *Registry) PutSettings(ctx context.Context, name types.NamespacedName, settings protocol.Settings) error {
	body, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	_, err = r.call(ctx, name, http.MethodPut, protocol.PathSettings, body)
	return err
}

// ResponseError is an error response of an agent.
type ResponseError struct {
	// Code is the HTTP status.
	Code int
	// Text is the body, at most 512 bytes.
	Text string
}

// Error implements error.
func (e *ResponseError) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("the agent answers %d", e.Code)
	}
	return fmt.Sprintf("the agent answers %d: %s", e.Code, e.Text)
}

// PutDeployment hands a member's agent its Deployment, as JSON. When it returns nil, the agent has stored it; its report has the
// outcome. A *ResponseError with the code 422 means that the agent will never take it.
func (r *Registry) PutDeployment(ctx context.Context, name types.NamespacedName, deployment []byte) error {
	_, err := r.call(ctx, name, http.MethodPut, protocol.PathDeployment, deployment)
	return err
}

// leaderPause is the interval at which a leading agent is looked for.
const leaderPause = 500 * time.Millisecond

// Uninstall asks a member's agent to remove itself. It returns what the agent could not remove.
func (r *Registry) Uninstall(ctx context.Context, name types.NamespacedName) (protocol.UninstallResult, error) {
	var result protocol.UninstallResult
	var raw []byte
	err := wait.PollUntilContextCancel(ctx, leaderPause, true, func(ctx context.Context) (done bool, err error) {
		raw, err = r.callBy(ctx, r.Leading, name, http.MethodPost, protocol.PathUninstall, nil) // only the leader removes what was delivered
		if errors.Is(err, ErrNoLeader) {
			return false, nil // the Lease of a leader that died has to expire
		}
		return true, err
	})
	if err != nil {
		return result, err
	}
	if err := json.Unmarshal(raw, &result); err != nil {
		return result, fmt.Errorf("%s to cluster %s: malformed answer: %w", protocol.PathUninstall, name, err)
	}
	return result, nil
}

// call sends one request to a member's agent and returns the body of a 2xx response.
func (r *Registry) call(ctx context.Context, name types.NamespacedName, method, path string, body []byte) ([]byte, error) {
	return r.callBy(ctx, r.Transport, name, method, path, body)
}

// callBy is call with the transport that way returns.
func (r *Registry) callBy(
	ctx context.Context, way func(types.NamespacedName) (http.RoundTripper, error), name types.NamespacedName, method, path string, body []byte,
) ([]byte, error) {
	transport, err := way(name)
	if err != nil {
		return nil, fmt.Errorf("%s to cluster %s: %w", path, name, err)
	}
	req, err := http.NewRequestWithContext(ctx, method, agentURL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("%s to cluster %s: %w", path, name, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, protocol.MaxBody))
	if err != nil {
		return nil, fmt.Errorf("%s to cluster %s: %w", path, name, err)
	}
	if resp.StatusCode/100 != 2 {
		rejected := &ResponseError{Code: resp.StatusCode, Text: strings.TrimSpace(protocol.Cut(string(raw), maxErrorText))}
		return nil, fmt.Errorf("%s to cluster %s: %w", path, name, rejected)
	}
	return raw, nil
}
