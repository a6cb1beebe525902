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

// maxAnswer bounds what is kept of an answer that is not a good one, in bytes.
const maxAnswer = 512

// PutSettings announces settings to a member. When it returns nil, the agent has stored them for good.
func (r *Registry) PutSettings(ctx context.Context, name types.NamespacedName, settings protocol.Settings) error {
	body, err := json.Marshal(settings)
	if err != nil {
		return err
	}
	_, err = r.call(ctx, name, http.MethodPut, protocol.PathSettings, body)
	return err
}

// ResponseError says that an agent answered, and not well.
type ResponseError struct {
	// Code is the HTTP status.
	Code int
	// Text is what the agent says, at most 512 bytes.
	Text string
}

// Error says so.
func (e *ResponseError) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("the agent answers %d", e.Code)
	}
	return fmt.Sprintf("the agent answers %d: %s", e.Code, e.Text)
}

// PutDeployment hands a member's agent its Deployment, as JSON. When it returns nil, the agent has stored it; its report says what came
// of it. A *ResponseError with the code 422 means that the agent refuses it for good.
func (r *Registry) PutDeployment(ctx context.Context, name types.NamespacedName, deployment []byte) error {
	_, err := r.call(ctx, name, http.MethodPut, protocol.PathDeployment, deployment)
	return err
}

// leaderPause is between two looks for an agent that leads.
const leaderPause = 500 * time.Millisecond

// Uninstall has a member's agent remove itself. It returns what the agent could not remove.
func (r *Registry) Uninstall(ctx context.Context, name types.NamespacedName) (protocol.UninstallResult, error) {
	var result protocol.UninstallResult
	var raw []byte
	err := wait.PollUntilContextCancel(ctx, leaderPause, true, func(ctx context.Context) (done bool, err error) {
		raw, err = r.callBy(ctx, r.Leading, name, http.MethodPost, protocol.PathUninstall, nil) // what was delivered is the leader's to remove
		if errors.Is(err, ErrNoLeader) {
			return false, nil // the Lease of one that died has to end
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

// call sends one request to a member's agent and returns the body of a 2xx answer.
func (r *Registry) call(ctx context.Context, name types.NamespacedName, method, path string, body []byte) ([]byte, error) {
	return r.callBy(ctx, r.Transport, name, method, path, body)
}

// callBy is call by a certain way.
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
		answer := &ResponseError{Code: resp.StatusCode, Text: strings.TrimSpace(protocol.Cut(string(raw), maxAnswer))}
		return nil, fmt.Errorf("%s to cluster %s: %w", path, name, answer)
	}
	return raw, nil
}
