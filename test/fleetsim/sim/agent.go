// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/agent/link"
	"github.com/drover-dev/drover/agent/stream"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tunnel"
)

// agent is one agent: its identity for the hub (link.Identity) and its API (http.Handler).
type agent struct {
	sim      *Sim
	member   Member
	instance string // the process that it would be
	stream   *stream.Stream
	plans    *plans

	mu        sync.Mutex // guards what follows
	attempts  int64
	conns     []*tunnel.Conn // the open tunnels: two while the agent moves
	reporting int            // streams of reports that are open
	digest    string         // of the settings that the hub announced last
	requested int            // the fact that changes

	checkpoint string // of the hub, the latest that it sent
}

func newAgent(s *Sim, m Member) *agent {
	a := &agent{sim: s, member: m, instance: rand.Text(), stream: stream.New(), digest: m.SettingsDigest}
	a.plans = newPlans(a.stream.Topic(protocol.SubjectPlans))
	a.stream.Topic(protocol.SubjectSets).Sync()
	a.publishLocked()
	a.stream.Topic(protocol.SubjectReport).Sync()
	return a
}

// name is the name of the member's Cluster.
func (a *agent) name() types.NamespacedName {
	return types.NamespacedName{Namespace: a.member.Cluster.Namespace, Name: a.member.Cluster.Name}
}

// Target implements link.Identity.
func (a *agent) Target(context.Context, error) (*link.Target, error) {
	a.sim.attempts.Add(1)
	a.mu.Lock()
	a.attempts++
	a.mu.Unlock()
	return &link.Target{Servers: []string{a.sim.server}, Dial: a.dial, Token: a.token}, nil
}

// Changed implements link.Identity. The join token never changes.
func (a *agent) Changed(ctx context.Context) { <-ctx.Done() }

func (a *agent) token() (string, error) {
	return protocol.SignConnectToken(a.member.Key, protocol.ConnectClaims{
		ID: rand.Text(), Audience: a.member.Audience, Cluster: a.member.Cluster, ClusterUID: a.member.ClusterUID,
		Instance: a.instance, IssuedAt: time.Now(),
	})
}

func (a *agent) dial(ctx context.Context, url string, header http.Header) (link.Serve, error) {
	conn, err := a.sim.dialer.Dial(ctx, url, header)
	if err != nil {
		return nil, err
	}
	return (&open{agent: a, conn: conn}).Serve, nil
}

// open is a tunnel that the agent can cut while it is being served.
type open struct {
	agent *agent
	conn  *tunnel.Conn
}

// Serve is the link.Serve of the tunnel.
func (o *open) Serve(ctx context.Context, h http.Handler) error {
	o.agent.mu.Lock()
	o.agent.conns = append(o.agent.conns, o.conn)
	o.agent.mu.Unlock()
	defer o.agent.sim.ended.Add(1)
	defer o.agent.ended(o.conn)
	return o.conn.Serve(ctx, h)
}

func (a *agent) ended(conn *tunnel.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.conns = slices.DeleteFunc(a.conns, func(c *tunnel.Conn) bool { return c == conn })
}

// cut ends the tunnels, and returns their number.
func (a *agent) cut() int {
	a.mu.Lock()
	conns := slices.Clone(a.conns)
	a.mu.Unlock()
	for _, conn := range conns {
		go func() { _ = conn.Close() }() // the close handshake may take a moment; Serve ends with it
	}
	return len(conns)
}

// change makes the agent report a change.
func (a *agent) change() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requested = (a.requested + 1) % nodeCount
	a.publishLocked()
}

// publishLocked publishes the report.
func (a *agent) publishLocked() {
	report := a.reportLocked()
	a.stream.Topic(protocol.SubjectReport).Put("", &protocol.Line{Report: &report})
}

func (a *agent) state() (attempts int64, connected, reporting bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.attempts, len(a.conns) > 0, a.reporting > 0
}

// ServeHTTP serves the hub's requests.
func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasPrefix(r.URL.Path, protocol.PathKubernetes+"/"):
		a.sim.api.serve(w, r, strings.TrimPrefix(r.URL.Path, protocol.PathKubernetes))
	case r.URL.Path == protocol.PathReport:
		a.serveReport(w, r)
	case strings.HasPrefix(r.URL.Path, protocol.PathSets+"/"):
		a.serveSets(w, r)
	case r.Method == http.MethodPut && r.URL.Path == protocol.PathSettings:
		a.serveSettings(w, r)
	case r.Method == http.MethodPost && r.URL.Path == protocol.PathUninstall:
		_ = json.NewEncoder(w).Encode(protocol.UninstallResult{})
	default:
		http.NotFound(w, r)
	}
}

func (a *agent) serveSettings(w http.ResponseWriter, r *http.Request) {
	var settings protocol.Settings
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, protocol.MaxBody)).Decode(&settings); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	a.digest = settings.Digest()
	a.publishLocked()
	a.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

// serveReport streams the agent's reports until the tunnel ends.
func (a *agent) serveReport(w http.ResponseWriter, r *http.Request) {
	defer a.addReporting(-1)
	a.addReporting(1)
	a.stream.ServeHTTP(w, r)
}

func (a *agent) addReporting(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reporting += n
}

// nodeCount is the number of nodes in each simulated cluster.
const nodeCount = 3

func (a *agent) reportLocked() protocol.Report {
	if name, isHost := protocol.HostOf(a.member.Cluster.Name); isHost {
		return protocol.Report{
			Protocol: protocol.Version, MinProtocol: protocol.MinVersion, AgentVersion: "v0.1.0-sim", ClusterUID: a.member.ClusterUID, SettingsDigest: a.digest, Leader: true,
			Host: &protocol.HostReport{Machine: protocol.HostMachine{MemoryMiB: 31962 + int64(a.requested), HostProperties: v1.HostProperties{
				Hostname: name, OS: "Debian GNU/Linux 12 (bookworm)", Architecture: "amd64", Kernel: "6.1.0-41-amd64", CPUs: 8,
				Addresses: []string{"192.0.2.17", "2001:db8::17"}, Roles: []string{"worker"}, Labels: []string{"zone=a"},
			}}},
		}
	}
	return protocol.Report{
		Protocol: protocol.Version, MinProtocol: protocol.MinVersion, AgentVersion: "v0.1.0-sim",
		ClusterUID: a.member.ClusterUID, SettingsDigest: a.digest, Version: kubernetesVersion, Distribution: "k3s",
		Nodes: &protocol.Nodes{
			Total: nodeCount, Ready: nodeCount,
			Capacity:    map[string]string{"cpu": "12", "memory": "48Gi", "pods": "330"},
			Allocatable: map[string]string{"cpu": "12", "memory": "46Gi", "pods": "330"},
			Requested:   map[string]string{"cpu": strconv.Itoa(a.requested + 1), "memory": "12Gi", "pods": "40"},
		},
		Health: protocol.Health{Healthy: true}, Leader: true,
		Capabilities: protocol.Capabilities{Features: []string{
			protocol.FeatureSets, protocol.FeaturePlans, protocol.FeatureBaselines, protocol.FeatureUpgradeChecks,
		}},
	}
}
