// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import "time"

// PathMove accepts a MoveRequest in a POST request to the agent. The agent responds with 202 immediately, and then
// opens another tunnel through the hub's address. When the new tunnel is ready, the agent ends its report on the old
// tunnel. An agent that responds with 404 cannot move. It reconnects only after its tunnel has ended.
const PathMove = "/v1/move"

// Limits for MoveRequest.Seconds.
const (
	minMove = time.Second
	maxMove = time.Hour
)

// MoveRequest asks an agent to open another tunnel before the current one ends.
type MoveRequest struct {
	// Seconds is how long the old tunnel may still be used. A value outside the range 1 to 3600 is replaced by the
	// nearest limit.
	Seconds int64 `json:"seconds"`
}

// Keep returns how long the old tunnel may still be used.
func (m MoveRequest) Keep() time.Duration {
	return time.Duration(min(max(m.Seconds, int64(minMove/time.Second)), int64(maxMove/time.Second))) * time.Second
}
