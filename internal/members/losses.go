// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import "time"

const (
	// admittedPerSecond is the number of agents that a hub on two cores admits in a second, see internal/server/pace.go.
	admittedPerSecond = 400
	// manyTime makes many of losses at the same time: the hub takes longer than this to admit their agents again.
	manyTime = time.Second
)

// ReturnTime is how long agents that lost their hub may take to come back, beside the time in which the hub admits
// them: their first few attempts lie within it.
const ReturnTime = 25 * time.Second

// AdmissionTime returns how long a hub takes to admit that many agents: it limits their rate.
func AdmissionTime(agents int) time.Duration {
	return time.Duration(agents) * time.Second / admittedPerSecond
}

// losses tells the loss of a few members from that of many at the same time. Many are lost with what is between them
// and the hub, and mostly come back; in which order is decided by the rate at which the hub admits them. Until then
// their absence says nothing of any of them.
//
// It is a virtual queue, as of the generic cell rate algorithm: a member that is lost takes a place, one that is back
// gives it up, and the hub serves admittedPerSecond. A member that comes and goes all the time therefore does not look
// like many. table.mu guards it.
type losses struct {
	admitted time.Time // when the queue is empty
	many     time.Time // the latest time at which it would be empty, as was known at a loss of one of many; zero if there was none
}

// lost is called when a member has lost its last tunnel.
func (l *losses) lost(now time.Time) {
	if l.admitted.Before(now) {
		l.admitted = now
	}
	l.admitted = l.admitted.Add(AdmissionTime(1))
	if l.admitted.Sub(now) > manyTime && l.admitted.After(l.many) { // returns make the queue shorter, and not the time that was given to the others
		l.many = l.admitted
	}
}

// returned is called when a member that was lost is back.
func (l *losses) returned() { l.admitted = l.admitted.Add(-AdmissionTime(1)) }

// returning returns until when a member that was lost at a time may be on its way back as one of many; zero if there
// were not many. Others that are lost later do not make it later than if all members had been lost with this one.
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
