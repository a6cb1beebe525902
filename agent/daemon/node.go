// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/drover-dev/drover/agent/direct"
	"github.com/drover-dev/drover/agent/identity"
	"github.com/drover-dev/drover/agent/leader"
	"github.com/drover-dev/drover/agent/report"
	"github.com/drover-dev/drover/agent/stream"
	"github.com/drover-dev/drover/internal/memory"
	"github.com/drover-dev/drover/internal/protocol"
)

// RunNode runs a node agent until ctx is done. While no replica of the agent is connected, one of the member's node
// agents opens a tunnel using the replicas' identity. It serves the API, reports the API server's health, and accepts
// the hub's settings. The leader's tasks wait until a replica is connected. A node agent listens on no port, because
// the port would be open on the node itself.
func RunNode(ctx context.Context, o Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a, err := newAgent(o)
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { a.serveSocket(ctx) })
	running.Go(func() { memory.ReturnWhenCalm(ctx) })
	uid, ok := a.awaitUID(ctx)
	if !ok {
		return nil
	}
	keeper, namespace := a.newIdentity(uid, true), o.Environ.Namespace
	leader.NewStandby(leader.StandbyOptions{
		Leader:     a.client.Lease(namespace, protocol.LeaderLease).Get,
		Deployment: a.client.Deployment(namespace, protocol.AgentName).Get,
		Leases:     a.client.Lease(namespace, protocol.NodeAgentLease), Name: cmp.Or(a.pod, keeper.Instance()),
		Serve:     func(ctx context.Context) { a.serveAsNode(ctx, uid, keeper) },
		Connected: func() bool { l := a.link.Load(); return l != nil && l.Connected() },
		Log:       o.Log.WithName("standby"),
	}).Run(ctx)
	return nil
}

// serveAsNode keeps a tunnel to the hub open until ctx is done.
func (a *agent) serveAsNode(ctx context.Context, uid string, keeper *identity.Keeper) {
	watches, endWatches := whileWatched(ctx)
	defer endWatches()
	lines := stream.New()
	reporter := report.New(report.Options{
		Client: a.client.REST, Stream: lines, AgentVersion: a.options.Version, ClusterUID: uid, SettingsDigest: keeper.Digest,
		Capabilities: capabilities(a.options.Environ.Profile), Log: a.options.Log.WithName("report"),
	})
	reporter.Follow()
	toLeader := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, leader.ErrNotLeading.Error(), http.StatusMisdirectedRequest)
	})
	l := a.newLink(keeper, nil, routes{
		protocol.PathKubernetes + "/": a.options.Tracer.Continue(a.forward(watches), describe),
		protocol.PathReport:           lines,
		protocol.PathSettings:         keeper.Settings(reporter.Touch),
		protocol.PathTerm:             a.term(),
		protocol.PathDeployment:       toLeader,
		protocol.PathUninstall:        toLeader,
		protocol.PathSets + "/":       toLeader,
	})
	a.link.Store(l)
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { reporter.Run(ctx) })
	running.Go(func() { l.Run(ctx) })
}

// RunDirect reviews tokens for the node's API server until ctx is done. It does not communicate with the hub. It can
// read only two Secrets: the direct-access Secret that the hub delivers, and the Secret with the CA that the agent
// created.
func RunDirect(ctx context.Context, o Options) error {
	a, err := newAgent(o)
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { a.serveSocket(ctx) })
	running.Go(func() { memory.ReturnWhenCalm(ctx) })
	direct.New(direct.Options{
		APIServer: true, Secrets: a.client.Secrets(o.Environ.Namespace), Listen: o.Environ.DirectListen, Now: time.Now,
		Log: o.Log.WithName("direct"),
	}).Run(ctx)
	return nil
}
