// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tunnel"
	"github.com/drover-dev/drover/test/testkit"
)

var member = types.NamespacedName{Namespace: "team-a", Name: "prod"}

func agentOf(name types.NamespacedName, instance string) members.Peer {
	return members.Peer{
		Cluster: protocol.ClusterRef{Namespace: name.Namespace, Name: name.Name, UID: "uid"},
		Key:     "key", Instance: instance, TokenID: "token-" + instance,
	}
}

// bubble is a test in a bubble of synctest.
type bubble struct {
	*testing.T
	// pass lets time pass in the bubble.
	pass func(time.Duration)
}

// node is a replica without a port.
type node struct {
	*Network
	fleet *members.Registry
	end   context.CancelFunc
}

func newNode(t *bubble) *node {
	t.Helper()
	registry := members.New(logr.Discard(), time.Now)
	ctx, cancel := context.WithCancel(context.Background())
	network := New(Options{Members: registry.Replicas, Transports: registry.Transports, Log: logr.Discard()})
	n := &node{Network: network, fleet: registry, end: cancel}
	n.begin(ctx)
	t.Cleanup(func() {
		cancel()
		registry.Close()
		n.running.Wait()
	})
	return n
}

// wire is the network between two replicas.
type wire struct {
	net.Conn
	dead atomic.Bool
}

// Read swallows the data on a dead wire.
func (w *wire) Read(p []byte) (int, error) {
	for {
		n, err := w.Conn.Read(p)
		if err != nil || !w.dead.Load() {
			return n, err
		}
	}
}

// offerTo links two replicas as if n had dialed to.
func (n *node) offerTo(t *bubble, to *node) *wire {
	t.Helper()
	near, far := net.Pipe()
	w := &wire{Conn: far}
	conn := tunnel.NewConn(near, n.config())
	d := &dial{wanted: true}
	n.running.Go(func() { _ = conn.Serve(n.ctx, n.offered(d)) })
	l, err := to.newLink(func(cfg tunnel.Config) (*tunnel.Session,
		error) {
		return tunnel.NewSession(t.Context(), w, cfg)
	})
	if err != nil {
		t.Fatal(err)
	}
	to.running.Go(func() { to.hold(n.id, l) })
	synctest.Wait()
	return w
}

func get(n *node, name types.NamespacedName) (string, error) {
	transport, err := n.fleet.Transport(name)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequest(http.MethodGet, "http://member/v1/k8s/version", nil)
	if err != nil {
		return "", err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func TestMembersOfAnotherReplica(t *testing.T) {
	for name, test := range map[string]func(*bubble){
		"are reported without hosts to a replica of the previous release, which does not request them": testReleaseBefore,
		"are known with their reports and changes":                                                     testMirror,
		"are lost ten seconds after the replica died, with the reason":                                 testDeath,
		"are lost ten seconds after a hanging replica was last heard of":                               testHang,
		"are never shown as lost if they connect elsewhere in time":                                    testComeBack,
		"stay connected if the replica links again":                                                    testRelink,
		"keep the cause of a loss before the replica died":                                             testLostBefore,
		"get no requests while the replica is unreachable":                                             testUnreachable,
		"are not reached through two hops":                                                             testOneHop,
		"do not show an old loss after they connect again":                                             testOldLoss,
		"lose the later of two tunnels with the same connect token":                                    testReplay,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test(&bubble{T: t, pass: func(d time.Duration) {
					time.Sleep(d)
					synctest.Wait()
				}})
			})
		})
	}
}

func testMirror(t *bubble) {
	a, b := newNode(t), newNode(t)
	a.offerTo(t, b)
	agent := testkit.ConnectAgent(t, testkit.HealthyReport())
	a.fleet.Add(agentOf(member, "one"), agent.Session)
	synctest.Wait()
	state := b.fleet.State(member)
	if !state.Connected() || state.Report == nil || state.Report.Version != "v1.36.3+k3s1" ||
		state.Peers[0].Instance != "one" {
		t.Fatalf("state %+v, want the member connected with its first report", state)
	}
	agent.Report(func(r *protocol.Report) { r.Version = "v1.37.0" })
	synctest.Wait()
	if got := b.fleet.State(member).Report.Version; got != "v1.37.0" {
		t.Errorf("version %s, want v1.37.0 from the second report", got)
	}
	a.fleet.Refused(member, "IdentityMismatch", "another agent")
	agent.Kill()
	synctest.Wait()
	state = b.fleet.State(member)
	if state.Connected() || state.LastSeen.IsZero() || state.LostBecause == nil || state.Refusal == nil || state.Left {
		t.Errorf("state %+v, want the member lost and rejected, as at the other replica", state)
	}
	a.fleet.Forget(member)
	synctest.Wait()
	if state := b.fleet.State(member); !state.LastSeen.IsZero() || state.Refusal != nil {
		t.Errorf("a forgotten member has the state %+v, want none", state)
	}
}

