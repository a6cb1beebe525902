// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"net/url"
)

// PathReport responds to a GET request with a stream of Lines, one JSON object per line. The query names the subjects
// (see StreamPath). The latest states are sent immediately, and each change is sent as another line. The stream ends
// when the tunnel ends.
//
// Each replica of the agent sends its Report. Only the leader sends sets and Plans: first the current states, then
// Synced, and then each change. When a replica becomes the leader, it starts to send them on streams that are already
// open. When it is no longer the leader, it sends Stopped.
const PathReport = "/v1/report"

// Subjects of PathReport.
const (
	SubjectReport = "report"
	SubjectSets   = "sets"
	SubjectPlans  = "plans"
)

// AllSubjects returns the subjects in the order in which a stream sends their lines.
func AllSubjects() []string { return []string{SubjectReport, SubjectSets, SubjectPlans} }

// querySubject is the query parameter that names a subject. A request without this parameter, such as a request from
// an older hub, asks for SubjectReport.
const querySubject = "subject"

// MaxLine is the maximum length, in bytes, of a line in the response to PathReport. The hub closes the tunnel if a line
// is longer.
const MaxLine = 64 << 10

// StreamPath returns the path and query for a stream of lines about the given subjects.
func StreamPath(subjects ...string) string {
	return PathReport + "?" + url.Values{querySubject: subjects}.Encode()
}

// Subjects returns the subjects that a request for PathReport names.
func Subjects(u *url.URL) []string {
	if subjects := u.Query()[querySubject]; len(subjects) > 0 {
		return subjects
	}
	return []string{SubjectReport}
}

// Line is a line in the response to PathReport. It contains either the fields of a report, a set event, or a plan
// event.
type Line struct {
	*Report
	Set  *SetEvent  `json:"set,omitempty"`
	Plan *PlanEvent `json:"plan,omitempty"`
}

// Bound trims a line to its limits.
func (l *Line) Bound() {
	if l.Report != nil {
		l.Report.Bound()
	}
	if l.Set != nil {
		l.Set.Bound()
	}
	if l.Plan != nil {
		l.Plan.Bound()
	}
}

// Synced returns a line that marks the complete state of a subject as sent. It returns nil for SubjectReport, because a
// report is a single line.
func Synced(subject string) *Line {
	return event(subject, SetEvent{Synced: true}, PlanEvent{Synced: true})
}

// Stopped returns a line that announces that no more changes to a subject will follow.
func Stopped(subject string) *Line {
	return event(subject, SetEvent{Stopped: true}, PlanEvent{Stopped: true})
}

// Removed returns a line that announces the removal of the set or plan with the given name.
func Removed(subject, name string) *Line {
	return event(subject, SetEvent{Removed: name}, PlanEvent{Removed: name})
}

// event returns a line with an event about sets or an event about Plans. It returns nil for SubjectReport.
func event(subject string, set SetEvent, plan PlanEvent) *Line {
	switch subject {
	case SubjectSets:
		return &Line{Set: &set}
	case SubjectPlans:
		return &Line{Plan: &plan}
	}
	return nil
}
