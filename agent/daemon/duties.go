// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/drover-dev/drover/agent/apply"
	"github.com/drover-dev/drover/agent/deployment"
	"github.com/drover-dev/drover/agent/direct"
	"github.com/drover-dev/drover/agent/identity"
	"github.com/drover-dev/drover/agent/leader"
	"github.com/drover-dev/drover/agent/plan"
	"github.com/drover-dev/drover/agent/report"
	"github.com/drover-dev/drover/agent/stream"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// duties are the agent's tasks in the member. Every replica sends reports. Only the leader performs the other tasks.
type duties struct {
	stream     *stream.Stream
	reporter   *report.Reporter
	deployment *deployment.Keeper
	election   *leader.Election
	sets       *apply.Applier
	identity   *identity.Keeper
	failures   *lastError
	plans      *plan.Runner     // nil in a read-only agent
	direct     *direct.Endpoint // nil in a read-only agent
}

// newDuties returns the duties for one run of the agent. restored is called when the agent detects that the cluster was
// restored from a backup.
func (a *agent) newDuties(watches context.Context, keeper *identity.Keeper, restored func()) *duties {
	d := &duties{identity: keeper, stream: stream.New()}
	log, env := a.options.Log, a.options.Environ
	d.deployment = deployment.New(deployment.Options{
		Deployment: a.client.Deployment(env.Namespace, protocol.AgentName),
		DaemonSet:  a.client.DaemonSet(env.Namespace, protocol.NodeAgentName),
		NodeLease:  a.client.Lease(env.Namespace, protocol.NodeAgentLease),
		Direct:     a.client.DaemonSet(env.Namespace, protocol.DirectName),
		Secrets:    a.client.Secrets(env.Namespace),
		Nodes:      func() (int32, bool) { return d.reporter.Nodes() },
		Changed:    func() { d.reporter.Touch() },
		Log:        log.WithName("deployment"),
	})
	own := a.client.Deployment(env.Namespace, protocol.AgentName)
	d.failures = newLastError(annotate(own.Get, own.Annotate), log.WithName("last-error"))
	d.sets = apply.New(apply.Options{
		Client: a.client.REST, Objects: a.client.Objects(), Kube: a.client, Secrets: a.client.Secrets(env.Namespace),
		Topic: d.stream.Topic(protocol.SubjectSets), ReadOnly: env.Profile == v1.ProfileReadOnly,
		LeftChanged: func() { d.reporter.Touch() }, Await: d.awaitReport, Log: log.WithName("sets"),
	})
	if env.Profile != v1.ProfileReadOnly {
		d.plans = plan.New(plan.Options{
			Client: a.client.REST, Objects: a.client.Objects(), Topic: d.stream.Topic(protocol.SubjectPlans),
			Namespace: env.Namespace, Registry: keeper.Registry, Await: d.awaitReport, Log: log.WithName("plans"),
		})
	}
	authority := func() string { return "" }
	if env.Profile != v1.ProfileReadOnly { // a read-only agent serves all users as one user, and accepts no sets
		d.direct = direct.New(direct.Options{
			Secrets: a.client.Secrets(env.Namespace), Listen: env.DirectListen, Kubernetes: a.forward(watches),
			Changed: func() { d.reporter.Touch() }, Now: time.Now, Log: log.WithName("direct"),
		})
		authority = d.direct.Authority
		a.direct.Store(d.direct)
	}
	d.reporter = report.New(report.Options{
		Client: a.client.REST, Stream: d.stream, AgentVersion: a.options.Version, ClusterUID: a.uid, Restored: a.restored,
		SettingsDigest: keeper.Digest,
		Deployment:     d.deployment.Report, NodesChanged: d.deployment.Wake,
		Left: d.sets.Left, Unclaimed: d.sets.Unclaimed, DirectAuthority: authority, Capabilities: capabilities(env.Profile),
		Log: log.WithName("report"),
	})
	d.election = leader.New(leader.Options{
		Leases: a.client.Lease(env.Namespace, protocol.LeaderLease), Name: a.name,
		Lead: d.lead, Follow: d.reporter.Follow, Restored: restored, Log: log.WithName("leader"),
	})
	return d
}

// run sends reports until ctx is done, and performs the leader's tasks whenever this replica is the leader.
func (d *duties) run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { d.reporter.Run(ctx) })
	running.Go(func() { d.election.Run(ctx) })
	if d.direct != nil {
		running.Go(func() { d.direct.Run(ctx) })
	}
}

func (d *duties) lead(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { d.reporter.Lead(ctx) })
	running.Go(func() { d.deployment.Lead(ctx) })
	running.Go(func() { d.sets.Lead(ctx) })
	running.Go(func() { d.identity.Follow(ctx) })
	running.Go(func() { d.failures.lead(ctx) })
	if d.plans != nil {
		running.Go(func() { d.plans.Lead(ctx) })
	}
}

// reportFirst is how long work on sets and plans waits, at most, for the hub to read a report.
const reportFirst = 5 * time.Second

// awaitReport returns when the hub has read a report, or after reportFirst. It returns false if ctx is done first. When
// many agents start on the same machines at the same time, this delay lets members become Ready before work on sets and
// plans uses the CPU.
func (d *duties) awaitReport(ctx context.Context) bool {
	waited, cancel := context.WithTimeout(ctx, reportFirst)
	defer cancel()
	select {
	case <-d.stream.Topic(protocol.SubjectReport).Read():
	case <-waited.Done():
	}
	return ctx.Err() == nil
}

// removeDelivered implements deployment.UninstallOptions.Sets. It removes plans last, because any plan that remains
// after the sets have been removed belongs to a user.
func (d *duties) removeDelivered(ctx context.Context) ([]string, error) {
	remaining, err := d.sets.RemoveAll(ctx)
	if err == nil && len(remaining) == 0 && d.plans != nil {
		remaining, err = d.plans.Retire(ctx)
	}
	if errors.Is(err, leader.ErrNotLeading) {
		return nil, deployment.ErrNotLeading
	}
	if err == nil && len(remaining) == 0 {
		d.identity.Leave()
	}
	return remaining, err
}

// capabilities returns the capabilities that an agent with this profile reports to the hub.
func capabilities(profile v1.AgentProfile) protocol.Capabilities {
	if profile == v1.ProfileReadOnly {
		return protocol.Capabilities{Features: []string{protocol.FeatureSets}, Profile: string(profile)}
	}
	return protocol.Capabilities{
		Features: []string{
			protocol.FeatureSets, protocol.FeaturePlans, protocol.FeatureBaselines, protocol.FeatureUpgradeChecks,
		},
	}
}