// connected returns two linked replicas. A member is connected to the first, and the second knows it.
func connected(t *bubble) (a, b *node, w *wire) {
	t.Helper()
	a, b = newNode(t), newNode(t)
	w = a.offerTo(t, b)
	a.fleet.Add(agentOf(member, "one"), testkit.ConnectAgent(t, testkit.HealthyReport()).Session)
	synctest.Wait()
	if !b.fleet.State(member).Connected() {
		t.Fatal("the second replica does not know the member, want it connected")
	}
	return a, b, w
}

// lostAfter returns how long it takes until the member is lost.
func (t *bubble) lostAfter(n *node) time.Duration {
	start := time.Now()
	for n.fleet.State(member).Connected() && time.Since(start) < time.Minute {
		t.pass(100 * time.Millisecond)
	}
	return time.Since(start)
}

func testDeath(t *bubble) {
	_, b, w := connected(t)
	_ = w.Close()
	if took := t.lostAfter(b); took < 5*time.Second || took > 10*time.Second {
		t.Errorf("lost after %s, want 5 to 10 s", took)
	}
	if state := b.fleet.State(member); !errors.Is(state.LostBecause, members.ErrReplicaGone) ||
		time.Since(state.LastSeen) > 10*time.Second {
		t.Errorf("state %+v, want ErrReplicaGone, seen within 10 s", state)
	}
	if heard, _ := b.Links(); heard != 0 {
		t.Errorf("the replica hears %d others, want none", heard)
	}
}

func testHang(t *bubble) {
	_, b, w := connected(t)
	w.dead.Store(true)
	if took := t.lostAfter(b); took > 10*time.Second {
		t.Errorf("lost after %s, want at most 10 s", took)
	}
}

func testComeBack(t *bubble) {
	_, b, w := connected(t)
	_ = w.Close()
	t.pass(8 * time.Second)
	back := agentOf(member, "one")
	back.TokenID = "another" // an agent makes another token for each attempt
	b.fleet.Add(back, testkit.ConnectAgent(t, testkit.HealthyReport()).Session)
	over := false
	b.fleet.OnChange(func(types.NamespacedName) {
		if !over && !b.fleet.State(member).Connected() {
			t.Error("the member was shown as lost, want it connected all the time")
		}
	})
	t.pass(time.Minute)
	over = true
	if state := b.fleet.State(member); !state.Connected() || len(state.Peers) != 1 {
		t.Errorf("state %+v, want the member connected through one tunnel", state)
	}
}

func testRelink(t *bubble) {
	a, b, w := connected(t)
	gone := types.NamespacedName{Namespace: "team-a", Name: "gone"}
	second := testkit.ConnectAgent(t, testkit.HealthyReport())
	a.fleet.Add(agentOf(gone, "two"), second.Session)
	synctest.Wait()
	_ = w.Close()
	synctest.Wait()
	second.Kill()
	synctest.Wait()
	a.fleet.Forget(gone)
	if !b.fleet.State(gone).Connected() {
		t.Error("the member is lost while the link is down, want it connected")
	}
	a.offerTo(t, b)
	if state := b.fleet.State(gone); state.Connected() {
		t.Errorf("state %+v of a member that is not reported any more, want it lost", state)
	}
	t.pass(time.Minute)
	if !b.fleet.State(member).Connected() {
		t.Error("the member is lost although the replica is linked, want it connected")
	}
}

func testLostBefore(t *bubble) {
	a, b := newNode(t), newNode(t)
	w := a.offerTo(t, b)
	agent := testkit.ConnectAgent(t, testkit.HealthyReport())
	a.fleet.Add(agentOf(member, "one"), agent.Session)
	synctest.Wait()
	agent.Kill()
	synctest.Wait()
	before := b.fleet.State(member)
	_ = w.Close()
	t.pass(time.Minute)
	after := b.fleet.State(member)
	if !after.LastSeen.Equal(before.LastSeen) || after.LostBecause.Error() != before.LostBecause.Error() {
		t.Errorf("state %+v before and %+v after, want the same loss", before, after)
	}
}

