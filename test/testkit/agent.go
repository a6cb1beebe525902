// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/drover-dev/drover/agent/stream"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tunnel"
)

// Agent is a fake agent at the other end of a real tunnel. It implements the protocol, but has no cluster.
type Agent struct {
	// Session is the hub's end of the tunnel.
	Session *tunnel.Session
	// Settings receives the settings that the hub sends, and Uninstalled receives the hub's requests to uninstall.
	Settings chan protocol.Settings
	// Deployments receives the Deployments that the hub sends. This agent neither applies nor reports them.
	Deployments chan []byte
	Uninstalled chan struct{}
	// Sets are the agent's sets. It is nil for an agent from ConnectAgentServing.
	Sets *Sets

	conn   *tunnel.Conn
	sets   http.Handler
	stream *stream.Stream

	nodeAgent bool

	mu     sync.Mutex // guards what follows
	silent bool
	report protocol.Report
}

// HealthyReport returns the report of an agent in a cluster with three nodes.
func HealthyReport() protocol.Report {
	return protocol.Report{
		Protocol: protocol.Version, MinProtocol: protocol.MinVersion, AgentVersion: "v0.1.0", ClusterUID: "member-uid",
		Version: "v1.36.3+k3s1", Distribution: "k3s",
		Nodes: &protocol.Nodes{Total: 3, Ready: 2,
			Capacity: map[string]string{"cpu": "12", "memory": "48Gi"}, Allocatable: map[string]string{"cpu": "11"}, Requested: map[string]string{"cpu": "3"}},
		Health: protocol.Health{Healthy: true},
		Capabilities: protocol.Capabilities{Features: []string{
			protocol.FeatureSets, protocol.FeaturePlans, protocol.FeatureBaselines, protocol.FeatureUpgradeChecks,
		}},
	}
}

// ConnectAgent opens an in-memory tunnel with an agent at the other end. It ends with the test.
func ConnectAgent(t testing.TB, report protocol.Report) *Agent {
	t.Helper()
	return ConnectAgentWith(t, report, NewSets())
}

// ConnectAgentWith is like ConnectAgent, but for an agent that already has sets.
func ConnectAgentWith(t testing.TB, report protocol.Report, sets *Sets) *Agent {
	t.Helper()
	a := &Agent{Sets: sets, stream: sets.stream}
	a.sets = http.HandlerFunc(a.serveSets)
	return a.connect(t, report)
}

// ConnectAgentServing is like ConnectAgent, but with another handler for the paths below protocol.PathSets and for the
// stream on which the agent reports sets, for example the handler of a real agent.
func ConnectAgentServing(t testing.TB, report protocol.Report, sets http.Handler, reports *stream.Stream) *Agent {
	t.Helper()
	return (&Agent{sets: sets, stream: reports}).connect(t, report)
}

// ConnectNodeAgent is like ConnectAgent, but for a node agent. A node agent reports neither sets nor plans, and refuses
// the tasks of a leader.
func ConnectNodeAgent(t testing.TB, report protocol.Report) *Agent {
	t.Helper()
	return (&Agent{sets: http.HandlerFunc(toLeader), stream: stream.New(), nodeAgent: true}).connect(t, report)
}

func toLeader(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "this replica of the agent does not lead: ask another", http.StatusMisdirectedRequest)
}

func (a *Agent) connect(t testing.TB, report protocol.Report) *Agent {
	t.Helper()
	a.Settings = make(chan protocol.Settings, 16)
	a.Report(func(r *protocol.Report) { *r = report })
	a.Deployments, a.Uninstalled = make(chan []byte, 16), make(chan struct{}, 1)
	opened := OpenTunnel(t, a.handler())
	a.conn, a.Session = opened.Conn, opened.Session
	return a
}

// Kill ends the tunnel immediately, as if the agent had been killed.
func (a *Agent) Kill() { _ = a.conn.Close() }

// StopAnswering makes the agent respond to no requests except the request for its report, as a malicious agent might.
func (a *Agent) StopAnswering() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.silent = true
}

// hear reports whether the agent responds to requests. If it does not, hear returns when the request has ended.
func (a *Agent) hear(r *http.Request) bool {
	a.mu.Lock()
	silent := a.silent
	a.mu.Unlock()
	if silent {
		<-r.Context().Done()
	}
	return !silent
}

// Report changes the agent's report.
func (a *Agent) Report(change func(*protocol.Report)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(&a.report)
	report, topic := a.report, a.stream.Topic(protocol.SubjectReport)
	topic.Put("", &protocol.Line{Report: &report})
	topic.Sync()
}

func (a *Agent) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+protocol.PathReport, a.serveReport)
	mux.Handle(protocol.PathSets+"/", a.sets)
	mux.HandleFunc("PUT "+protocol.PathSettings, func(w http.ResponseWriter, r *http.Request) {
		var settings protocol.Settings
		if !a.hear(r) {
			return
		}
		if err := json.NewDecoder(r.Body).Decode(&settings); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		a.Settings <- settings
		w.WriteHeader(http.StatusNoContent)
		a.Report(func(r *protocol.Report) { r.SettingsDigest = settings.Digest() })
	})
	mux.HandleFunc("PUT "+protocol.PathDeployment, func(w http.ResponseWriter, r *http.Request) {
		if !a.hear(r) {
			return
		}
		deployment, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if a.Deployments <- deployment; bytes.Contains(deployment, []byte("refuse-me")) {
			http.Error(w, "the agent refuses the deployment: its image", http.StatusUnprocessableEntity)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})
	mux.HandleFunc("POST "+protocol.PathUninstall, func(w http.ResponseWriter, r *http.Request) {
		if !a.hear(r) {
			return
		}
		if a.nodeAgent {
			toLeader(w, r)
			return
		}
		a.Uninstalled <- struct{}{}
		_ = json.NewEncoder(w).Encode(protocol.UninstallResult{})
	})
	return mux
}

func (a *Agent) serveReport(w http.ResponseWriter, r *http.Request) {
	if s := a.Sets; s != nil {
		s.mu.Lock()
		serve := s.serve
		s.mu.Unlock()
		if serve != nil {
			serve(w, r)
			return
		}
	}
	a.stream.ServeHTTP(w, r)
}

// Key returns a new Ed25519 key for an agent.
func Key(t testing.TB) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Clock is a clock that tests can advance.
type Clock struct {
	mu  sync.Mutex // guards now
	now time.Time
}

// NewClock returns a clock that starts at a whole second, because the API server stores times in seconds.
func NewClock() *Clock { return &Clock{now: time.Now().UTC().Truncate(time.Second)} }

// Now returns the clock's time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance advances the clock.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}
