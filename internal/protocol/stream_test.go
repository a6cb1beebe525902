// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/protocol"
)

func TestRequestNamesItsSubjects(t *testing.T) {
	for path, want := range map[string][]string{
		protocol.PathReport: {protocol.SubjectReport}, // the request of an older hub
		protocol.StreamPath(protocol.SubjectSets, protocol.SubjectPlans): {protocol.SubjectSets, protocol.SubjectPlans},
	} {
		u, err := url.Parse(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := protocol.Subjects(u); u.Path != protocol.PathReport || !slices.Equal(got, want) {
			t.Errorf("%s has the path %s and subjects %v, want %v", path, u.Path, got, want)
		}
	}
}

// An agent of the previous version sends only reports, and a hub of the previous version reads only reports.
func TestLineWithAReportHasTheFormOfTheReport(t *testing.T) {
	report := protocol.Report{
		Protocol: 1, Version: "v1.36.3", Capabilities: protocol.Capabilities{Features: []string{"sets"}},
	}
	alone, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	line, err := json.Marshal(protocol.Line{Report: &report})
	if err != nil {
		t.Fatal(err)
	}
	if string(line) != string(alone) {
		t.Errorf("the line is %s, want %s", line, alone)
	}
	var read protocol.Line
	if err := json.Unmarshal(alone, &read); err != nil || read.Report == nil || read.Version != report.Version ||
		!read.Has("sets") || read.Set != nil {
		t.Errorf("read %+v, %v, want the report and its subjects", read, err)
	}
}

func TestMarksBelongToTheirSubject(t *testing.T) {
	for want, line := range map[string]*protocol.Line{
		`{"set":{"synced":true}}`:          protocol.Synced(protocol.SubjectSets),
		`{"plan":{"synced":true}}`:         protocol.Synced(protocol.SubjectPlans),
		`{"set":{"stopped":true}}`:         protocol.Stopped(protocol.SubjectSets),
		`{"plan":{"stopped":true}}`:        protocol.Stopped(protocol.SubjectPlans),
		`{"set":{"removed":"crtb/alice"}}`: protocol.Removed(protocol.SubjectSets, "crtb/alice"),
		`{"plan":{"removed":"k3s"}}`:       protocol.Removed(protocol.SubjectPlans, "k3s"),
	} {
		if got, err := json.Marshal(line); err != nil || string(got) != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
	if protocol.Synced(protocol.SubjectReport) != nil || protocol.Stopped(protocol.SubjectReport) != nil {
		t.Error("the report has marks, want none")
	}
}

func TestLineIsTrimmedToItsLimits(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	line := protocol.Line{
		Report: &protocol.Report{Version: long},
		Set:    &protocol.SetEvent{State: &protocol.SetState{Message: long}},
		Plan:   &protocol.PlanEvent{Hold: &protocol.PlanHold{Reason: long}},
	}
	line.Bound()
	if raw, err := json.Marshal(line); err != nil || len(raw) > protocol.MaxLine {
		t.Errorf("got %d bytes, %v, want at most %d", len(raw), err, protocol.MaxLine)
	}
}