func testUnreachable(t *bubble) {
	_, b, w := connected(t)
	_ = w.Close()
	synctest.Wait()
	start := time.Now()
	_, err := get(b, member)
	if !errors.Is(err, members.ErrNotConnected) || time.Since(start) > 3*time.Second {
		t.Errorf("got %v after %s, want %v within 3 s", err, time.Since(start), members.ErrNotConnected)
	}
}

func testReplay(t *bubble) {
	a, b := newNode(t), newNode(t)
	first, second := testkit.ConnectAgent(t, testkit.HealthyReport()), testkit.ConnectAgent(t, testkit.HealthyReport())
	a.fleet.Add(agentOf(member, "one"), first.Session)
	t.pass(time.Millisecond)
	b.fleet.Add(agentOf(member, "one"), second.Session)
	a.offerTo(t, b)
	b.offerTo(t, a)
	if len(a.fleet.Local(member)) != 1 || len(b.fleet.Local(member)) != 0 {
		t.Errorf("tunnels at the first %v, at the second %v, want only the first", a.fleet.Local(member),
			b.fleet.Local(member))
	}
}

// A request from another replica is sent through a tunnel that ends here, or refused.
func testOneHop(t *bubble) {
	a, b, _ := connected(t)
	ask := func(n *node) *httptest.ResponseRecorder {
		answer := httptest.NewRecorder()
		path := pathMembers + "/" + member.Namespace + "/" + member.Name + protocol.PathReport + "/none"
		n.offered(&dial{}).ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		return answer
	}
	if got := ask(a); got.Code != http.StatusNotFound || got.Header().Get(headerHop) != "" { // the agent's response
		t.Errorf("where the tunnel ends: got %d %v, want the agent's 404", got.Code, got.Header())
	}
	if got := ask(b); got.Code != http.StatusMisdirectedRequest || got.Header().Get(headerHop) != hopMisdirected {
		t.Errorf("where the member is mirrored: got %d %v, want 421 from the replica itself", got.Code, got.Header())
	}
}

func testOldLoss(t *bubble) {
	a, b, c := newNode(t), newNode(t), newNode(t)
	a.offerTo(t, c)
	b.offerTo(t, a)
	first := testkit.ConnectAgent(t, testkit.HealthyReport())
	a.fleet.Add(agentOf(member, "one"), first.Session)
	synctest.Wait()
	first.Kill()
	synctest.Wait()
	if c.fleet.State(member).LastSeen.IsZero() {
		t.Fatal("the third replica does not know the loss, want it known")
	}
	t.pass(time.Hour)
	b.fleet.Add(agentOf(member, "one"), testkit.ConnectAgent(t, testkit.HealthyReport()).Session)
	synctest.Wait()
	if state := c.fleet.State(member); !state.LastSeen.IsZero() { // c has no link to b
		t.Errorf("state %+v, want no loss", state)
	}
}

// testReleaseBefore checks that hosts are omitted. A replica of the previous release ends the stream at a name that
// cannot be a Cluster's, and then forgets all members.
func testReleaseBefore(t *bubble) {
	n := newNode(t)
	for _, name := range []string{"host:rack1", member.Name, "host:rack2", "test"} {
		agent := testkit.ConnectAgent(t, testkit.HealthyReport())
		n.fleet.Add(agentOf(types.NamespacedName{Namespace: member.Namespace, Name: name}, name), agent.Session)
	}
	t.pass(time.Second)
	for target, want := range map[string]string{
		pathMembers: "prod test", pathMembers + "?hosts=true": "host:rack1 host:rack2 prod test",
		pathMembers + "?hosts=other": "prod test",
	} {
		ctx, cancel := context.WithCancel(t.Context())
		answer, ended := httptest.NewRecorder(), make(chan struct{})
		go func() {
			defer close(ended)
			n.offered(&dial{}).ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, target, nil))
		}()
		t.pass(time.Second)
		cancel()
		<-ended
		reported := map[string]bool{}
		complete := false
		for line := range bytes.Lines(answer.Body.Bytes()) {
			m, err := parse(line)
			if err != nil {
				t.Fatal(err)
			}
			if complete = complete || m.Complete; m.Member != nil {
				reported[m.Member.Name] = true
			}
		}
		if got := strings.Join(slices.Sorted(maps.Keys(reported)), " "); got != want || !complete {
			t.Errorf("%s reports %q, complete: %t, want %q, complete", target, got, complete, want)
		}
	}
}
