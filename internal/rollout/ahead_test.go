// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
)

var (
	seed   = flag.Uint64("seed", 0, "seed of generated plans; 0 takes one from the clock")
	rounds = flag.Int("rounds", 150, "generated plans")
)

// done returns the status of a plan whose revision nodes of a member have.
func done(revision, reason string, complete int32) *rollout.Status {
	s := reported(revision, reason)
	s.LatestHash, s.Nodes = "h-"+revision, &v1.PlanCount{Total: 3, Complete: complete}
	return rollout.StatusOf(s)
}

func TestMembersAhead(t *testing.T) {
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	complete := &rollout.ClusterClaim{Revision: "r", Since: now, Complete: &now}
	working := &rollout.ClusterClaim{Revision: "r", Since: now}
	old := &rollout.ClusterClaim{Revision: "before", Since: now, Complete: &now}
	ahead := &rollout.ClusterClaim{Since: now, Ahead: &rollout.Ahead{Found: "later", Plan: "r"}}
	sameWork := done("later", v1.ReasonComplete, 3)
	sameWork.Hash = "h"
	for name, tt := range map[string]struct {
		cluster  rollout.Cluster
		change   func(*rollout.FleetPlan)
		step     string
		reason   string
		delivery rollout.Delivery
	}{
		"a complete claim and another revision complete in the member": {
			rollout.Cluster{Claim: complete, Status: done("later", v1.ReasonComplete, 3)}, nil, "doubt a", "",
			rollout.DeliverPaused,
		},
		"some nodes of it complete": {
			rollout.Cluster{Claim: complete, Status: done("later", v1.ReasonApplying, 1)}, nil, "doubt a", "",
			rollout.DeliverPaused,
		},
		"some nodes of it complete, and the plan paused": {
			rollout.Cluster{Claim: complete, Status: done("later", v1.ReasonPaused, 1)}, nil, "doubt a", "",
			rollout.DeliverPaused,
		},
		"a complete claim of a member whose nodes have nothing of it": {
			rollout.Cluster{Claim: complete, Status: done("r", v1.ReasonPaused, 0)}, nil, "doubt a", "", rollout.DeliverPaused,
		},
		"some nodes have the revision": {
			rollout.Cluster{Claim: complete, Status: done("r", v1.ReasonPaused, 2)}, nil, "", v1.ReasonComplete,
			rollout.DeliverPlan,
		},
		"a member at work may report an earlier revision": {
			rollout.Cluster{Claim: working, Status: done("later", v1.ReasonComplete, 3)}, nil, "", v1.ReasonApplying,
			rollout.DeliverPlan,
		},
		"a claim of an earlier revision": {
			rollout.Cluster{Claim: old, Status: done("later", v1.ReasonComplete, 3)}, nil, "doubt a", "", rollout.DeliverPaused,
		},
		"no node of it complete": {
			rollout.Cluster{Claim: complete, Status: done("later", v1.ReasonPaused, 0)}, nil, "", v1.ReasonComplete,
			rollout.DeliverPaused,
		},
		"the same work by another selector": {
			rollout.Cluster{Claim: complete, Status: sameWork}, nil, "", v1.ReasonComplete, rollout.DeliverPaused,
		},
		"work with the hash in the label": {
			rollout.Cluster{Claim: complete, Labels: map[string]string{"plan.cluster.drover.dev/p": "h-later"},
				Status: done("later", v1.ReasonComplete, 3)}, nil, "", v1.ReasonComplete, rollout.DeliverPaused,
		},
		"a member that has not reported keeps its plan": {
			rollout.Cluster{Claim: complete, Unreported: true}, nil, "", v1.ReasonApplying, rollout.DeliverUnchanged,
		},
		"a member that is away and has not reported": {
			rollout.Cluster{Claim: complete, Unreported: true, Away: "away"}, nil, "", v1.ReasonComplete,
			rollout.DeliverUnchanged,
		},
		"a member ahead stops the plan": {
			rollout.Cluster{Claim: ahead, Status: done("r", v1.ReasonPaused, 0)}, nil, "", v1.ReasonMemberAhead,
			rollout.DeliverPaused,
		},
		"until a user resumes this revision": {
			rollout.Cluster{Claim: ahead, Status: done("r", v1.ReasonPaused, 0)}, func(p *rollout.FleetPlan) { p.Resume = "r" },
			"begin a", "", rollout.DeliverPaused,
		},
		"resuming another revision does not count": {
			rollout.Cluster{Claim: ahead, Status: done("r", v1.ReasonPaused, 0)}, func(p *rollout.FleetPlan) { p.Resume = "q" },
			"", v1.ReasonMemberAhead, rollout.DeliverPaused,
		},
		"until a user changes the plan": {
			rollout.Cluster{Claim: ahead, Status: done("later", v1.ReasonComplete, 3)},
			func(p *rollout.FleetPlan) { p.Revision, p.Hash = "later", "h-later" }, "begin a", "", rollout.DeliverPaused,
		},
		"until a user disables the plan on the member": {
			rollout.Cluster{Claim: ahead, Labels: map[string]string{"plan.cluster.drover.dev/p": v1.PlanDisabled},
				Status: done("r", v1.ReasonPaused, 0)}, nil, "release a", "", rollout.DeliverPaused,
		},
		"a paused plan says so first, and does not continue": {
			rollout.Cluster{Claim: ahead, Status: done("r", v1.ReasonPaused, 0)},
			func(p *rollout.FleetPlan) { p.Pace.Paused = true }, "", v1.ReasonPaused, rollout.DeliverPaused,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := tt.cluster
			c.Name, c.Selected = "a", true
			plan := rollout.FleetPlan{Name: "p", Hash: "h", Revision: "r"}
			if tt.change != nil {
				tt.change(&plan)
			}
			f, err := rollout.NewFleet([]rollout.Cluster{c}, plan, now)
			if err != nil {
				t.Fatal(err)
			}
			d, step := f.Next(), ""
			if d.Step != nil {
				step = fmt.Sprintf("%s %s", d.Step.Verb, d.Step.Cluster)
			}
			if step != tt.step || d.Wait.Reason != tt.reason || f.Deliver(&c) != tt.delivery {
				t.Errorf("step %q, wait %+v, delivery %s", step, d.Wait, f.Deliver(&c))
			}
			if d.Wait.Reason == v1.ReasonMemberAhead && !strings.Contains(d.Wait.Message, "cluster.drover.dev/resume=r") {
				t.Errorf("the message is %v, want it to name the annotation that lets the plan continue", d.Wait.Message)
			}
		})
	}
}

