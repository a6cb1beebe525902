// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tunnel"
	"github.com/drover-dev/drover/test/testkit"
)

// world is a registry in a bubble of synctest. A goroutine that outlives the test fails it.
type world struct {
	*members.Registry
	t *testing.T
	// pass lets time pass in the bubble.
	pass func(time.Duration)

	mu      sync.Mutex // guards changes
	changes int
}

// inBubble runs a test with an empty registry.
func inBubble(t *testing.T, test func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, Registry: members.New(logr.Discard(), time.Now)}
		w.pass = func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		w.OnChange(func(types.NamespacedName) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.changes++
		})
		t.Cleanup(w.Close)
		test(w)
	})
}

func (w *world) changed() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changes
}

func name(cluster string) types.NamespacedName {
	return types.NamespacedName{Namespace: "team-a", Name: cluster}
}

func peer(cluster, key string) members.Peer {
	return members.Peer{Cluster: protocol.ClusterRef{Namespace: "team-a", Name: cluster, UID: cluster + "-uid"}, Key: key}
}

// add connects a fake agent in memory.
func (w *world) add(cluster string, report protocol.Report) *testkit.Agent {
	w.t.Helper()
	agent := testkit.ConnectAgent(w.t, report)
	w.Add(peer(cluster, "key"), agent.Session)
	synctest.Wait()
	return agent
}

// agent is the far end of a tunnel, with a handler of the test.
type agent struct {
	session *tunnel.Session
	conn    *tunnel.Conn
	stop    context.CancelFunc
}

// serve connects an agent that answers with h.
func (w *world) serve(cluster, key string, h http.HandlerFunc) agent {
	w.t.Helper()
	a := newAgent(w.t, h)
	w.Add(peer(cluster, key), a.session)
	synctest.Wait()
	return a
}

func newAgent(t testing.TB, h http.Handler) agent {
	t.Helper()
	opened := testkit.OpenTunnel(t, h)
	return agent{session: opened.Session, conn: opened.Conn, stop: opened.Stop}
}

