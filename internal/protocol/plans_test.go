// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

func TestCountsOfAMemberAreTrimmed(t *testing.T) {
	t.Parallel()
	said := &v1.PlanCount{
		Total: 3, Complete: -1, Applying: -7, Failed: 1, Held: -1, LeftOut: -1, Summary: strings.Repeat("9", 60<<10),
	}
	s := protocol.PlanState{Status: v1.PlanStatus{Nodes: said}}
	s.Bound()
	if want := (v1.PlanCount{Total: 3, Failed: 1, Summary: "0/3"}); *s.Status.Nodes != want {
		t.Errorf("got %+v, want %+v", *s.Status.Nodes, want)
	}
	if said.Complete != -1 {
		t.Error("Bound changed counts that others may be reading")
	}
}

func TestGatesOfAMemberAreReducedToTheirFindings(t *testing.T) {
	t.Parallel()
	found := v1.UpgradeFinding{Check: "NodesReady", Cause: "it is not ready"}
	s := protocol.PlanState{Status: v1.PlanStatus{Gates: &v1.GateStatus{Started: "h", Revision: "r",
		Findings: []v1.UpgradeFinding{found, found, found}, Overrides: []v1.OverrideStatus{{Check: "NodesReady"}}}}}
	s.Bound()
	if want := (v1.GateStatus{Findings: []v1.UpgradeFinding{found, found}}); !reflect.DeepEqual(*s.Status.Gates, want) {
		t.Errorf("the hub gets the gates %+v, want only the first two findings", *s.Status.Gates)
	}
}

// If the API server refused the report of one member, the hub could not write the status of any member.
func TestTimesThatAStatusCannotHaveAreDropped(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"9999-12-31T23:59:59-23:59", "0000-01-01T00:00:00+23:59",
		"0001-01-01T00:00:00Z", "9500-01-01T00:00:00Z"} {
		line := `{"name":"a","status":{"applying":[{"node":"n","stage":"Draining","since":"` + at + `"}],` +
			`"failures":[{"node":"n","at":"` + at + `"}]}}`
		var s protocol.PlanState
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatal(err)
		}
		if s.Bound(); len(s.Status.Applying)+len(s.Status.Failures) > 0 {
			t.Errorf("%s was kept in %+v, want it dropped", at, s.Status)
		}
	}
}

// Every report on plans is trimmed, because the status on the hub names twenty members.
func FuzzPlanEvent(f *testing.F) {
	for _, line := range []string{
		`{"state":{"name":"a","status":{"applying":[{"node":"n","stage":"Draining","since":"9999-12-31T23:59:59-23:59"}],` +
			`"failures":[{"node":"n","at":"0000-01-01T00:00:00+23:59"}]}}}`,
		`{"hold":{"reason":"x"}}`, `{"removed":"a"}`, `{"synced":true}`, `{"state":{"name":"\ud800"}}`,
		`{"state":{"name":"a","status":{"revision":"r","nodes":{"total":-1,"summary":"x"},
		 "conditions":[{"type":"Complete","reason":"Applying"}],
		 "applying":[{"node":"n","stage":"Draining","since":"2026-11-21T00:00:00Z"}],
		 "failures":[{"node":"n","at":"2026-11-21T00:00:00Z","log":"\u001b[2J"}]}}}`,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		var e protocol.PlanEvent
		if json.Unmarshal(line, &e) != nil {
			return
		}
		e.Bound()
		if e.State == nil {
			return
		}
		s := e.State.Status
		if len(s.Applying) > v1.MaxPlanNodes || len(s.Failures) > v1.MaxPlanNodes || len(s.Conditions) > 8 ||
			s.Members != nil || s.Waves != nil {
			t.Errorf("got %+v, want lists within their limits, and no members or waves", s)
		}
		if s.Nodes != nil && (len(s.Nodes.Summary) > 24 ||
			min(s.Nodes.Total, s.Nodes.Complete, s.Nodes.Applying, s.Nodes.Failed, s.Nodes.Held, s.Nodes.LeftOut) < 0) {
			t.Errorf("got %+v, want a short summary and no negative count", s.Nodes)
		}
		s.Conditions = nil // the hub writes its own
		text, err := json.Marshal(s)
		if err != nil || json.Unmarshal(text, &v1.PlanStatus{}) != nil {
			t.Errorf("a status cannot have %s: %v", text, err)
		}
		for _, failure := range s.Failures {
			if len(failure.Message) > 512 || len(failure.Log) > 1024 || failure.Cluster != "" {
				t.Errorf("got %+v, want message and log within their limits, and no cluster", failure)
			}
		}
	})
}
