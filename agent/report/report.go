// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package report tells the hub how the member is, and only when that has changed.
package report

import (
	"cmp"
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/internal/protocol"
)

// Options of a Reporter.
type Options struct {
	// Client for the API server; decodes core types.
	Client rest.Interface
	// AgentVersion and ClusterUID go into each report.
	AgentVersion, ClusterUID string
	// SettingsDigest is the digest of the hub's settings in force, empty if there are none. Call Reporter.Touch when it changes.
	SettingsDigest func() string
	Log            logr.Logger
}

// Reporter watches the member and keeps the latest report. It is the http.Handler of protocol.PathReport.
type Reporter struct {
	options Options
	nodes   *nodeTally
	pods    *podTally
	soon    chan struct{} // something changed that matters at once
	later   chan struct{} // something changed that can wait a minute
	latest  *latest
	facts   facts
}

// facts are what is known besides the tallies.
type facts struct {
	mu           sync.Mutex // guards the rest
	verdict      verdict
	version      string
	versionTried bool
	nodes        knowledge
	pods         knowledge
}

// knowledge is how far a resource is known.
type knowledge struct {
	synced bool
	failed bool // the last request failed and it never synced
}

// New makes a Reporter. Run starts it.
func New(o Options) *Reporter {
	r := &Reporter{options: o, soon: make(chan struct{}, 1), later: make(chan struct{}, 1), latest: newLatest()}
	r.nodes = newNodeTally(func() { r.learn(&r.facts.nodes, nil); signal(r.soon) })
	r.pods = newPodTally(func() { r.learn(&r.facts.pods, nil); signal(r.later) })
	return r
}

// Run watches the member until ctx ends, and ends all streams then.
func (r *Reporter) Run(ctx context.Context) {
	defer r.latest.end()
	var running sync.WaitGroup
	defer running.Wait()
	probe := probe{client: r.options.Client, onHealth: r.setVerdict, onVersion: r.setVersion}
	nodes := feed{
		client: r.options.Client, resource: "nodes", sample: &corev1.Node{}, store: r.nodes,
		onFailure: func(err error) { r.failed("nodes", &r.facts.nodes, err) },
	}
	pods := feed{
		client: r.options.Client, resource: "pods", selector: unfinished, sample: &corev1.Pod{}, store: r.pods,
		onFailure: func(err error) { r.failed("pods", &r.facts.pods, err) },
	}
	running.Go(func() { probe.run(ctx) })
	running.Go(func() { nodes.run(ctx) })
	running.Go(func() { pods.run(ctx) })
	r.publish(ctx)
}

// Touch says that the settings have changed.
func (r *Reporter) Touch() { r.latest.touch() }

func (r *Reporter) setVerdict(v verdict) {
	r.facts.mu.Lock()
	defer r.facts.mu.Unlock()
	if r.facts.verdict.known && r.facts.verdict.health == v.health {
		return
	}
	if r.facts.verdict.health.Healthy != v.health.Healthy {
		r.options.Log.Info("health of the API server", "healthy", v.health.Healthy, "message", v.health.Message)
	}
	r.facts.verdict = v
	signal(r.soon)
}

func (r *Reporter) setVersion(version string, err error) {
	r.facts.mu.Lock()
	defer r.facts.mu.Unlock()
	if err == nil {
		r.facts.version = version
	} else {
		r.options.Log.V(1).Info("version not known", "error", err.Error())
	}
	r.facts.versionTried = true
	signal(r.soon)
}

// failed notes that a resource could not be read. It is logged once until it can be read.
func (r *Reporter) failed(resource string, k *knowledge, err error) {
	r.options.Log.V(1).Info("cannot watch a resource", "resource", resource, "error", err.Error())
	if first := r.learn(k, err); first {
		r.options.Log.Info("numbers are missing from the report until this resource can be watched", "resource", resource, "error", err.Error())
	}
	signal(r.soon)
}

// learn updates what is known of a resource, and says whether this is the first failure.
func (r *Reporter) learn(k *knowledge, err error) (first bool) {
	r.facts.mu.Lock()
	defer r.facts.mu.Unlock()
	if err == nil {
		*k = knowledge{synced: true}
		return false
	}
	first = !k.synced && !k.failed
	k.failed = !k.synced
	return first
}

// readiness is whether everything that a first report needs is known or known to be missing, and whether pods are too.
func (r *Reporter) readiness() (enough, pods bool) {
	r.facts.mu.Lock()
	defer r.facts.mu.Unlock()
	f := &r.facts
	return f.verdict.known && f.versionTried && (f.nodes.synced || f.nodes.failed), f.pods.synced || f.pods.failed
}

// build makes a report of what is known, with these requested amounts.
func (r *Reporter) build(requested map[string]string) protocol.Report {
	nodes, distribution := r.nodes.nodes()
	nodes.Requested = requested
	r.facts.mu.Lock()
	defer r.facts.mu.Unlock()
	report := protocol.Report{
		Protocol:     protocol.Version,
		MinProtocol:  protocol.MinVersion,
		AgentVersion: r.options.AgentVersion,
		ClusterUID:   r.options.ClusterUID,
		Version:      r.facts.version,
		Health:       r.facts.verdict.health,
	}
	if r.facts.version != "" {
		report.Distribution = cmp.Or(versionDistribution(r.facts.version), distribution, distributionPlain)
	}
	if r.facts.nodes.synced {
		report.Nodes = &nodes
	}
	return report
}

// encode is a report as a line of JSON. Equal reports are equal lines.
func encode(report protocol.Report) []byte {
	line, err := json.Marshal(report)
	if err != nil { // strings, numbers and a time always marshal
		panic(err)
	}
	return append(line, '\n')
}

// signal leaves a mark that is not yet seen, unless there is one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// stopped is a timer that is not running.
func stopped() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}