// reporting returns a handler that answers requests for the report with lines and then waits for the end of the
// request. It passes other requests to next.
func reporting(next http.HandlerFunc, lines ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != protocol.PathReport {
			next(w, r)
			return
		}
		for _, line := range lines {
			_, _ = io.WriteString(w, line)
		}
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

// get sends a request to a member as the proxy does.
func (w *world) get(cluster, path string) (string, error) {
	transport, err := w.Transport(name(cluster))
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return string(raw), err
}

func respond(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

func TestRegistry(t *testing.T) {
	for name, test := range map[string]func(*world){
		"an agent that connects is a connected member with a report":              testConnect,
		"a later report replaces the earlier one":                                 testReports,
		"a killed agent is lost, with the time and the reason":                    testLost,
		"the newest tunnel carries requests, and the other one takes over":        testReplace,
		"a member has at most twelve tunnels":                                     testLimit,
		"a malformed report ends the tunnel":                                      testMalformed,
		"an endless line ends the tunnel":                                         testOversize,
		"an agent without a report stays connected, with the reason":              testNoReport,
		"an agent that disconnects gets no more requests and completes open ones": testLeave,
		"requests of an agent that disconnects end after an hour":                 testLeaveStuck,
		"an agent that leaves one tunnel after another keeps at most twelve":      testLeaveOften,
		"fast reports are published at a limited rate, including the newest":      testFastReports,
		"the tunnels of a revoked agent end and the rightful agent's stay":        testDisconnect,
		"a revoked agent that disconnects ends at once":                           testDisconnectLeaving,
		"a forgotten member has no state":                                         testForget,
		"a rejection is shown for ten minutes":                                    testRefused,
		"closing ends all tunnels, waits for them and accepts no more":            testClose,
		"settings are stored and an agent is uninstalled":                         testCalls,
		"a call that the agent refuses returns an error":                          testCallsRefused,
	} {
		t.Run(name, func(t *testing.T) { inBubble(t, test) })
	}
}

func testConnect(w *world) {
	if _, err := w.Transport(name("member")); !errors.Is(err, members.ErrNotConnected) {
		w.t.Errorf("before the member connected: got %v, want %v", err, members.ErrNotConnected)
	}
	w.add("member", testkit.HealthyReport())
	state := w.State(name("member"))
	if !state.Connected() || state.Peers[0].Key != "key" || state.Peers[0].Cluster != peer("member", "key").Cluster ||
		state.Report == nil || state.Report.Version != "v1.36.3+k3s1" || state.ReportErr != nil {
		w.t.Errorf("state %+v, want the member connected, with the peer and the report of its agent", state)
	}
	if members, tunnels := w.Size(); members != 1 || tunnels != 1 {
		w.t.Errorf("%d members, %d tunnels, want one of each", members, tunnels)
	}
	if w.changed() != 2 { // connected, reported
		w.t.Errorf("got %d changes, want 2", w.changed())
	}
	if w.State(name("other")).Connected() {
		w.t.Error("another member is connected, want only one")
	}
}

func testReports(w *world) {
	agent := w.add("member", testkit.HealthyReport())
	agent.Report(func(r *protocol.Report) { r.Version = "v1.37.0" })
	synctest.Wait()
	if got := w.State(name("member")).Report.Version; got != "v1.37.0" {
		w.t.Errorf("version %s, want v1.37.0 from the second report", got)
	}
}

func testLost(w *world) {
	agent := w.add("member", testkit.HealthyReport())
	w.pass(time.Hour)
	before := w.changed()
	agent.Kill()
	synctest.Wait()
	state := w.State(name("member"))
	if state.Connected() || !state.LastSeen.Equal(time.Now()) || state.Report != nil || state.ReportErr != nil {
		w.t.Errorf("state %+v, want the member lost now, without a report", state)
	}
	if !errors.Is(state.LostBecause, tunnel.ErrPeerClosed) || errors.Is(state.LostBecause, members.ErrReportEnded) {
		w.t.Errorf("lost because of %v, want %v", state.LostBecause, tunnel.ErrPeerClosed)
	}
	if w.changed() != before+1 {
		w.t.Errorf("got %d changes, want 1", w.changed()-before)
	}
}

func testReplace(w *world) {
	old := w.serve("member", "key", reporting(respond("old"), `{"version":"v1"}`+"\n"))
	renewed := w.serve("member", "key", reporting(respond("new"), `{"version":"v2"}`+"\n"))
	if got, err := w.get("member", "/"); got != "new" {
		w.t.Errorf("answered by %q, %v, want the new tunnel", got, err)
	}
	if got := w.State(name("member")).Report.Version; got != "v2" {
		w.t.Errorf("the report has version %s, want v2", got)
	}
	_ = renewed.conn.Close()
	synctest.Wait()
	if got, err := w.get("member", "/"); got != "old" {
		w.t.Errorf("answered by %q, %v, want the old tunnel", got, err)
	}
	state := w.State(name("member"))
	if state.Report.Version != "v1" || !state.LastSeen.IsZero() {
		w.t.Errorf("state %+v of a member that has a tunnel left, want it connected", state)
	}
	_ = old.conn.Close()
	synctest.Wait()
	if w.State(name("member")).LastSeen.IsZero() {
		w.t.Error("LastSeen is zero after the last tunnel ended, want the time")
	}
}

func testLimit(w *world) {
	first := w.serve("member", "key", reporting(respond("first")))
	for range 11 {
		w.serve("member", "key", reporting(respond("more")))
	}
	if !alive(first) {
		w.t.Fatal("the first of twelve tunnels has ended, want it open")
	}
	w.serve("member", "key", reporting(respond("newest")))
	synctest.Wait()
	if alive(first) {
		w.t.Error("the oldest of thirteen tunnels is open, want it ended")
	}
	if n := len(w.State(name("member")).Peers); n != 12 {
		w.t.Errorf("%d tunnels, want 12", n)
	}
	if got, err := w.get("member", "/"); got != "newest" {
		w.t.Errorf("answered by %q, %v, want the newest tunnel", got, err)
	}
}

func alive(a agent) bool {
	select {
	case <-a.session.Done():
		return false
	default:
		return true
	}
}

func testMalformed(w *world) {
	for _, line := range []string{"secret-in-the-line\n", "[1]\n", `{"nodes":"many"}` + "\n", "\n"} {
		a := w.serve("member", "key", reporting(respond(""), `{"version":"v1"}`+"\n", line))
		state := w.State(name("member"))
		if alive(a) || state.Connected() || state.ReportErr != nil ||
			!errors.Is(state.LostBecause, members.ErrReportMalformed) {
			w.t.Errorf("%q: state %+v, want the tunnel ended as malformed", line, state)
		}
		if strings.Contains(fmt.Sprint(state.LostBecause), "secret") {
			w.t.Errorf("the error %v quotes the line, want it without", state.LostBecause)
		}
	}
}

func testOversize(w *world) {
	a := w.serve("member", "key", reporting(respond(""), `{"version":"`+strings.Repeat("x", protocol.MaxBody)))
	if state := w.State(name("member")); alive(a) || !errors.Is(state.LostBecause, members.ErrReportMalformed) {
		w.t.Errorf("state %+v, want the tunnel ended as malformed", state)
	}
}

func testNoReport(w *world) {
	a := w.serve("member", "key", func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == protocol.PathReport {
			http.NotFound(rw, r)
			return
		}
		_, _ = io.WriteString(rw, "served")
	})
	state := w.State(name("member"))
	if !alive(a) || !state.Connected() || state.Report != nil || state.ReportErr == nil ||
		!strings.Contains(state.ReportErr.Error(), "404") {
		w.t.Errorf("state %+v, want the member connected, without a report because of 404", state)
	}
	if got, err := w.get("member", "/"); got != "served" {
		w.t.Errorf("got %q, %v, want the tunnel to serve requests", got, err)
	}
	_ = a.conn.Close()
	synctest.Wait()
	if w.State(name("member")).Connected() {
		w.t.Error("the member is connected after its tunnel ended, want it lost")
	}
}

// leaving is an agent that ends its report when leave is closed, as a stopping agent does, and answers other requests
// when answer is closed.
type leaving struct{ leave, answer chan struct{} }

func (l leaving) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == protocol.PathReport {
		_ = http.NewResponseController(w).Flush()
		<-l.leave
		return
	}
	select {
	case <-l.answer:
		_, _ = io.WriteString(w, "served")
	case <-r.Context().Done():
	}
}

