// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"slices"
	"testing"
	"time"
)

func TestTwoTermsAtOnceAreOfTwoClusters(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		seen   []sighting
		proven bool
	}{
		"a term, another one, and the first again":                {[]sighting{{"a", "1"}, {"b", "2"}, {"a", "1"}}, true},
		"the same, seen by a third process":                       {[]sighting{{"a", "1"}, {"b", "2"}, {"c", "1"}}, true},
		"the leader changes":                                      {[]sighting{{"a", "1"}, {"b", "1"}, {"a", "2"}, {"b", "2"}}, false},
		"the leader changes twice":                                {[]sighting{{"a", "1"}, {"b", "2"}, {"a", "2"}, {"b", "3"}}, false},
		"one that was stopped goes on and sees what is in force":  {[]sighting{{"a", "2"}, {"b", "2"}, {"a", "2"}, {"b", "2"}}, false},
		"one that does not answer":                                {[]sighting{{"a", ""}, {"b", "2"}, {"a", ""}, {"b", "2"}}, false},
		"no process leads for a moment":                           {[]sighting{{"a", "1"}, {"b", ""}, {"a", "1"}, {"b", ""}}, false},
		"they lead without a Lease, where Leases are forbidden":   {[]sighting{{"a", ""}, {"b", ""}, {"a", ""}, {"b", ""}}, false},
		"two terms, of which neither was seen again":              {[]sighting{{"a", "1"}, {"b", "2"}}, false},
		"a single process whose leadership began anew":            {[]sighting{{"a", "1"}, {"a", "2"}}, false},
		"no process is connected":                                 {nil, false},
		"two clusters, one of which changes its leader meanwhile": {[]sighting{{"a", "1"}, {"b", "2"}, {"a", "3"}, {"b", "2"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, _, proven := proveClones(tt.seen); proven != tt.proven {
				t.Errorf("proven is %t, want %t", proven, tt.proven)
			}
		})
	}
}

func TestAMemberIsOneClusterAgainOnceAllAgreeForALease(t *testing.T) {
	t.Parallel()
	two := []sighting{{"a", "1"}, {"b", "2"}, {"a", "1"}, {"b", "2"}}
	for name, tt := range map[string]struct {
		later []sighting // seen in each round after that
		after time.Duration
		want  bool // whether they are two still
	}{
		"they are two still":                          {two, time.Hour, true},
		"one is gone, for less than a Lease":          {[]sighting{{"a", "1"}, {"a", "1"}}, 14 * time.Second, true},
		"one is gone for a Lease":                     {[]sighting{{"a", "1"}, {"a", "1"}}, 15 * time.Second, false},
		"both are gone":                               {nil, 15 * time.Second, false},
		"one is gone, and the other does not answer":  {[]sighting{{"a", ""}, {"a", ""}}, 15 * time.Second, false},
		"one does not answer, and may be the copy":    {[]sighting{{"a", "1"}, {"b", ""}, {"a", "1"}, {"b", ""}}, time.Hour, true},
		"neither answers":                             {[]sighting{{"a", ""}, {"b", ""}, {"a", ""}, {"b", ""}}, time.Hour, true},
		"one is gone, and the other has two replicas": {[]sighting{{"a", "1"}, {"c", "1"}, {"a", "1"}, {"c", "1"}}, 15 * time.Second, false},
		"the copy has another leader":                 {[]sighting{{"a", "1"}, {"c", "3"}, {"a", "1"}, {"c", "3"}}, time.Hour, true},
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

func TestTheAgentsThatAreNamedStayTheSame(t *testing.T) {
	t.Parallel()
	e := examination{}.after([]sighting{{"a", "1"}, {"b", "2"}, {"a", "1"}, {"b", "2"}}, time.Unix(0, 0))
	first := e.found
	e = e.after([]sighting{{"c", "2"}, {"a", "1"}, {"b", "2"}, {"c", "2"}, {"a", "1"}, {"b", "2"}}, time.Unix(5, 0))
	if e.found != first {
		t.Errorf("the agents are %v, want those from before while they are connected: each change writes a status", e.found.Agents)
	}
	e = e.after([]sighting{{"c", "2"}, {"a", "1"}, {"c", "2"}, {"a", "1"}}, time.Unix(10, 0))
	if !slices.Equal(e.found.Agents, []string{"a", "c"}) {
		t.Errorf("the agents are %v, want a and c, since b is gone", e.found.Agents)
	}
}
