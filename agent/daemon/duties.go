// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/drover-dev/drover/agent/apply"
	"github.com/drover-dev/drover/agent/credential"
	"github.com/drover-dev/drover/agent/deployment"
	"github.com/drover-dev/drover/agent/leader"
	"github.com/drover-dev/drover/agent/plan"
	"github.com/drover-dev/drover/agent/report"
	"github.com/drover-dev/drover/agent/uninstall"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// duties are the agent's tasks for its member: reporting, and, on the leader, all that only one replica may do.
type duties struct {
	reporter   *report.Reporter
	deployment *deployment.Keeper
	election   *leader.Election
	sets       *apply.Applier
	credential *credential.Keeper
	plans      *plan.Runner // nil in an agent that may only read
}

func (a *agent) newDuties(uid string, keeper *credential.Keeper) *duties {
	d := &duties{credential: keeper}
	log, env := a.options.Log, a.options.Environ
	d.deployment = deployment.New(deployment.Options{
		Deployments: a.client.Deployment(env.Namespace, protocol.AgentName),
		Secrets:     a.client.Secrets(env.Namespace),
		Nodes:       func() (int32, bool) { return d.reporter.Nodes() },
		Changed:     func() { d.reporter.Touch() },
		Log:         log.WithName("deployment"),
	})
	d.sets = apply.New(apply.Options{
		Objects: a.client.Objects(), Secrets: a.client.Secrets(env.Namespace), ReadOnly: env.Profile == v1.ProfileReadOnly,
		LeftChanged: func() { d.reporter.Touch() }, Log: log.WithName("sets"),
	})
	if env.Profile != v1.ProfileReadOnly {
		d.plans = plan.New(plan.Options{Client: a.client.REST, Objects: a.client.Objects(), Namespace: env.Namespace, Log: log.WithName("plans")})
	}
	d.reporter = report.New(report.Options{
		Client: a.client.REST, AgentVersion: a.options.Version, ClusterUID: uid, SettingsDigest: keeper.Digest,
		Deployment: d.deployment.Report, NodesChanged: d.deployment.Wake,
		Left: d.sets.Left, Capabilities: capabilities(env.Profile),
		Log: log.WithName("report"),
	})
	d.election = leader.New(leader.Options{
		Leases: a.client.Lease(env.Namespace, protocol.LeaderLease), Name: cmp.Or(a.pod, keeper.Instance()),
		Lead: d.lead, Follow: d.reporter.Follow, Log: log.WithName("leader"),
	})
	return d
}

// run reports, and leads whenever this replica is elected, until ctx ends.
func (d *duties) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { d.reporter.Run(ctx) })
	running.Go(func() { d.election.Run(ctx) })
}

func (d *duties) lead(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { d.reporter.Lead(ctx) })
	running.Go(func() { d.deployment.Lead(ctx) })
	running.Go(func() { d.sets.Lead(ctx) })
	running.Go(func() { d.credential.Follow(ctx) })
	if d.plans != nil {
		running.Go(func() { d.plans.Lead(ctx) })
	}
}

// removeDelivered is uninstall.Options.Sets. Plans go last: those that are left then belong to a user.
func (d *duties) removeDelivered(ctx context.Context) ([]string, error) {
	remaining, err := d.sets.RemoveAll(ctx)
	if err == nil && len(remaining) == 0 && d.plans != nil {
		remaining, err = d.plans.Retire(ctx)
	}
	if errors.Is(err, apply.ErrNotLeading) || errors.Is(err, plan.ErrNotLeading) {
		return nil, uninstall.ErrNotLeading
	}
	if err == nil && len(remaining) == 0 {
		d.credential.Leave()
	}
	return remaining, err
}

// capabilities returns what an agent of this profile reports to the hub that it can do.
func capabilities(profile v1.AgentProfile) protocol.Capabilities {
	if profile == v1.ProfileReadOnly {
		return protocol.Capabilities{Features: []string{protocol.FeatureSets}, Profile: string(profile)}
	}
	return protocol.Capabilities{Features: []string{protocol.FeatureSets, protocol.FeaturePlans}}
}
