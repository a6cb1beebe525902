// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package status writes the status of an object once per reconcile, and then records its events.
package status

import (
	"context"
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// maxNote is the maximum length of an event's text that the API server allows, in bytes.
const maxNote = 1024

// Update collects the changes that one reconcile makes to an object. Create it with Begin. Only one goroutine may use
// it.
type Update struct {
	before client.Object
	object client.Object
	events []Event
}

// Event describes a change that is recorded once as a Kubernetes event.
type Event struct {
	// Warning is true for an event of type Warning.
	Warning bool
	// Reason is one of the Reason constants of api/v1.
	Reason string
	// Action is the action of the event, in the imperative, for example "Join".
	Action  string
	Message string
	// Rare causes Written to keep the time when the event was recorded. See Written.Told.
	Rare bool
}

// WaveApproved returns the event for a wave that a user has approved.
func WaveApproved(w v1.WaveStatus) Event {
	return Event{Reason: v1.ReasonWaveApproved, Action: "Approve",
		Message: fmt.Sprintf("%s approved wave %s, revision %s", w.Approval.ApprovedBy, w.Name, w.Approval.Revision)}
}

// Begin returns an Update of an object that was read. The caller then changes the status of the object directly.
func Begin(object client.Object) *Update {
	return &Update{before: object.DeepCopyObject().(client.Object), object: object}
}

// Event adds an event. Commit records it.
func (u *Update) Event(e Event) { u.events = append(u.events, e) }

// changed reports whether the object differs from the object that was read. Usually, the two are equal, and
// reflect.DeepEqual determines this with a fifth of the CPU time and an eighth of the memory of
// equality.Semantic.DeepEqual.
func (u *Update) changed() bool {
	return !reflect.DeepEqual(u.before, u.object) && !equality.Semantic.DeepEqual(u.before, u.object)
}

// rare returns the reasons of the rare events.
func (u *Update) rare() (reasons []string) {
	for _, e := range u.events {
		if e.Rare {
			reasons = append(reasons, e.Reason)
		}
	}
	return reasons
}

// Commit patches the status if it has changed, and records the events if the patch has succeeded. It returns no error
// if the object has been deleted.
func (u *Update) Commit(ctx context.Context, c client.Client, recorder events.EventRecorder) error {
	if u.changed() {
		if err := c.Status().Patch(ctx, u.object, client.MergeFrom(u.before)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("write status of %s: %w", client.ObjectKeyFromObject(u.object), err)
		}
	}
	for _, e := range u.events {
		kind := corev1.EventTypeNormal
		if e.Warning {
			kind = corev1.EventTypeWarning
		}
		recorder.Eventf(u.object, runtime.Object(nil), kind, e.Reason, e.Action, "%s", protocol.Cut(e.Message, maxNote))
	}
	u.events = nil
	return nil
}

// maxMessage limits the message of a condition, in bytes.
const maxMessage = 1536

// Readiness is the overall result of reconciling an object, as shown in its status.
type Readiness struct {
	Ready bool
	// Stalled is true if manual action is required.
	Stalled         bool
	Reason, Message string
	// Again is the time until the next check. If it is 0, the controller waits for a change.
	Again time.Duration
	// At is the time of a transition. The default is the current time.
	At time.Time
}

// Write sets the Ready condition, sets the Stalled condition while manual action is required, and sets observed to the
// generation that the conditions refer to. This is what kstatus expects.
func (r Readiness) Write(generation int64, observed *int64, conditions *[]metav1.Condition) {
	*observed = generation
	c := metav1.Condition{Type: v1.ConditionReady, Status: metav1.ConditionFalse, Reason: r.Reason,
		Message: protocol.Cut(r.Message, maxMessage), ObservedGeneration: generation,
		LastTransitionTime: metav1.NewTime(r.At)}
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