// leave lets an agent disconnect while a request is in progress. The returned channel receives the result of the
// request.
func (w *world) leave() (agent, leaving, <-chan string) {
	w.t.Helper()
	l := leaving{leave: make(chan struct{}), answer: make(chan struct{})}
	a := w.serve("member", "key", l.ServeHTTP)
	got := make(chan string, 1)
	go func() {
		body, err := w.get("member", "/slow")
		got <- fmt.Sprint(body, err)
	}()
	synctest.Wait()
	close(l.leave)
	synctest.Wait()
	state := w.State(name("member"))
	if state.Connected() || state.LastSeen.IsZero() || !errors.Is(state.LostBecause, members.ErrReportEnded) ||
		state.ReportErr != nil {
		w.t.Errorf("state %+v, want the member lost because the report ended", state)
	}
	if _, err := w.Transport(name("member")); !errors.Is(err, members.ErrNotConnected) {
		w.t.Errorf("after the agent disconnected: got %v, want %v", err, members.ErrNotConnected)
	}
	if !alive(a) {
		w.t.Fatal("the tunnel ended while a request was open, want it to stay")
	}
	return a, l, got
}

func testLeave(w *world) {
	a, l, got := w.leave()
	before := w.changed()
	close(l.answer)
	synctest.Wait()
	if text := <-got; text != "served<nil>" {
		w.t.Errorf("the open request got %s, want it served", text)
	}
	w.pass(time.Second) // for requests that had just chosen the tunnel
	if alive(a) {
		w.t.Error("the tunnel is open after its last request, want it ended")
	}
	if w.changed() != before {
		w.t.Error("the end of the tunnel was another change, want none")
	}
}

