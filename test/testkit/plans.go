// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"github.com/drover-dev/drover/agent/stream"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// Plans contains the states of a fake agent's plans. Like its Sets, they remain when its tunnel ends.
type Plans struct{ topic *stream.Topic }

func newPlans(topic *stream.Topic) *Plans {
	p := &Plans{topic: topic}
	p.Hold("")
	topic.Sync()
	return p
}

// SetStatus changes the status of a plan.
func (p *Plans) SetStatus(name string, status v1.PlanStatus) {
	p.topic.Put(name, &protocol.Line{Plan: &protocol.PlanEvent{State: &protocol.PlanState{Name: name, Status: status}}})
}

// Remove removes a plan.
func (p *Plans) Remove(name string) { p.topic.Delete(name) }

// Hold sets the reason why the member does not run plans. If the reason is empty, the member runs plans.
func (p *Plans) Hold(reason string) {
	p.topic.Put("", &protocol.Line{Plan: &protocol.PlanEvent{Hold: &protocol.PlanHold{Reason: reason}}})
}
