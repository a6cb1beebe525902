// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package report reports the state of the member to the hub whenever the state changes.
package report

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/agent/stream"
	"github.com/drover-dev/drover/agent/watch"
	"github.com/drover-dev/drover/internal/await"
	"github.com/drover-dev/drover/internal/protocol"
)

// Options configure a Reporter.
type Options struct {
	// Client accesses the API server. It decodes core types.
	Client rest.Interface
	// Stream publishes the report. The Reporter ends the stream when it stops.
	Stream *stream.Stream
	// AgentVersion and ClusterUID are part of each report.
	AgentVersion, ClusterUID string
	// Restored is the time when a restore of the cluster was last detected. It is also part of each report.
	Restored time.Time
	// SettingsDigest returns the digest of the hub's settings in force, or "" if there are none. Call Reporter.Touch
	// when the digest changes.
	SettingsDigest func() string
	// Deployment returns the report's section about the Deployment, or nil if there is none. It is called while this
	// replica is the leader. Call Reporter.Touch when the result changes.
	Deployment func() *protocol.Deployment
	// Left returns the value for protocol.Report.Left. It is called only while this replica is the leader. Call
	// Reporter.Touch when the result changes.
	Left func() []string
	// Unclaimed returns the value for protocol.Report.Unclaimed. It is called only while this replica is the leader. Call
	// Reporter.Touch when the result changes.
	Unclaimed func() []string
	// DirectAuthority returns the value for protocol.Report.DirectAuthority. It is called on each replica. Call
	// Reporter.Touch when the result changes. It may be nil.
	DirectAuthority func() string
	// Capabilities are the capabilities of the agent.
	Capabilities protocol.Capabilities
	// NodesChanged is called after each change to the nodes, while this replica is the leader.
	NodesChanged func()
	Log          logr.Logger
}

// Reporter watches the member and publishes the latest report.
type Reporter struct {
	options Options
	nodes   *nodeTally
	pods    *podTally
	soon    chan struct{} // signals a change that must be reported immediately
	later   chan struct{} // signals a change that can wait a minute
	facts   facts
	topic   *stream.Topic

	// publishing guards latest, and is held while latest is published. Functions that are called during publication
	// must not call Touch.
	publishing sync.Mutex
	latest     *protocol.Report // without the fields that are added during publication; nil before the first report
}

// facts contains all known facts except for the tallies.
type facts struct {
	mu           sync.Mutex // guards the fields below
	health       healthState
	version      string
	versionTried bool
	role         role
	nodes        resourceState // nodes and pods apply only to the current leadership
	pods         resourceState
}

// role is this replica's role in the election.
type role struct {
	known      bool
	leads      bool
	leadership int  // how often this replica has become the leader
	patient    bool // wait for pods before reporting nodes, because the hub already has both from another replica
}

// resourceState describes how much is known about a resource.
type resourceState struct {
	synced bool
	failed bool // the last request failed and the resource has never been synced
}

// New returns a Reporter. Call Run to start it.
func New(o Options) *Reporter {
	if o.Deployment == nil {
		o.Deployment = func() *protocol.Deployment { return nil }
	}
	if o.Left == nil {
		o.Left = func() []string { return nil }
	}
	if o.Unclaimed == nil {
		o.Unclaimed = func() []string { return nil }
	}
	if o.DirectAuthority == nil {
		o.DirectAuthority = func() string { return "" }
	}
	if o.NodesChanged == nil {
		o.NodesChanged = func() {}
	}
	if o.Stream == nil {
		o.Stream = stream.New()
	}
	r := &Reporter{options: o, topic: o.Stream.Topic(protocol.SubjectReport), soon: make(chan struct{}, 1),
		later: make(chan struct{}, 1)}
	r.nodes = newNodeTally(func() { r.learn(&r.facts.nodes, nil); await.Signal(r.soon); r.options.NodesChanged() })
	r.pods = newPodTally(r.podsChanged)
	o.Stream.Opened = r.Touch // the settings may change between joining and connecting
	return r
}

// podsChanged schedules a report about pods. If pods have just become known, the report is sent soon. Otherwise, it is
// sent later.
func (r *Reporter) podsChanged() {
	if _, known := r.podsKnown(); !known {
		r.learn(&r.facts.pods, nil)
		await.Signal(r.soon)
	}
	await.Signal(r.later)
}

// Run sends reports until ctx is done, and then ends the stream. Every replica reports the API server's health and
// version. Lead adds the other data.
func (r *Reporter) Run(ctx context.Context) {
	defer r.options.Stream.End()
	var running sync.WaitGroup
	defer running.Wait()
	probe := probe{client: r.options.Client, onHealth: r.setHealth, onVersion: r.setVersion}
	running.Go(func() { probe.run(ctx) })
	r.publish(ctx)
}

// Lead watches nodes and pods until ctx is done, so that the leader can report them.
func (r *Reporter) Lead(ctx context.Context) {
	r.begin()
	defer r.Follow()
	var running sync.WaitGroup
	defer running.Wait()
	nodes := watch.Collection{
		Client: r.options.Client, Path: "/api/v1/nodes", Log: r.options.Log,
		OnError: func(err error) { r.failed("nodes", &r.facts.nodes, err) },
	}
	pods := watch.Collection{
		Client: r.options.Client, Path: "/api/v1/pods", Fields: unfinished, Log: r.options.Log,
		OnError: func(err error) { r.failed("pods", &r.facts.pods, err) },
	}
	running.Go(func() { r.nodes.Follow(ctx, nodes) })
	running.Go(func() { r.pods.Follow(ctx, pods) })
}