// testLeaveOften lets one agent after another disconnect while a request is in progress.
func testLeaveOften(w *world) {
	const most = 12
	var agents []agent
	for range most + 1 {
		l := leaving{leave: make(chan struct{}), answer: make(chan struct{})}
		a := w.serve("member", "key", l.ServeHTTP)
		agents = append(agents, a)
		go func() { _, _ = w.get("member", "/slow") }()
		synctest.Wait()
		close(l.leave)
		synctest.Wait()
	}
	if alive(agents[0]) {
		w.t.Error("the oldest tunnel is open, want it ended")
	}
	for i, a := range agents[1:] {
		if !alive(a) {
			w.t.Errorf("tunnel %d of the %d newest has ended, want it open", i, most)
		}
	}
	if got := len(w.Local(name("member"))); got != most {
		w.t.Errorf("got %d tunnels, want %d", got, most)
	}
}

func testLeaveStuck(w *world) {
	a, _, got := w.leave()
	w.pass(time.Hour + time.Second)
	if alive(a) {
		w.t.Error("the tunnel is open after an hour, want it ended")
	}
	if text := <-got; strings.Contains(text, "served") {
		w.t.Errorf("got %s, want an error", text)
	}
}

func testFastReports(w *world) {
	const lines = 150
	a := w.serve("member", "key", func(rw http.ResponseWriter, r *http.Request) {
		for i := range lines {
			_, _ = fmt.Fprintf(rw, "{\"version\":\"v%d\"}\n", i)
		}
		_ = http.NewResponseController(rw).Flush()
		<-r.Context().Done()
	})
	w.pass(2 * time.Second)
	if n := w.changed(); n > 20 {
		w.t.Errorf("got %d changes, want at most 20", n)
	}
	if got := w.State(name("member")).Report.Version; got != "v149" || !alive(a) {
		w.t.Errorf("the last report is %s, want v149 through an open tunnel", got)
	}
}

func testDisconnect(w *world) {
	revoked := w.serve("member", "old", reporting(respond("old")))
	rightful := w.serve("member", "new", reporting(respond("new")))
	other := w.serve("other", "old", reporting(respond("other")))
	w.Disconnect(name("member"), func(p members.Peer) bool { return p.Key == "new" })
	w.Disconnect(name("unknown"), func(members.Peer) bool { return false })
	synctest.Wait()
	if alive(revoked) || !alive(rightful) || !alive(other) {
		w.t.Errorf("open tunnels: revoked %t, rightful %t, other member's %t, want false, true and true",
			alive(revoked), alive(rightful), alive(other))
	}
	w.Disconnect(name("member"), func(members.Peer) bool { return false })
	synctest.Wait()
	if state := w.State(name("member")); !errors.Is(state.LostBecause, members.ErrRevoked) {
		w.t.Errorf("lost because of %v, want %v", state.LostBecause, members.ErrRevoked)
	}
}

func testDisconnectLeaving(w *world) {
	a, _, got := w.leave()
	w.Disconnect(name("member"), func(members.Peer) bool { return false })
	synctest.Wait()
	if alive(a) {
		w.t.Error("the tunnel of a revoked agent is still open, want it ended")
	}
	<-got
}

func testForget(w *world) {
	a := w.serve("member", "key", reporting(respond("")))
	w.Refused(name("member"), v1.ReasonIdentityMismatch, "another agent")
	w.Forget(name("member"))
	synctest.Wait()
	if alive(a) {
		w.t.Error("the tunnel of a forgotten member is open, want it ended")
	}
	if state := w.State(name("member")); !state.LastSeen.IsZero() || state.LostBecause != nil || state.Refusal != nil {
		w.t.Errorf("a new Cluster of the same name starts with %+v, want no state", state)
	}
	w.serve("member", "key", reporting(respond("")))
	if !w.State(name("member")).Connected() {
		w.t.Error("a forgotten member cannot connect again, want it connected")
	}
	w.Forget(name("never seen"))
}

