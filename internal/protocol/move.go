// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import "time"

// PathMove on the agent takes a MoveRequest by POST and answers 202 at once. The agent then opens another tunnel,
// wherever the hub's address leads now, and when that tunnel serves, it ends its report on the tunnel that the request
// came through. An agent that answers 404 cannot move; it connects again when its tunnel has ended.
const PathMove = "/v1/move"

// Bounds of MoveRequest.Seconds.
const (
	minMove = time.Second
	maxMove = time.Hour
)

// MoveRequest asks an agent to open another tunnel before this one ends.
type MoveRequest struct {
	// Seconds is how long the old tunnel may still be used. From 1 to 3600; other values count as the nearest of these.
	Seconds int64 `json:"seconds"`
}

// Keep is how long the old tunnel may be used from now on.
func (m MoveRequest) Keep() time.Duration {
	return time.Duration(min(max(m.Seconds, int64(minMove/time.Second)), int64(maxMove/time.Second))) * time.Second
}
