// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// maxMessage limits the message of a condition, in bytes.
const maxMessage = 1536

// Readiness is the overall result of reconciling an object. The object's status shows this result.
type Readiness struct {
	Ready bool
	// Stalled is true if manual action is required.
	Stalled         bool
	Reason, Message string
	// Again is the time until the next check. If it is 0, the controller waits for a change.
	Again time.Duration
}

// Write sets the Ready condition, sets the Stalled condition while manual action is required, and sets observed to the
// generation that the conditions refer to. This is what kstatus expects.
func (r Readiness) Write(generation int64, observed *int64, conditions *[]metav1.Condition) {
	*observed = generation
	c := metav1.Condition{Type: v1.ConditionReady, Status: metav1.ConditionFalse, Reason: r.Reason,
		Message: protocol.Cut(r.Message, maxMessage), ObservedGeneration: generation}
	if r.Ready {
		c.Status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(conditions, c)
	if c.Type, c.Status = v1.ConditionStalled, metav1.ConditionTrue; r.Stalled {
		meta.SetStatusCondition(conditions, c)
		return
	}
	meta.RemoveStatusCondition(conditions, c.Type)
}