func testRefused(w *world) {
	w.Refused(name("member"), v1.ReasonIdentityMismatch, "another agent")
	state := w.State(name("member"))
	if state.Refusal == nil || state.Refusal.Message != "another agent" || !state.Refusal.At.Equal(time.Now()) ||
		state.Connected() || w.changed() != 1 {
		w.t.Fatalf("state %+v after %d changes, want a rejection with the present time, and one change", state, w.changed())
	}
	state.Refusal.Message = "changed" // State returns a copy
	w.pass(members.RefusalMemory - time.Second)
	if got := w.State(name("member")).Refusal; got == nil || got.Message != "another agent" {
		w.t.Errorf("rejection %+v, want it unchanged", got)
	}
	w.pass(time.Second)
	if got := w.State(name("member")).Refusal; got != nil {
		w.t.Errorf("rejection %+v after ten minutes, want none", got)
	}
}

func testClose(w *world) {
	a, b := w.serve("a", "key", reporting(respond(""))), w.serve("b", "key", reporting(respond("")))
	leaving, _, got := w.leave()
	w.Close()
	for _, closed := range []agent{a, b, leaving} {
		if alive(closed) {
			w.t.Error("a tunnel is open after Close, want it ended")
		}
	}
	<-got
	late := newAgent(w.t, reporting(respond("")))
	w.Add(peer("late", "key"), late.session)
	if alive(late) || w.State(name("late")).Connected() {
		w.t.Error("a closed registry accepted a tunnel, want it closed")
	}
	w.Close()
	if members, tunnels := w.Size(); members != 0 || tunnels != 0 {
		w.t.Errorf("%d members, %d tunnels, want none", members, tunnels)
	}
}

// await starts a call, waits long enough for it to end, and returns its result.
func (w *world) await(start func() members.Call) members.Call {
	start()
	w.pass(30 * time.Second)
	return start()
}

func (w *world) putSettings(member string, settings protocol.Settings) members.Call {
	return w.await(func() members.Call { return w.StartSettings(name(member), settings) })
}

func (w *world) uninstall(member string) members.Call {
	return w.await(func() members.Call { return w.StartUninstall(name(member)) })
}

func testCalls(w *world) {
	agent := w.add("member", testkit.HealthyReport())
	settings := protocol.Settings{Servers: []string{"https://hub.example.com"}, CABundle: "PEM"}
	if call := w.putSettings("member", settings); !call.Done() {
		w.t.Fatalf("settings: %+v, want the call done", call)
	}
	if got := <-agent.Settings; got.Digest() != settings.Digest() {
		w.t.Errorf("the agent got the settings %+v, want %+v", got, settings)
	}
	synctest.Wait()
	if got := w.State(name("member")).Report.SettingsDigest; got != settings.Digest() {
		w.t.Errorf("the agent confirms %q, want %q", got, settings.Digest())
	}
	if call := w.uninstall("member"); !call.Done() || len(call.Remaining) > 0 || len(agent.Uninstalled) != 1 {
		w.t.Errorf("uninstall: %+v, want it done once, with nothing remaining", call)
	}
}

