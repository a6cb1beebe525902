// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package heap_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	tunnels "github.com/drover-dev/drover/internal/tunnel"
	"github.com/drover-dev/drover/test/testkit"
)

// agentsOf and agentsTrust are variables of a process that runs the agents of idle members. They contain the hub's URL
// and its certificate in PEM format.
const agentsOf, agentsTrust = "DROVER_HEAP_AGENTS_OF", "DROVER_HEAP_AGENTS_TRUST"

const (
	idleMembers = 500
	// The tunnel of an idle member may use this number of bytes of the hub's heap and stacks. The member has two
	// goroutines with stacks of 4 KB each. The rest is for goroutines that run for a moment.
	idleHeap, idleStack = 24 << 10, 10 << 10
)

func TestIdleMembersTakeLittleMemory(t *testing.T) {
	if info, ok := debug.ReadBuildInfo(); ok &&
		slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("functions use more stack with the race detector")
	}
	registry := members.New(logr.Discard(), time.Now)
	t.Cleanup(registry.Close)
	var pings atomic.Int64
	config := tunnels.Config{Memory: &tunnels.Memory{}, PingInterval: 2 * time.Second,
		Observer: tunnels.Observer{Ping: func(time.Duration) { pings.Add(1) }}}
	hub := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		session, err := tunnels.Accept(w, r, config)
		if err != nil {
			t.Error(err)
			return
		}
		registry.Add(members.Peer{
			Cluster: protocol.ClusterRef{Namespace: "default", Name: r.Header.Get("Member")}, Key: "key",
		}, session)
	}))
	t.Cleanup(hub.Close)

	before := settled()
	startAgents(t, hub)
	all := func(context.Context) error {
		if known, open := registry.LocalSize(); open != idleMembers {
			return fmt.Errorf("%d members with %d tunnels, want %d", known, open, idleMembers)
		}
		for i := range idleMembers {
			peer := members.Peer{Cluster: protocol.ClusterRef{Namespace: "default", Name: memberName(i)}}
			if registry.State(peer.Name()).Report == nil {
				return fmt.Errorf("%s has not reported", peer.Name())
			}
		}
		return nil
	}
	testkit.Eventually(t, time.Minute, all)
	// Keepalives continue while a member is idle. Their responses are read on the stack of the tunnel's reader.
	reported := pings.Load()
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if n := pings.Load() - reported; n < 2*idleMembers {
			return fmt.Errorf("%d answered pings, want %d", n, 2*idleMembers)
		}
		return nil
	})
	after := settled()
	heap := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / idleMembers
	stack := (int64(after.StackInuse) - int64(before.StackInuse)) / idleMembers
	t.Logf("each idle member takes %d bytes of heap and %d of stacks", heap, stack)
	if heap > idleHeap || stack > idleStack {
		t.Errorf("each idle member takes %d bytes of heap and %d of stacks, want at most %d and %d",
			heap, stack, idleHeap, idleStack)
	}
}

func memberName(i int) string { return "member-" + strconv.Itoa(i) }

// settled returns the memory in use after garbage is collected and the stacks have shrunk.
func settled() (m runtime.MemStats) {
	for range 5 { // each collection halves a stack at most once
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m
}

// startAgents runs the agents in a separate process, so that their memory does not count. The process ends with the
// test.
func startAgents(t *testing.T, hub *httptest.Server) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	agents := exec.CommandContext(t.Context(), program, "-test.run=^TestAgentsOfIdleMembers$", "-test.timeout=5m")
	trust := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hub.Certificate().Raw})
	agents.Env, agents.Stderr = append(os.Environ(), agentsOf+"="+hub.URL, agentsTrust+"="+string(trust)), os.Stderr
	stdin, err := agents.StdinPipe()
	if err == nil {
		err = agents.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close() // asks the process to end
		if err := agents.Wait(); err != nil && !errors.Is(t.Context().Err(), context.Canceled) {
			t.Errorf("agents: %v", err)
		}
	})
}

// TestAgentsOfIdleMembers is not a test. startAgents runs it in another process.
func TestAgentsOfIdleMembers(t *testing.T) {
	hub := os.Getenv(agentsOf)
	if hub == "" {
		t.SkipNow()
	}
	report, err := json.Marshal(testkit.HealthyReport())
	if err != nil {
		t.Fatal(err)
	}
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(append(report, '\n'))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	var agents sync.WaitGroup
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(os.Getenv(agentsTrust)))
	dialer := tunnels.Dialer{TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}}
	for i := range idleMembers {
		conn, err := dialer.Dial(ctx, strings.Replace(hub, "https:", "wss:", 1), http.Header{"Member": {memberName(i)}})
		if err != nil {
			t.Error(err)
			break
		}
		agents.Go(func() { _ = conn.Serve(ctx, answer) })
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
	cancel()
	agents.Wait()
}
