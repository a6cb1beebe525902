// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/drover-dev/drover/agent/stream"
	"github.com/drover-dev/drover/internal/protocol"
)

// keyHold is the key under which the hold is published. It sorts before the keys of Plans. The key of a Plan is the
// Plan's name.
const keyHold = ""

// publisher publishes the status of the hub's Plans to the hub.
type publisher struct{ *stream.Topic }

// hold publishes the reason why the member does not run plans, or "" if it does.
func (p publisher) hold(reason string) {
	p.Put(keyHold, &protocol.Line{Plan: &protocol.PlanEvent{Hold: &protocol.PlanHold{Reason: reason}}})
}

// holdFor publishes the reason why no Plan can run yet. If the agent's rights come from an older manifest, no Plan
// can run until the current manifest is applied.
func (p publisher) holdFor(what string, err error) {
	message := fmt.Sprintf("the agent cannot %s: %v", what, err)
	if _, refused := refusedFor(err); refused && apierrors.IsForbidden(err) {
		message = "the agent's rights come from an older manifest: apply the manifest of the Cluster again (" + message +
			")"
	}
	p.hold(message)
	p.keep(nil)
}

func (p publisher) publish(state protocol.PlanState) {
	p.Put(state.Name, &protocol.Line{Plan: &protocol.PlanEvent{State: &state}})
}

// keep removes all published Plans except the given ones, and then lets readers receive the Plans. It must be called
// after all of the given Plans have been published.
func (p publisher) keep(names map[string]bool) {
	kept := 0
	for _, key := range p.Keys() {
		switch {
		case names[key]:
			kept++
		case key != keyHold:
			p.Delete(key)
		}
	}
	if kept == len(names) {
		p.Sync()
	}
}
