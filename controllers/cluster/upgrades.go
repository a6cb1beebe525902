// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/rollout"
)

const (
	// lookedAtRecheck is the interval at which this leader checks whether it has reconciled all Clusters.
	lookedAtRecheck = time.Second
	// maxFailedNamed is the maximum number of Clusters that an event lists.
	maxFailedNamed = 5
)

// Upgrades decides which agent is upgraded next. Like the controller for Plans, it uses package rollout. It is a
// reconciler with a single request for all Clusters. The reconciler for Clusters informs Upgrades of the state of each
// Cluster's agent. A new leader first collects these states.
type Upgrades struct {
	Client   client.Reader
	Recorder events.EventRecorder
	// Pace returns the rollout limits for the given number of Clusters.
	Pace func(clusters int) rollout.Pace
	Now  func() time.Time

	kept registration.Manifests // manifests with the agents' current images

	mu       sync.Mutex // guards the fields below
	revision string
	settled  time.Time // no upgrade starts before this time
	agents   map[types.NamespacedName]agentState
	turns    map[types.NamespacedName]v1.AgentUpgrade // turns that have been assigned but are not in a status yet
	stopped  map[string]bool                          // workspaces reported by an event; "" means all
	changed  func()
	begin    func(types.NamespacedName)
}

// agentState contains the facts about an agent that the reconciler for Clusters has collected.
type agentState struct {
	// away explains why the agent cannot be upgraded at the moment. It is empty if the agent can be upgraded.
	away string
	// out is true if the hub cannot change the agent at all, or if a user has set the agent's image and that image has
	// failed.
	out bool
	// waits is true if the agent does not have the desired Deployment yet.
	waits bool
	// upgrade is the agent's progress in the current upgrade, or nil if the agent is not part of it.
	upgrade *v1.AgentUpgrade
}

// pending reports whether the overall upgrade depends on this agent.
func (a agentState) pending() bool {
	return a.waits || a.upgrade != nil && a.upgrade.Complete == nil
}

// OnChange sets a function that is called whenever the next decision may differ from the last one.
func (u *Upgrades) OnChange(f func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.changed = f
}

// OnTurn sets a function that is called when it is an agent's turn.
func (u *Upgrades) OnTurn(f func(types.NamespacedName)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.begin = f
}

// lead is called when this manager becomes the leader. No upgrade starts before settled, because the previous leader's
// agents may still be reconnecting.
func (u *Upgrades) lead(revision string, settled time.Time) {
	u.mu.Lock()
	u.revision, u.settled, u.agents, u.turns = revision, settled, map[types.NamespacedName]agentState{}, map[types.NamespacedName]v1.AgentUpgrade{}
	u.mu.Unlock()
	u.wake()
}

// begun reports whether the upgrade of an agent has started.
func (u *Upgrades) begun(agent *v1.AgentStatus) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return agent.Upgrade != nil && agent.Upgrade.Revision == u.revision
}

func (u *Upgrades) wake() {
	u.mu.Lock()
	f := u.changed
	u.mu.Unlock()
	if f != nil {
		f()
	}
}

func (u *Upgrades) observe(name types.NamespacedName, now agentState) {
	u.mu.Lock()
	before := u.agents[name]
	u.agents[name] = now
	if now.upgrade != nil || !now.waits { // the turn is in the Cluster's status, or the agent does not need one
		delete(u.turns, name)
	}
	u.mu.Unlock()
	if (before.pending() || now.pending()) && !reflect.DeepEqual(before, now) {
		u.wake()
	}
}

// forget removes a Cluster that no longer exists.
func (u *Upgrades) forget(name types.NamespacedName) {
	if u == nil {
		return
	}
	u.mu.Lock()
	before := u.agents[name]
	delete(u.agents, name)
	delete(u.turns, name)
	u.mu.Unlock()
	if before.pending() {
		u.wake()
	}
}

// turn returns the turn that was assigned to an agent, or nil if the agent has to wait.
func (u *Upgrades) turn(name types.NamespacedName) *v1.AgentUpgrade {
	u.mu.Lock()
	defer u.mu.Unlock()
	if turn, given := u.turns[name]; given {
		return &turn
	}
	return nil
}

