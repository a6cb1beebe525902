// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import "time"

const (
	// admittedPerSecond is the number of agents that a hub on two cores admits per second. See internal/server/pace.go.
	admittedPerSecond = 400
	// manyTime is the length of the queue above which many members count as lost. The length is the time that the hub
	// takes to admit all agents in the queue.
	manyTime = time.Second
)

// ReturnTime is how long agents may take to reconnect, in addition to the time that the hub takes to admit them. It is
// long enough for an agent's first few attempts.
const ReturnTime = 25 * time.Second

// AdmissionTime returns how long a hub takes to admit the given number of agents at its limited rate.
func AdmissionTime(agents int) time.Duration {
	return time.Duration(agents) * time.Second / admittedPerSecond
}

// losses distinguishes the loss of a few members from the loss of many members at the same time. Many members are lost
// at once if something fails between them and the hub. Most of them reconnect as fast as the hub admits them. Until
// then, the absence of a member does not indicate a problem with the member itself.
//
// losses is a virtual queue, as in the generic cell rate algorithm. A lost member joins the queue, a member that
// reconnects leaves it, and the hub serves admittedPerSecond members per second. A single member that keeps
// reconnecting therefore does not count as many members. losses is guarded by table.mu.
type losses struct {
	admitted time.Time // when the queue will be empty
	// many is the value that admitted had when the queue was last longer than manyTime. It is zero if the queue has never
	// been that long.
	many time.Time
}

// lost must be called when a member loses its last tunnel.
func (l *losses) lost(now time.Time) {
	if l.admitted.Before(now) {
		l.admitted = now
	}
	l.admitted = l.admitted.Add(AdmissionTime(1))
	// Members that reconnect shorten the queue, but they do not shorten the time that other lost members have to
	// reconnect.
	if l.admitted.Sub(now) > manyTime && l.admitted.After(l.many) {
		l.many = l.admitted
	}
}

// returned must be called when a lost member reconnects.
func (l *losses) returned() { l.admitted = l.admitted.Add(-AdmissionTime(1)) }

// returning returns the deadline for the reconnection of a member that was lost at the given time together with many
// others. It returns the zero time if the member was not lost together with many others. The deadline is extended if
// more members are lost later. It is never later than the deadline that would apply if all members had been lost at the
// same time as this one.
func (l *losses) returning(lost time.Time, members int) time.Time {
	if l.many.IsZero() {
		return time.Time{}
	}
	until, latest := l.many.Add(ReturnTime), lost.Add(ReturnTime+AdmissionTime(members))
	if until.After(latest) {
		return latest
	}
	return until
}