// restoredHub is the state of a plan in etcd. site is a member, which does not change when the hub is restored.
type restoredHub struct {
	plan   rollout.FleetPlan
	claims map[string]*rollout.ClusterClaim
	labels map[string]string
}

type site struct {
	revision, hash string
	paused         bool
	done           string // the hash on its nodes
}

func (s site) status() *rollout.Status {
	if s.revision == "" {
		return nil
	}
	st := reported(s.revision, v1.ReasonApplying)
	st.LatestHash, st.Nodes = s.hash, &v1.PlanCount{Total: 1}
	switch {
	case s.done == s.hash:
		st.Nodes.Complete, st.Conditions[0].Reason = 1, v1.ReasonComplete
	case s.paused:
		st.Conditions[0].Reason = v1.ReasonPaused
	}
	return rollout.StatusOf(st)
}

func (h restoredHub) copied() restoredHub {
	return restoredHub{plan: h.plan, claims: maps.Clone(h.claims), labels: maps.Clone(h.labels)}
}

// TestRestoredHub runs plans that change at random on members that report late. A hub that has lost nothing never finds
// a member ahead. After a restore no member repeats work that it had done before.
func TestRestoredHub(t *testing.T) {
	start := *seed
	if start == 0 {
		start = uint64(time.Now().UnixNano())
	}
	found := 0
	for round := range 2 * *rounds {
		r := rand.New(rand.NewPCG(start, uint64(round)))
		if err := restored(r, &found); err != nil {
			t.Fatalf("seed %d, round %d: %v", start, round, err)
		}
	}
	if found == 0 {
		t.Error("no member was ever found ahead, want some: otherwise the test shows nothing")
	}
}