func testCallsRefused(w *world) {
	if err := w.putSettings("member", protocol.Settings{}).Err; !errors.Is(err, members.ErrNotConnected) {
		w.t.Errorf("without a connection: got %v, want %v", err, members.ErrNotConnected)
	}
	w.serve("member", "key", reporting(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == protocol.PathUninstall {
			_, _ = io.WriteString(rw, "done")
			return
		}
		http.Error(rw, "cannot store: the text of an agent", http.StatusInternalServerError)
	}))
	if err := w.putSettings("member", protocol.Settings{}).Err; err == nil || !strings.Contains(err.Error(), "500") {
		w.t.Errorf("refused settings: got %v, want an error with 500", err)
	}
	if err := w.uninstall("member").Err; err == nil || !strings.Contains(err.Error(), "malformed") {
		w.t.Errorf("malformed response: got %v, want an error that says malformed", err)
	}
	w.serve("silent", "key", reporting(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	if err := w.putSettings("silent", protocol.Settings{}).Err; !errors.Is(err, context.DeadlineExceeded) {
		w.t.Errorf("an agent that does not answer: got %v, want %v", err, context.DeadlineExceeded)
	}
}

// This test does everything at once. The race detector finds data races, and the bubble finds deadlocks and leaked
// goroutines.
func TestRegistryIsSafeForConcurrentUse(t *testing.T) {
	inBubble(t, func(w *world) {
		var all sync.WaitGroup
		for i := range 8 {
			cluster := name(fmt.Sprintf("member-%d", i%3))
			all.Go(func() {
				for round := range 5 {
					agent := testkit.ConnectAgent(w.t, testkit.HealthyReport())
					w.Add(peer(cluster.Name, fmt.Sprint(round)), agent.Session)
					w.State(cluster)
					_, _ = w.get(cluster.Name, "/")
					w.StartSettings(cluster, protocol.Settings{})
					switch round {
					case 1:
						agent.Kill()
					case 2:
						w.Disconnect(cluster, func(p members.Peer) bool { return p.Key != "2" })
					case 3:
						w.Forget(cluster)
					case 4:
						w.Refused(cluster, v1.ReasonIdentityMismatch, "another agent")
					}
					w.Size()
				}
			})
		}
		all.Wait()
		w.Close()
	})
}

// synced counts the complete reports.
type synced[E any] struct{ *sync.WaitGroup }

func (s synced[E]) Synced(types.NamespacedName, []E) { s.Done() }
func (s synced[E]) Event(types.NamespacedName, E)    {}
func (s synced[E]) Stopped(types.NamespacedName)     {}

// An idle member costs the leading replica of the hub three goroutines, including its report, sets and plans: two for
// the tunnel and a reader.
func TestIdleMembersCostFewGoroutines(t *testing.T) {
	const count, most = 50, 3
	registry := members.New(logr.Discard(), time.Now)
	t.Cleanup(registry.Close)
	var everything sync.WaitGroup
	everything.Add(2 * count) // sets and plans
	registry.FollowSets(synced[*protocol.SetEvent]{&everything})
	registry.FollowPlans(synced[*protocol.PlanEvent]{&everything})
	ctx, stop := context.WithCancel(t.Context())
	var leading sync.WaitGroup
	leading.Go(func() { _ = registry.Lead(ctx) })
	t.Cleanup(func() { stop(); leading.Wait() })
	report, err := json.Marshal(testkit.HealthyReport())
	if err != nil {
		t.Fatal(err)
	}
	for i := range count {
		hubEnd, agentEnd := net.Pipe()
		conn := tunnel.NewConn(agentEnd, tunnel.Config{})
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = conn.Serve(context.Background(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				lines := string(report) + "\n"
				if len(protocol.Subjects(r.URL)) == 3 {
					lines += `{"set":{"synced":true}}` + "\n" + `{"plan":{"synced":true}}` + "\n"
				}
				reporting(respond(""), lines)(w, r)
			}))
		}()
		t.Cleanup(func() {
			_ = conn.Close()
			<-served
		})
		// goroutines that start here are labeled
		pprof.Do(t.Context(), pprof.Labels("side", "hub"), func(ctx context.Context) {
			session, err := tunnel.NewSession(ctx, hubEnd, tunnel.Config{})
			if err != nil {
				t.Error(err)
				return
			}
			registry.Add(peer(fmt.Sprintf("member-%d", i), "key"), session)
		})
	}
	everything.Wait()
	perMember := float64(labelled(t)) / count
	t.Logf("%.1f goroutines per idle member", perMember)
	if perMember > most || perMember < 1 {
		t.Errorf("%.1f goroutines per idle member, want 1 to %d", perMember, most)
	}
}

// labelled counts the goroutines on the hub's side.
func labelled(t *testing.T) int {
	t.Helper()
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		t.Fatal(err)
	}
	count, last := 0, 0
	for line := range strings.Lines(profile.String()) {
		if n, _, ok := strings.Cut(line, " @ "); ok {
			last, _ = strconv.Atoi(n)
		}
		if strings.HasPrefix(line, "# labels:") && strings.Contains(line, `"side":"hub"`) {
			count += last
		}
	}
	return count
}
