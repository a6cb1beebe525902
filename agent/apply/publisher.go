// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"github.com/drover-dev/drover/agent/stream"
	"github.com/drover-dev/drover/internal/protocol"
)

// publisher publishes the state of each set to the hub.
type publisher struct{ *stream.Topic }

// publish publishes the state of a set, and reports whether the state differs from the previous one.
func (p publisher) publish(state protocol.SetState) bool {
	return p.Put(state.ID, &protocol.Line{Set: &protocol.SetEvent{State: &state}})
}

func (p publisher) state(id string) protocol.SetState {
	if line := p.Get(id); line != nil {
		return *line.Set.State
	}
	return protocol.SetState{}
}