func restored(r *rand.Rand, found *int) error {
	names := []string{"a", "b", "c", "d"}[:1+r.IntN(4)]
	h := restoredHub{plan: planOf(r), claims: map[string]*rollout.ClusterClaim{}, labels: map[string]string{}}
	sites, heard := map[string]*site{}, map[string]*rollout.Status{}
	for _, name := range names {
		sites[name] = &site{}
	}
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	backup, unreported := h.copied(), map[string]bool{}
	restoredAt := 100 + r.IntN(100)
	known := map[string]string{} // the work of members at the time of the backup
	for tick := range 300 {
		now = now.Add(time.Minute)
		switch {
		case tick == restoredAt:
			h, heard = backup.copied(), map[string]*rollout.Status{}
			for _, name := range names {
				unreported[name] = true
			}
		case tick < restoredAt && r.IntN(20) == 0:
			h.plan = planOf(r)
		case tick < restoredAt && r.IntN(30) == 0 && len(h.claims) == len(names):
			backup = h.copied()
			for name, s := range sites {
				known[name] = s.done
			}
		}
		var clusters []rollout.Cluster
		for _, name := range names {
			if r.IntN(2) == 0 {
				heard[name], unreported[name] = sites[name].status(), false
			}
			clusters = append(clusters, rollout.Cluster{Name: name, Selected: true, Claim: h.claims[name], Status: heard[name],
				Unreported: unreported[name],
				Labels:     map[string]string{v1.PlanLabel("p"): h.labels[name]}})
		}
		f, err := rollout.NewFleet(clusters, h.plan, now)
		if err != nil {
			return err
		}
		for i, name := range names {
			if s := sites[name]; r.IntN(2) == 0 {
				had := *s
				s.take(f.Deliver(&clusters[i]), h.plan)
				if claim := h.claims[name]; tick >= restoredAt && claim != nil && claim.Complete != nil &&
					claim == backup.claims[name] && s.done != known[name] && s.hash != s.done && !s.paused && *s != had {
					return fmt.Errorf("tick %d: %s had done %s and is to do %s, restored was %s", tick, name, s.done, s.hash,
						known[name])
				}
				if s.revision != "" && !s.paused && r.IntN(3) == 0 {
					s.done = s.hash
				}
			}
		}
		step := f.Next().Step
		if step == nil {
			continue
		}
		if step.Verb == rollout.VerbDoubt {
			if *found++; tick < restoredAt {
				return fmt.Errorf("tick %d: %+v, claimed %+v, said %+v, plan %+v", tick, step, h.claims[step.Cluster],
					heard[step.Cluster], h.plan)
			}
		}
		if step.Verb == rollout.VerbBegin && !reflect.DeepEqual(heard[step.Cluster], sites[step.Cluster].status()) {
			continue // the member is asked first
		}
		h.claims[step.Cluster] = step.Claim
		if step.Label != "" {
			h.labels[step.Cluster] = step.Label
		}
	}
	return nil
}

// planOf returns one of a few revisions, some of which do the same work.
func planOf(r *rand.Rand) rollout.FleetPlan {
	n := r.IntN(6)
	p := rollout.FleetPlan{Name: "p", Revision: fmt.Sprint("r", n), Hash: fmt.Sprint("h", slices.Max([]int{n, 1}))}
	p.Pace.MaxConcurrent = 1 + r.IntN(3)
	return p
}

// take does the work of an agent that receives a plan.
func (s *site) take(d rollout.Delivery, p rollout.FleetPlan) {
	switch d {
	case rollout.DeliverNothing:
		*s = site{done: s.done}
	case rollout.DeliverPlan, rollout.DeliverPaused:
		s.revision, s.hash, s.paused = p.Revision, p.Hash, d == rollout.DeliverPaused
	}
}
