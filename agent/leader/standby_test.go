// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/drover-dev/drover/agent/leader"
)

// standbyMember is a member with the Leases of the agent's replicas and of node agents, and with the agent's
// Deployment.
type standbyMember struct {
	replicas, nodes *server

	mu         sync.Mutex              // guards the fields below
	deployment appsv1.DeploymentStatus // has no status if no controller observes it
	unreached  string                  // node from which the hub cannot be reached
	serving    map[string]time.Time    // by node
	served     []string
	drain      time.Duration // how long requests in progress last when a node agent stops
	failing    error         // the API server's error for node agents, or nil
}

func newStandbyMember() *standbyMember {
	return &standbyMember{replicas: &server{}, nodes: &server{}, serving: map[string]time.Time{}}
}

func (m *standbyMember) ready(observed int64, ready int32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deployment = appsv1.DeploymentStatus{ObservedGeneration: observed, ReadyReplicas: ready}
}

func (m *standbyMember) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failing = err
}

// node runs a node agent, and returns a function that stops it.
func (m *standbyMember) node(t *testing.T, name string) (stop func(), cut *bool) {
	cut = new(bool)
	ctx, cancel := context.WithCancel(t.Context())
	own := client{server: m.nodes, cut: cut}
	leads := client{server: m.replicas, cut: new(bool)}
	s := leader.NewStandby(leader.StandbyOptions{
		Leader: func(ctx context.Context) (*coordinationv1.Lease, error) {
			if err := m.problem(); err != nil {
				return nil, err
			}
			return leads.Get(ctx)
		},
		Deployment: func(context.Context) (*appsv1.Deployment, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			return &appsv1.Deployment{Status: m.deployment}, m.failing
		},
		Leases: own, Name: name, Log: logr.Discard(),
		Serve: func(ctx context.Context) {
			m.mu.Lock()
			m.serving[name], m.served = time.Now(), append(m.served, name)
			m.mu.Unlock()
			<-ctx.Done()
			m.mu.Lock()
			delete(m.serving, name)
			m.mu.Unlock()
			<-time.After(m.drain)
		},
		Connected: func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			_, serves := m.serving[name]
			return serves && m.unreached != name
		},
	})
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(ctx) }()
	stop = func() { cancel(); <-ended }
	t.Cleanup(stop)
	return stop, cut
}

func (m *standbyMember) problem() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failing
}

// expectServing fails the test unless exactly want node agents serve.
func (m *standbyMember) expectServing(t *testing.T, want int, when string) {
	t.Helper()
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.serving) != want {
		t.Errorf("%s: got %v serving, want %d", when, m.serving, want)
	}
}

func TestStandby(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T, *standbyMember){
		"while a replica leads, no node agent serves":                                               testStandbyIdle,
		"when the replica is killed, a node agent serves within a minute, until it is back":         testStandbyKilled,
		"a rolling update, in which the Lease is free for a moment, changes nothing":                testStandbyUpdate,
		"a replica that leads but is not connected does not count":                                  testStandbyNotReady,
		"a Deployment whose status no controller writes does not count":                             testStandbyUnobserved,
		"a node agent serves if there never was a replica":                                          testStandbyNoLease,
		"an API server that does not answer changes nothing":                                        testStandbyNoAnswer,
		"one of five hundred node agents serves, and idle they send less than 30 requests a second": testStandbyMany,
		"a node agent that is killed while it serves is replaced":                                   testStandbyReplaced,
		"a node agent that cannot reach the hub lets another one try":                               testStandbyUnreached,
		"a node agent that loses its Lease for some seconds takes it again":                         testStandbyLeaseLost,
		"a node agent whose last requests are in progress serves again":                             testStandbyDrains,
		"where Leases are forbidden, no node agent serves":                                          testStandbyForbidden,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { test(t, newStandbyMember()) })
		})
	}
}

func testStandbyIdle(t *testing.T, m *standbyMember) {
	expect(t, m.replicas.join(t, "a"), "t")
	m.node(t, "n")
	pass(time.Hour)
	m.expectServing(t, 0, "beside a replica that leads")
	if len(m.served) > 0 {
		t.Errorf("got %v serving, want none", m.served)
	}
}

func testStandbyKilled(t *testing.T, m *standbyMember) {
	a := m.replicas.join(t, "a")
	expect(t, a, "t")
	m.node(t, "n")
	pass(time.Minute)
	a.isolate(true)
	pass(25 * time.Second)
	m.expectServing(t, 0, "before the Lease has ended for some time")
	pass(25 * time.Second)
	m.expectServing(t, 1, "50 s after the replica was killed")
	pass(time.Hour)
	m.expectServing(t, 1, "an hour later")
	a.isolate(false)
	pass(time.Second)
	m.expectServing(t, 1, "until it is sure that a replica is back")
	pass(29 * time.Second)
	m.expectServing(t, 0, "when a replica is back")
}

