// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/status"
)

// Delays for controllers that write a summary.
const (
	// hold is how long a status update is delayed while a set is Pending.
	hold = time.Second
	// burst is how long a status update is delayed while a member is busy. Status updates during a burst of sets would
	// slow down the delivery of the sets.
	burst = 2 * time.Second
	// lookAgain is the delay before busy members are checked again.
	lookAgain = 500 * time.Millisecond
	// listenAgain is the delay before agents that have not reported yet are checked again. Usually, their reports cause an
	// earlier notification.
	listenAgain = 5 * time.Second
)

// Summary combines the outcomes in all members.
type Summary struct {
	// Ready is the status of the Ready condition, and Reason and Message explain it. Stalled is true if manual action
	// is required.
	Ready   bool
	Reason  string
	Message string
	Stalled bool
	// Incomplete describes the Complete condition. This condition covers all members, including disconnected members.
	Incomplete Incomplete
	// Refused is true if the hub itself refuses to deliver the object or a part of it.
	Refused bool
	// Unreported is true if at least one agent has not reported yet.
	Unreported bool
	// Since is the latest Since of all outcomes that are Pending, or zero if there are none.
	Since time.Time
	// Busy is the latest Since of all outcomes in busy members, or zero if there are none.
	Busy     time.Time
	Clusters v1.ClusterCount
	// Failures are the first failures, sorted by cluster and object.
	Failures []v1.Failure
}

// Incomplete explains why a set is not in all members even though Ready is True. The zero value means that the Complete
// condition is the same as Ready.
type Incomplete struct{ Reason, Message string }

// Summarize returns the summary of outcomes.
func Summarize(outcomes []Outcome) Summary {
	v := Summary{Clusters: v1.ClusterCount{Desired: int32(len(outcomes))}}
	counts := map[Stage]int{}
	var worst Outcome
	for _, o := range outcomes {
		counts[o.Stage]++
		if o.Stage >= Failed && rank(o.Reason) > rank(worst.Reason) {
			worst = o
		}
		v.Failures = append(v.Failures, o.Failures...)
		if o.Stage == Pending && o.Since.After(v.Since) {
			v.Since = o.Since
		}
		if o.Busy && o.Since.After(v.Busy) {
			v.Busy = o.Since
		}
	}
	v.Clusters.Applied, v.Clusters.Failed = int32(counts[Applied]), int32(counts[Failed]+counts[Refused])
	v.Clusters.Summary = fmt.Sprintf("%d/%d", v.Clusters.Applied, v.Clusters.Desired)
	v.Failures = firstFailures(v.Failures)
	v.Unreported = counts[Unreported] > 0
	switch {
	case worst.Reason != "":
		v.Reason, v.Stalled = worst.Reason, slices.Contains(stalling(), worst.Reason)
		v.Message = fmt.Sprintf("%d of %d clusters do not have all of it. In cluster %s: %s",
			v.Clusters.Failed, v.Clusters.Desired, worst.Cluster, Explain(worst.Failures[0]))
	case counts[Pending]+counts[Unreported] > 0:
		v.Reason = v1.ReasonDelivering
		v.Message = fmt.Sprintf("%s clusters have it; it is being sent to the others that are connected", v.Clusters.Summary)
	case counts[Away] > 0:
		v.Ready, v.Reason = true, v1.ReasonApplied
		if counts[Applied] == 0 {
			v.Reason = v1.ReasonMembersAway
		}
		v.Message = fmt.Sprintf("%s clusters have it; %d are not connected and get it when they are",
			v.Clusters.Summary, counts[Away])
		v.Incomplete = Incomplete{Reason: v1.ReasonMembersAway, Message: v.Message}
	case len(outcomes) == 0:
		v.Ready, v.Reason, v.Message = true, v1.ReasonNoClusters, "No cluster is selected at present"
	default:
		v.Ready, v.Reason, v.Message = true, v1.ReasonApplied, fmt.Sprintf("%s clusters have it", v.Clusters.Summary)
	}
	return v
}

// Delay returns how long to wait before the summary is written, or 0 to write it now. The wait avoids writing a summary
// that will soon change. The observed argument is true if the status is for the current generation.
func (v Summary) Delay(observed bool, now time.Time) time.Duration {
	if v.Unreported && observed {
		return listenAgain
	}
	return max(0, v.Since.Add(hold).Sub(now), min(lookAgain, v.Busy.Add(burst).Sub(now)))
}

// Urgent reports whether the summary differs because of a change on the hub, rather than only because of changes in
// members. The observed argument has the same meaning as for Delay. The counts in the current status are passed as was.
func (v Summary) Urgent(observed bool, was *v1.ClusterCount) bool {
	return !observed || v.Refused || was == nil || was.Desired != v.Clusters.Desired
}

// Refuse replaces the summary with the reason why an object cannot be delivered completely to the given number of
// members.
func (v *Summary) Refuse(members int, reason, message string, stalled bool) {
	v.Ready, v.Reason, v.Message, v.Stalled, v.Refused, v.Unreported, v.Since, v.Busy, v.Incomplete =
		false, reason, message, stalled, true, false, time.Time{}, time.Time{}, Incomplete{}
	if v.Clusters.Desired == 0 {
		v.Clusters = v1.ClusterCount{Desired: int32(members), Summary: fmt.Sprintf("0/%d", members)}
	}
}