func (r *Reporter) begin() {
	reported := r.topic.Get("") != nil
	r.facts.mu.Lock()
	defer r.facts.mu.Unlock()
	f := &r.facts
	f.role = role{known: true, leads: true, leadership: f.role.leadership + 1, patient: reported}
	f.nodes, f.pods = resourceState{}, resourceState{}
	await.Signal(r.soon)
}

// Follow records that another replica is the leader, and drops the data about nodes and pods.
func (r *Reporter) Follow() {
	r.facts.mu.Lock()
	before := r.facts.role
	r.facts.role = role{known: true, leadership: before.leadership}
	r.facts.mu.Unlock()
	if before.known && !before.leads {
		return
	}
	if before.leads {
		r.nodes.Clear()
		r.pods.Clear()
	}
	await.Signal(r.soon)
}

// Nodes returns the number of nodes in the member and reports whether this replica knows the number.
func (r *Reporter) Nodes() (int32, bool) {
	r.facts.mu.Lock()
	known := r.facts.role.leads && r.facts.nodes.synced
	r.facts.mu.Unlock()
	nodes, _ := r.nodes.nodes()
	return nodes.Total, known
}

func (r *Reporter) setHealth(v healthState) {
	r.facts.mu.Lock()
	defer r.facts.mu.Unlock()
	if r.facts.health.known && r.facts.health.health == v.health {
		return
	}
	if r.facts.health.health.Healthy != v.health.Healthy {
		r.options.Log.Info("health of the API server", "healthy", v.health.Healthy, "message", v.health.Message)
	}
	r.facts.health = v
	await.Signal(r.soon)
}

func (r *Reporter) setVersion(version string, err error) {
	r.facts.mu.Lock()
	defer r.facts.mu.Unlock()
	if err == nil {
		r.facts.version = version
	} else {
		r.options.Log.V(1).Info("cannot read the version of the API server", "error", err.Error())
	}
	r.facts.versionTried = true
	await.Signal(r.soon)
}

// failed records that a resource could not be read. It logs no further errors until the resource can be read.
func (r *Reporter) failed(resource string, k *resourceState, err error) {
	if first := r.learn(k, err); first {
		r.options.Log.Error(err, "numbers are missing from the report until this resource can be watched", "resource",
			resource)
	}
	await.Signal(r.soon)
}

// learn updates the state of a resource, and reports whether this is the first failure.
func (r *Reporter) learn(k *resourceState, err error) (first bool) {
	r.facts.mu.Lock()
	defer r.facts.mu.Unlock()
	if err == nil {
		*k = resourceState{synced: true}
		return false
	}
	first = !k.synced && !k.failed
	k.failed = !k.synced
	return first
}

// readiness reports whether enough is known for a first report, and whether pods are known. Data that cannot be read is
// treated as known. The leader need not be known if the API server is unhealthy, because the election may take a long
// time.
func (r *Reporter) readiness() (enough, pods bool) {
	r.facts.mu.Lock()
	defer r.facts.mu.Unlock()
	f := &r.facts
	switch {
	case !f.health.known || !f.versionTried:
		return false, false
	case !f.role.known:
		return !f.health.health.Healthy, true
	case !f.role.leads:
		return true, true
	}
	return f.nodes.synced || f.nodes.failed, f.pods.synced || f.pods.failed
}

// podsKnown reports whether this replica is the leader and knows the pods, and how often it has become the leader.
func (r *Reporter) podsKnown() (leadership int, known bool) {
	r.facts.mu.Lock()
	defer r.facts.mu.Unlock()
	return r.facts.role.leadership, r.facts.role.leads && r.facts.pods.synced
}

// build returns a report with the known facts and the given requested amounts.
func (r *Reporter) build(requested map[string]string) protocol.Report {
	nodes, distribution := r.nodes.nodes()
	nodes.Requested = requested
	r.facts.mu.Lock()
	defer r.facts.mu.Unlock()
	f := &r.facts
	report := protocol.Report{
		Protocol:     protocol.Version,
		MinProtocol:  protocol.MinVersion,
		AgentVersion: r.options.AgentVersion,
		ClusterUID:   r.options.ClusterUID,
		Restored:     r.options.Restored,
		Version:      f.version,
		Health:       f.health.health,
		Leader:       f.role.leads,
		Capabilities: r.options.Capabilities,
	}
	if f.version != "" {
		report.Distribution = versionDistribution(f.version)
		if f.nodes.synced || f.nodes.failed {
			// Some distributions can be detected only by their nodes, so the distribution is unknown until nodes have
			// been read.
			report.Distribution = cmp.Or(report.Distribution, distribution, distributionPlain)
		}
	}
	if f.role.leads && f.nodes.synced && (!f.role.patient || f.pods.synced || f.pods.failed) {
		report.Nodes = &nodes
	}
	return report
}

// stopped returns a timer that is not running.
func stopped() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}
