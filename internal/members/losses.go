// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import "time"

const (
	// admittedPerSecond is the number of agents that a hub on two cores admits per second, see internal/server/pace.go.
	admittedPerSecond = 400
	// manyTime is the length of the queue above which losses count as many. It is the time that the hub takes to admit
	// their agents again.
	manyTime = time.Second
)

// ReturnTime is how long agents that lost their hub may take to come back, in addition to the time that the hub takes
// to admit them. It covers their first few attempts.
const ReturnTime = 25 * time.Second

// AdmissionTime returns how long a hub takes to admit this many agents. The hub limits the rate at which it admits
// agents.
func AdmissionTime(agents int) time.Duration {
	return time.Duration(agents) * time.Second / admittedPerSecond
}

// losses distinguishes the loss of a few members from the loss of many at the same time. Many are lost when something
// between them and the hub fails, and most of them come back. The rate at which the hub admits them decides when each
// one is back. Until then, the absence of a member says nothing about that member.
//
// It is a virtual queue, as in the generic cell rate algorithm: a lost member takes a place, a member that is back
// gives up its place, and the hub serves admittedPerSecond. A single member that comes and goes all the time therefore
// does not look like many members. table.mu guards it.
type losses struct {
	admitted time.Time // when the queue will be empty
	// many is the latest time at which the queue was expected to be empty when a member was lost as one of many. It is
	// zero if there was no such loss.
	many time.Time
}

// lost must be called when a member has lost its last tunnel.
func (l *losses) lost(now time.Time) {
	if l.admitted.Before(now) {
		l.admitted = now
	}
	l.admitted = l.admitted.Add(AdmissionTime(1))
	// The return of members makes the queue shorter, but does not shorten the time for the others.
	if l.admitted.Sub(now) > manyTime && l.admitted.After(l.many) {
		l.many = l.admitted
	}
}

// returned must be called when a lost member is back.
func (l *losses) returned() { l.admitted = l.admitted.Add(-AdmissionTime(1)) }

// returning returns until when a member that was lost at the given time may be on its way back as one of many, or zero
// if there were not many. Later losses of other members delay this time at most to the time that would apply if all
// members had been lost together with this one.
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