// Expire replaces the summary with one for an expired binding. held, away and unreported are the results of Remains.
// The status does not change until unreported is 0, because the results are incomplete when the manager has just
// started.
func (v *Summary) Expire(message string, held, away, unreported int) {
	*v = Summary{
		Ready: true, Reason: v1.ReasonExpired, Message: message, Refused: true, Unreported: unreported > 0,
		Clusters: v1.ClusterCount{Summary: "0/0"},
	}
	switch {
	case held+unreported > 0:
		held += unreported
		v.Incomplete = Incomplete{
			Reason: v1.ReasonDelivering, Message: fmt.Sprintf("It is being removed from %d clusters", held),
		}
	case away > 0:
		v.Incomplete = Incomplete{Reason: v1.ReasonMembersAway, Message: fmt.Sprintf(
			"%d clusters are not connected, or wait for a confirmation after a restore of the hub; their agents remove it "+
				"by their own clocks", away)}
	}
}

// Write writes the summary into conditions, and reports whether an event should be emitted for the summary's reason. No
// event is emitted for ReasonDelivering.
func (v Summary) Write(conditions *[]metav1.Condition, generation int64, now time.Time) (news bool) {
	was := meta.FindStatusCondition(*conditions, v1.ConditionReady)
	if v.Reason == v1.ReasonMembersAway && !delivered(was) {
		v.Ready = false
	}
	news = (was == nil || was.Reason != v.Reason) && v.Reason != v1.ReasonDelivering
	set := func(kind string, is bool, reason, message string) {
		c := metav1.Condition{
			Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message,
			ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(now),
		}
		if is {
			c.Status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(conditions, c)
	}
	set(v1.ConditionReady, v.Ready, v.Reason, v.Message)
	if whole := v.Incomplete; whole.Reason != "" {
		set(v1.ConditionComplete, false, whole.Reason, whole.Message)
	} else {
		set(v1.ConditionComplete, v.Ready, v.Reason, v.Message)
	}
	if v.Stalled {
		set(v1.ConditionStalled, true, v.Reason, v.Message)
	} else {
		meta.RemoveStatusCondition(conditions, v1.ConditionStalled)
	}
	return news
}

// delivered reports whether, according to the Ready condition, at least one member has the object. While no member is
// connected, the condition is the only evidence.
func delivered(ready *metav1.Condition) bool {
	return ready != nil && ready.Status == metav1.ConditionTrue && ready.Reason != v1.ReasonNoClusters
}

// Status is the part of an object's status into which a summary is written.
type Status struct {
	Observed   *int64
	Conditions *[]metav1.Condition
	Clusters   **v1.ClusterCount
}

// Change returns a function that writes the summary into an object's status for the given generation. If more is not
// nil, it changes the rest of the status.
func (v Summary) Change(generation int64, s Status, now time.Time, more func(*status.Update)) status.Change {
	observed := *s.Observed == generation
	return status.Change{Delay: v.Delay(observed, now), Fill: func(u *status.Update) bool {
		urgent := v.Urgent(observed, *s.Clusters)
		if v.Write(s.Conditions, generation, now) {
			u.Event(status.Event{Warning: !v.Ready, Reason: v.Reason, Action: "Deliver", Message: v.Message})
		}
		if *s.Observed, *s.Clusters = generation, &v.Clusters; more != nil {
			more(u)
		}
		return urgent
	}}
}

// stalling returns the reasons that require manual action.
func stalling() []string {
	return []string{
		v1.ReasonRoleMissing, v1.ReasonForbidden, v1.ReasonConflict, v1.ReasonFighting, v1.ReasonHubRestored,
		v1.ReasonIdentityMismatch,
	}
}

// rank orders reasons by urgency.
func rank(reason string) int {
	return 1 + slices.Index([]string{
		v1.ReasonAgentReadOnly, v1.ReasonAgentTooOld, v1.ReasonNoLeader, v1.ReasonDrifted, v1.ReasonRoleMissing,
		v1.ReasonUnhealthy, v1.ReasonDeliveryFailed, v1.ReasonForbidden, v1.ReasonConflict, v1.ReasonFighting,
		v1.ReasonHubRestored, v1.ReasonIdentityMismatch,
	}, reason)
}

// firstFailures returns the first failures, sorted by cluster and object. It returns at most one failure for each
// object.
func firstFailures(all []v1.Failure) []v1.Failure {
	slices.SortStableFunc(all, func(a, b v1.Failure) int {
		return cmp.Or(strings.Compare(a.Cluster, b.Cluster), strings.Compare(a.Object, b.Object))
	})
	all = slices.CompactFunc(all, func(a, b v1.Failure) bool { return a.Cluster == b.Cluster && a.Object == b.Object })
	return slices.Clone(all[:min(len(all), v1.MaxFailures)])
}
