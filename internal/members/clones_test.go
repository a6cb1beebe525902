// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"slices"
	"testing"
	"time"
)

func TestTwoTermsInForceAtOnceProveTwoClusters(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		seen   []sighting
		proven bool
	}{
		"one term, another, and the first again":                  {[]sighting{{"a", "1"}, {"b", "2"}, {"a", "1"}}, true},
		"the same, but a third process sees the first term again": {[]sighting{{"a", "1"}, {"b", "2"}, {"c", "1"}}, true},
		"the leader changes": {
			[]sighting{{"a", "1"}, {"b", "1"}, {"a", "2"}, {"b", "2"}}, false,
		},
		"the leader changes twice": {
			[]sighting{{"a", "1"}, {"b", "2"}, {"a", "2"}, {"b", "3"}}, false,
		},
		"a stopped process continues and sees the current term": {
			[]sighting{{"a", "2"}, {"b", "2"}, {"a", "2"}, {"b", "2"}}, false,
		},
		"a process does not answer": {
			[]sighting{{"a", ""}, {"b", "2"}, {"a", ""}, {"b", "2"}}, false,
		},
		"no process leads for a moment": {
			[]sighting{{"a", "1"}, {"b", ""}, {"a", "1"}, {"b", ""}}, false,
		},
		"no process leads": {
			[]sighting{{"a", ""}, {"b", ""}, {"a", ""}, {"b", ""}}, false,
		},
		"neither of two terms is seen again": {[]sighting{{"a", "1"}, {"b", "2"}}, false},
		"a single process begins a new term": {[]sighting{{"a", "1"}, {"a", "2"}}, false},
		"no process is connected":            {nil, false},
		"one of two clusters changes its leader in the meantime": {
			[]sighting{{"a", "1"}, {"b", "2"}, {"a", "3"}, {"b", "2"}}, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, _, proven := proveClones(tt.seen); proven != tt.proven {
				t.Errorf("proven is %t, want %t", proven, tt.proven)
			}
		})
	}
}

func TestMemberCountsAsOneClusterAfterAllAgreeForALease(t *testing.T) {
	t.Parallel()
	two := []sighting{{"a", "1"}, {"b", "2"}, {"a", "1"}, {"b", "2"}}
	for name, tt := range map[string]struct {
		later []sighting // seen in each round after that
		after time.Duration
		want  bool // whether there are still two clusters
	}{
		"there are still two":                               {two, time.Hour, true},
		"one is gone for less than the duration of a Lease": {[]sighting{{"a", "1"}, {"a", "1"}}, 14 * time.Second, true},
		"one is gone for the duration of a Lease":           {[]sighting{{"a", "1"}, {"a", "1"}}, 15 * time.Second, false},
		"both are gone":                                     {nil, 15 * time.Second, false},
		"one is gone, and the other does not answer":        {[]sighting{{"a", ""}, {"a", ""}}, 15 * time.Second, false},
		"one does not answer, but may be the copy": {
			[]sighting{{"a", "1"}, {"b", ""}, {"a", "1"}, {"b", ""}}, time.Hour, true,
		},
		"neither answers": {
			[]sighting{{"a", ""}, {"b", ""}, {"a", ""}, {"b", ""}}, time.Hour, true,
		},
		"one is gone, and the other has two replicas": {
			[]sighting{{"a", "1"}, {"c", "1"}, {"a", "1"}, {"c", "1"}}, 15 * time.Second, false,
		},
		"the copy has another leader": {
			[]sighting{{"a", "1"}, {"c", "3"}, {"a", "1"}, {"c", "3"}}, time.Hour, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := time.Unix(0, 0)
			e := examination{}.after(two, now)
			if e.found == nil || !slices.Equal(e.found.Agents, []string{"a", "b"}) {
				t.Fatalf("found %+v, want the agents a and b", e.found)
			}
			for end := now.Add(tt.after); now.Before(end); {
				now = now.Add(min(examineEvery, end.Sub(now)))
				e = e.after(tt.later, now)
			}
			if is := e.found != nil; is != tt.want {
				t.Errorf("two clusters: %t, want %t", is, tt.want)
			}
		})
	}
}

func TestNamedAgentsStayWhileTheyAreConnected(t *testing.T) {
	t.Parallel()
	e := examination{}.after([]sighting{{"a", "1"}, {"b", "2"}, {"a", "1"}, {"b", "2"}}, time.Unix(0, 0))
	first := e.found
	e = e.after([]sighting{{"c", "2"}, {"a", "1"}, {"b", "2"}, {"c", "2"}, {"a", "1"}, {"b", "2"}}, time.Unix(5, 0))
	if e.found != first {
		t.Errorf("the agents are %v, want the earlier ones while they are connected, because each change writes a status",
			e.found.Agents)
	}
	e = e.after([]sighting{{"c", "2"}, {"a", "1"}, {"c", "2"}, {"a", "1"}}, time.Unix(10, 0))
	if !slices.Equal(e.found.Agents, []string{"a", "c"}) {
		t.Errorf("the agents are %v, want a and c, because b is gone", e.found.Agents)
	}
}
