// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"net/url"
)

// PathReport answers GET with a stream of Lines, one JSON object a line. The query names the subjects: see StreamPath.
// The latest state of each thing comes at once, and a further line when something changed. It ends with the tunnel.
//
// Each replica of the agent sends its Report. Only the leader among them sends sets and plans: the state of each that
// is there, then Synced, then each change. A replica that begins to lead does so on the streams that are open, and one
// that stops leading says Stopped.
const PathReport = "/v1/report"

// Subjects of PathReport.
const (
	SubjectReport = "report"
	SubjectSets   = "sets"
	SubjectPlans  = "plans"
)

// AllSubjects returns the subjects, in the order in which a stream sends their lines.
func AllSubjects() []string { return []string{SubjectReport, SubjectSets, SubjectPlans} }

// querySubject is the query parameter that names a subject. Without it a request is for the report, as those of older
// hubs are.
const querySubject = "subject"

// MaxLine is the length of a line of PathReport in bytes. A longer one ends the tunnel.
const MaxLine = 64 << 10

// StreamPath returns the path and query that ask for lines on these subjects.
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

// Line is a line of PathReport: a report, whose fields are those of the line, or one of the others.
type Line struct {
	*Report
	Set  *SetEvent  `json:"set,omitempty"`
	Plan *PlanEvent `json:"plan,omitempty"`
}

// Bound cuts a line to size.
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

// Synced returns the line which says that everything on a subject has been sent, nil for the report, which is a single
// line.
func Synced(subject string) *Line {
	return event(subject, SetEvent{Synced: true}, PlanEvent{Synced: true})
}

// Stopped returns the line which says that no more changes of a subject follow.
func Stopped(subject string) *Line {
	return event(subject, SetEvent{Stopped: true}, PlanEvent{Stopped: true})
}

// Removed returns the line which says that the set or plan of that name was removed.
func Removed(subject, name string) *Line {
	return event(subject, SetEvent{Removed: name}, PlanEvent{Removed: name})
}

// event returns the line with one of two events, or nil for the report.
func event(subject string, set SetEvent, plan PlanEvent) *Line {
	switch subject {
	case SubjectSets:
		return &Line{Set: &set}
	case SubjectPlans:
		return &Line{Plan: &plan}
	}
	return nil
}