// Reconcile assigns turns to all agents that can be upgraded now.
func (u *Upgrades) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	var list v1.ClusterList
	if err := u.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return ctrl.Result{}, fmt.Errorf("list clusters: %w", err)
	}
	now := u.Now()
	begun, wait, stops := u.decide(list.Items, now)
	u.giveTurns(begun)
	u.report(ctx, list.Items, stops)
	if wait.Until.After(now) {
		return ctrl.Result{RequeueAfter: wait.Until.Sub(now)}, nil
	}
	return ctrl.Result{}, nil
}

// giveTurns makes the Cluster controller reconcile each Cluster whose turn has started.
func (u *Upgrades) giveTurns(begun []types.NamespacedName) {
	u.mu.Lock()
	begin := u.begin
	u.mu.Unlock()
	if begin == nil {
		return
	}
	for _, name := range begun {
		begin(name)
	}
}

// decide assigns turns to agents. It returns the names of these agents, the reason why no other agent has a turn, and
// where the rollout has stopped.
func (u *Upgrades) decide(clusters []v1.Cluster, now time.Time) (begun []types.NamespacedName, why rollout.Wait, stops []stop) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now.Before(u.settled) {
		return nil, rollout.Wait{Until: u.settled}, nil
	}
	all, known := u.gather(clusters)
	if !known {
		return nil, rollout.Wait{Until: now.Add(lookedAtRecheck)}, nil
	}
	pace := u.Pace(len(all))
	going, stops := u.holdBack(all)
	if len(stops) > 0 && stops[0].workspace == "" {
		return nil, rollout.Wait{}, stops
	}
	pace.MaxFailed = len(all) // holdBack has already checked the number of failures
	fleet, err := rollout.NewFleet(going, rollout.FleetPlan{Pace: pace, Revision: u.revision}, now)
	if err != nil { // the configuration has already been validated
		return nil, rollout.Wait{Reason: v1.ReasonInvalidSelector, Message: err.Error()}, stops
	}
	for {
		decision := fleet.Next()
		if decision.Step == nil || decision.Step.Verb != rollout.VerbBegin {
			return begun, decision.Wait, stops
		}
		i := fleet.Begin(decision.Step)
		namespace, name, _ := strings.Cut(decision.Step.Cluster, "/")
		turn := types.NamespacedName{Namespace: namespace, Name: name}
		u.turns[turn] = v1.AgentUpgrade{Revision: u.revision, Wave: fleet.WaveOf(i), Since: metav1.NewTime(now.Truncate(time.Second))}
		begun = append(begun, turn)
	}
}

// gather returns the agents in the format of package rollout, sorted by name. It also reports whether this leader has
// reconciled all Clusters.
func (u *Upgrades) gather(clusters []v1.Cluster) (all []rollout.Cluster, known bool) {
	for i := range clusters {
		c := &clusters[i]
		if !c.DeletionTimestamp.IsZero() {
			continue
		}
		name := client.ObjectKeyFromObject(c)
		a, known := u.agents[name]
		if !known {
			return nil, false
		}
		if a.out {
			continue
		}
		one := rollout.Cluster{Name: name.String(), Labels: c.Labels, Selected: true, Away: a.away}
		turn, given := u.turns[name]
		switch {
		case a.upgrade != nil:
			one.Claim = claimOf(a.upgrade)
		case given:
			one.Claim = claimOf(&turn)
		case !a.waits && a.away == "": // the agent joined with this Deployment
			one.Claim = &rollout.ClusterClaim{Revision: u.revision, Complete: &time.Time{}}
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b rollout.Cluster) int { return cmp.Compare(a.Name, b.Name) })
	return all, true
}

func claimOf(u *v1.AgentUpgrade) *rollout.ClusterClaim {
	c := &rollout.ClusterClaim{Revision: u.Revision, Since: u.Since.Time}
	if u.Complete != nil {
		c.Complete = &u.Complete.Time
	}
	if u.Failed != nil {
		c.Failed = &u.Failed.Time
	}
	return c
}
