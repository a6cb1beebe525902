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

// maxMessage bounds the message of a condition, in bytes.
const maxMessage = 1536

// Readiness is what a reconcile finds, and a status says, of an object as a whole.
type Readiness struct {
	Ready bool
	// Stalled reports that a person must act.
	Stalled         bool
	Reason, Message string
	// Again is when to look again, 0 for when something changes.
	Again time.Duration
}

// Write sets the conditions Ready and Stalled, the latter while a person must act, and observed to the generation that
// they are about, as kstatus reads them.
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