func testStandbyUpdate(t *testing.T, m *standbyMember) {
	m.ready(3, 2)
	a := m.replicas.join(t, "a")
	expect(t, a, "t")
	m.node(t, "n")
	for _, next := range []string{"b", "c", "d"} {
		pass(time.Minute)
		a.stop()
		pass(15 * time.Second) // no replica runs for longer than an update needs
		a = m.replicas.join(t, next)
	}
	pass(time.Minute)
	if len(m.served) > 0 {
		t.Errorf("got %v serving, want none", m.served)
	}
}

func testStandbyNotReady(t *testing.T, m *standbyMember) {
	m.ready(3, 2)
	expect(t, m.replicas.join(t, "a"), "t")
	m.node(t, "n")
	pass(time.Minute)
	m.expectServing(t, 0, "while replicas are ready")
	m.ready(3, 0)
	pass(30 * time.Second)
	m.expectServing(t, 1, "30 s after the last replica has lost its tunnel")
	m.ready(3, 1)
	pass(20 * time.Second)
	m.expectServing(t, 0, "20 s after one has a tunnel again")
}

func testStandbyUnobserved(t *testing.T, m *standbyMember) {
	m.ready(0, 0)
	expect(t, m.replicas.join(t, "a"), "t")
	m.node(t, "n")
	pass(time.Hour)
	m.expectServing(t, 0, "beside a replica that leads")
}

func testStandbyNoLease(t *testing.T, m *standbyMember) {
	m.node(t, "n")
	pass(time.Minute)
	m.expectServing(t, 1, "without any Lease")
}

func testStandbyNoAnswer(t *testing.T, m *standbyMember) {
	expect(t, m.replicas.join(t, "a"), "t")
	m.node(t, "n")
	pass(time.Minute)
	m.fail(errors.New("the API server is restarted"))
	pass(time.Hour)
	m.expectServing(t, 0, "while the API server does not answer")
	m.fail(nil)
	pass(time.Hour)
	m.expectServing(t, 0, "when it answers again")
}

func testStandbyMany(t *testing.T, m *standbyMember) {
	a := m.replicas.join(t, "a")
	expect(t, a, "t")
	for i := range 500 {
		m.node(t, fmt.Sprint("n", i))
	}
	pass(time.Minute)
	before := m.nodes.requests()
	pass(10 * time.Minute)
	if rate := float64(m.nodes.requests()-before) / 600; rate > 30 {
		t.Errorf("got %.1f requests a second for the Lease of node agents, want at most 30", rate)
	}
	a.isolate(true)
	pass(time.Minute)
	m.expectServing(t, 1, "a minute after the replica was killed")
}

func testStandbyReplaced(t *testing.T, m *standbyMember) {
	_, cut := m.node(t, "first")
	pass(time.Minute)
	m.expectServing(t, 1, "with one node agent")
	m.node(t, "second")
	pass(time.Minute)
	m.expectServing(t, 1, "with two node agents")
	m.nodes.mu.Lock()
	*cut = true
	m.nodes.mu.Unlock()
	pass(3 * time.Minute)
	m.expectServing(t, 1, "after the first was cut off")
	if _, second := m.serving["second"]; !second {
		t.Errorf("got %v serving, want the second", m.serving)
	}
}

func testStandbyUnreached(t *testing.T, m *standbyMember) {
	m.unreached = "first"
	m.node(t, "first")
	pass(40 * time.Second)
	m.node(t, "second")
	pass(4 * time.Minute)
	m.expectServing(t, 1, "when the first has given up")
	if _, second := m.serving["second"]; !second {
		t.Errorf("got %v serving, want the second", m.serving)
	}
}

func testStandbyLeaseLost(t *testing.T, m *standbyMember) {
	_, cut := m.node(t, "n")
	pass(time.Minute)
	m.expectServing(t, 1, "without a replica")
	set := func(is bool) {
		m.nodes.mu.Lock()
		defer m.nodes.mu.Unlock()
		*cut = is
	}
	set(true)
	pass(15 * time.Second)
	m.expectServing(t, 0, "without the Lease")
	set(false)
	pass(time.Minute) // the node agent checks again within 36 s, and then watches for a replica for 20 s
	m.expectServing(t, 1, "a minute after the API server is back")
}

func testStandbyDrains(t *testing.T, m *standbyMember) {
	m.drain = 2 * time.Minute
	m.ready(3, 0)
	m.node(t, "n")
	pass(time.Minute)
	m.expectServing(t, 1, "without a replica that is ready")
	expect(t, m.replicas.join(t, "a"), "t")
	m.ready(3, 1)
	pass(20 * time.Second)
	m.expectServing(t, 0, "20 s after one is ready")
	m.ready(3, 0)
	pass(30 * time.Second)
	m.expectServing(t, 1, "30 s after it is ready no more")
}

func testStandbyForbidden(t *testing.T, m *standbyMember) {
	m.nodes.fail(apierrors.NewForbidden(resource, "x", errors.New("no right")))
	m.node(t, "n")
	pass(time.Hour)
	m.expectServing(t, 0, "without a right to the Lease")
}
