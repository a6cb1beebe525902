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

// world is a registry in a bubble of its own: time is the bubble's, and a goroutine that outlives the test fails it.
type world struct {
	*members.Registry
	t *testing.T
	// pass lets the bubble's time pass.
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

// add connects an agent in memory.
func (w *world) add(cluster string, report protocol.Report) *testkit.Agent {
	w.t.Helper()
	agent := testkit.ConnectAgent(w.t, report)
	w.Add(peer(cluster, "key"), agent.Session)
	synctest.Wait()
	return agent
}

// agent is the far end of a tunnel with a handler of the test's.
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

// reporting answers requests for the report with lines and then waits for the end of the request, and others with next.
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

func said(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

func TestRegistry(t *testing.T) {
	for name, test := range map[string]func(*world){
		"an agent that connects is a connected member with a report":            testConnect,
		"what an agent reports later replaces what it reported before":          testReports,
		"a killed agent is lost, with the time and the reason":                  testLost,
		"the newest tunnel carries requests, the other one takes over":          testReplace,
		"a member has twelve tunnels at most":                                   testLimit,
		"a report that is none ends the tunnel":                                 testMalformed,
		"a line that does not end ends the tunnel":                              testOversize,
		"an agent without a report stays connected and shows":                   testNoReport,
		"an agent that disconnects gets no more requests and ends those it has": testLeave,
		"requests of an agent that leaves do not go on for ever":                testLeaveStuck,
		"an agent that leaves tunnel after tunnel keeps twelve":                 testLeaveOften,
		"of reports that come fast the newest is shown, at a pace":              testFastReports,
		"the tunnels of a revoked agent end and those of the rightful stay":     testDisconnect,
		"a revoked agent that disconnects ends at once":                         testDisconnectLeaving,
		"nothing is known of a member that is forgotten":                        testForget,
		"a refusal shows for ten minutes":                                       testRefused,
		"closing ends all tunnels, waits for them and takes no more":            testClose,
		"settings are stored and uninstalling removes":                          testCalls,
		"an agent that refuses what the hub asks is an error":                   testCallsRefused,
	} {
		t.Run(name, func(t *testing.T) { inBubble(t, test) })
	}
}

func testConnect(w *world) {
	if _, err := w.Transport(name("member")); !errors.Is(err, members.ErrNotConnected) {
		w.t.Errorf("before it connected: %v", err)
	}
	w.add("member", testkit.HealthyReport())
	state := w.State(name("member"))
	if !state.Connected() || state.Peers[0].Key != "key" || state.Peers[0].Cluster != peer("member", "key").Cluster || state.Report == nil || state.Report.Version != "v1.36.3+k3s1" || state.ReportErr != nil {
		w.t.Errorf("state %+v, want it connected with the peer and the report of its agent", state)
	}
	if members, tunnels := w.Size(); members != 1 || tunnels != 1 {
		w.t.Errorf("%d members, %d tunnels, want one of each", members, tunnels)
	}
	if w.changed() != 2 { // connected, reported
		w.t.Errorf("told of %d changes", w.changed())
	}
	if w.State(name("other")).Connected() {
		w.t.Error("another member is connected as well")
	}
}

func testReports(w *world) {
	agent := w.add("member", testkit.HealthyReport())
	agent.Report(func(r *protocol.Report) { r.Version = "v1.37.0" })
	synctest.Wait()
	if got := w.State(name("member")).Report.Version; got != "v1.37.0" {
		w.t.Errorf("version %s, want that of the second report", got)
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
		w.t.Errorf("state %+v, want it lost now, without a report", state)
	}
	if !errors.Is(state.LostBecause, tunnel.ErrPeerClosed) || errors.Is(state.LostBecause, members.ErrReportEnded) {
		w.t.Errorf("lost because %v", state.LostBecause)
	}
	if w.changed() != before+1 {
		w.t.Errorf("told of %d changes", w.changed()-before)
	}
}

func testReplace(w *world) {
	old := w.serve("member", "key", reporting(said("old"), `{"version":"v1"}`+"\n"))
	renewed := w.serve("member", "key", reporting(said("new"), `{"version":"v2"}`+"\n"))
	if got, err := w.get("member", "/"); got != "new" {
		w.t.Errorf("answered by %q, %v, want the new tunnel", got, err)
	}
	if got := w.State(name("member")).Report.Version; got != "v2" {
		w.t.Errorf("report of %s, want the one of v2", got)
	}
	_ = renewed.conn.Close()
	synctest.Wait()
	if got, err := w.get("member", "/"); got != "old" {
		w.t.Errorf("answered by %q, %v, want the old tunnel", got, err)
	}
	state := w.State(name("member"))
	if state.Report.Version != "v1" || !state.LastSeen.IsZero() {
		w.t.Errorf("a member with a tunnel left is lost: %+v", state)
	}
	_ = old.conn.Close()
	synctest.Wait()
	if w.State(name("member")).LastSeen.IsZero() {
		w.t.Error("never seen")
	}
}

func testLimit(w *world) {
	first := w.serve("member", "key", reporting(said("first")))
	for range 11 {
		w.serve("member", "key", reporting(said("more")))
	}
	if !alive(first) {
		w.t.Fatal("twelve are too many")
	}
	w.serve("member", "key", reporting(said("newest")))
	synctest.Wait()
	if alive(first) {
		w.t.Error("the oldest lives on")
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
		a := w.serve("member", "key", reporting(said(""), `{"version":"v1"}`+"\n", line))
		state := w.State(name("member"))
		if alive(a) || state.Connected() || state.ReportErr != nil || !errors.Is(state.LostBecause, members.ErrReportMalformed) {
			w.t.Errorf("%q: state %+v, want the tunnel ended as malformed", line, state)
		}
		if strings.Contains(fmt.Sprint(state.LostBecause), "secret") {
			w.t.Errorf("the line is quoted: %v", state.LostBecause)
		}
	}
}

func testOversize(w *world) {
	a := w.serve("member", "key", reporting(said(""), `{"version":"`+strings.Repeat("x", protocol.MaxBody)))
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
	if !alive(a) || !state.Connected() || state.Report != nil || state.ReportErr == nil || !strings.Contains(state.ReportErr.Error(), "404") {
		w.t.Errorf("state %+v, want it connected, without a report because of 404", state)
	}
	if got, err := w.get("member", "/"); got != "served" {
		w.t.Errorf("got %q, %v, want that the tunnel serves", got, err)
	}
	_ = a.conn.Close()
	synctest.Wait()
	if w.State(name("member")).Connected() {
		w.t.Error("not lost with its tunnel")
	}
}

// leaving ends its report when told to, as an agent does that stops, and answers other requests when told to.
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

// leave has an agent take its leave while a request is under way, whose outcome comes through what it returns.
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
	if state.Connected() || state.LastSeen.IsZero() || !errors.Is(state.LostBecause, members.ErrReportEnded) || state.ReportErr != nil {
		w.t.Errorf("state %+v, want it lost because the report ended", state)
	}
	if _, err := w.Transport(name("member")); !errors.Is(err, members.ErrNotConnected) {
		w.t.Errorf("it still gets requests: %v", err)
	}
	if !alive(a) {
		w.t.Fatal("its request was cut")
	}
	return a, l, got
}

func testLeave(w *world) {
	a, l, got := w.leave()
	before := w.changed()
	close(l.answer)
	synctest.Wait()
	if text := <-got; text != "served<nil>" {
		w.t.Errorf("its request got %s, want it served", text)
	}
	w.pass(time.Second) // for those who looked it up just before
	if alive(a) {
		w.t.Error("the tunnel outlives its last request")
	}
	if w.changed() != before {
		w.t.Error("it is lost a second time")
	}
}

// testLeaveOften has agent after agent take its leave while a request is under way.
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
		w.t.Error("the oldest one is still there")
	}
	for i, a := range agents[1:] {
		if !alive(a) {
			w.t.Errorf("one of the %d newest was cut: %d", most, i)
		}
	}
	if got := len(w.Local(name("member"))); got != most {
		w.t.Errorf("%d tunnels are kept", got)
	}
}

func testLeaveStuck(w *world) {
	a, _, got := w.leave()
	w.pass(time.Hour + time.Second)
	if alive(a) {
		w.t.Error("the tunnel is still there after an hour")
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
		w.t.Errorf("told of %d changes", n)
	}
	if got := w.State(name("member")).Report.Version; got != "v149" || !alive(a) {
		w.t.Errorf("the last report is %s", got)
	}
}

func testDisconnect(w *world) {
	revoked := w.serve("member", "old", reporting(said("old")))
	rightful := w.serve("member", "new", reporting(said("new")))
	other := w.serve("other", "old", reporting(said("other")))
	w.Disconnect(name("member"), func(p members.Peer) bool { return p.Key == "new" })
	w.Disconnect(name("unknown"), func(members.Peer) bool { return false })
	synctest.Wait()
	if alive(revoked) || !alive(rightful) || !alive(other) {
		w.t.Errorf("alive: revoked %t, rightful %t, other member's %t", alive(revoked), alive(rightful), alive(other))
	}
	w.Disconnect(name("member"), func(members.Peer) bool { return false })
	synctest.Wait()
	if state := w.State(name("member")); !errors.Is(state.LostBecause, members.ErrRevoked) {
		w.t.Errorf("lost because %v", state.LostBecause)
	}
}

func testDisconnectLeaving(w *world) {
	a, _, got := w.leave()
	w.Disconnect(name("member"), func(members.Peer) bool { return false })
	synctest.Wait()
	if alive(a) {
		w.t.Error("a revoked agent's requests go on")
	}
	<-got
}

func testForget(w *world) {
	a := w.serve("member", "key", reporting(said("")))
	w.Refused(name("member"), v1.ReasonIdentityMismatch, "another agent")
	w.Forget(name("member"))
	synctest.Wait()
	if alive(a) {
		w.t.Error("its tunnel lives on")
	}
	if state := w.State(name("member")); !state.LastSeen.IsZero() || state.LostBecause != nil || state.Refusal != nil {
		w.t.Errorf("a Cluster made again under its name inherits %+v", state)
	}
	w.serve("member", "key", reporting(said("")))
	if !w.State(name("member")).Connected() {
		w.t.Error("it can't come back")
	}
	w.Forget(name("never seen"))
}

func testRefused(w *world) {
	w.Refused(name("member"), v1.ReasonIdentityMismatch, "another agent")
	state := w.State(name("member"))
	if state.Refusal == nil || state.Refusal.Message != "another agent" || !state.Refusal.At.Equal(time.Now()) || state.Connected() || w.changed() != 1 {
		w.t.Fatalf("state %+v, want the refusal of now, and one change", state)
	}
	state.Refusal.Message = "changed" // it is a copy
	w.pass(members.RefusalMemory - time.Second)
	if got := w.State(name("member")).Refusal; got == nil || got.Message != "another agent" {
		w.t.Errorf("refusal %+v, want it to stay", got)
	}
	w.pass(time.Second)
	if got := w.State(name("member")).Refusal; got != nil {
		w.t.Errorf("refusal %+v, want none after the agent connected", got)
	}
}

func testClose(w *world) {
	a, b := w.serve("a", "key", reporting(said(""))), w.serve("b", "key", reporting(said("")))
	leaving, _, got := w.leave()
	w.Close()
	for _, closed := range []agent{a, b, leaving} {
		if alive(closed) {
			w.t.Error("a tunnel lives on")
		}
	}
	<-got
	late := newAgent(w.t, reporting(said("")))
	w.Add(peer("late", "key"), late.session)
	if alive(late) || w.State(name("late")).Connected() {
		w.t.Error("a closed registry takes a tunnel")
	}
	w.Close()
	if members, tunnels := w.Size(); members != 0 || tunnels != 0 {
		w.t.Errorf("%d members, %d tunnels, want none", members, tunnels)
	}
}

// await starts a call, and returns its outcome after a time that is enough for it.
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
		w.t.Fatalf("settings: %+v, want it done", call)
	}
	if got := <-agent.Settings; got.Digest() != settings.Digest() {
		w.t.Errorf("settings %+v, want those that were sent", got)
	}
	synctest.Wait()
	if got := w.State(name("member")).Report.SettingsDigest; got != settings.Digest() {
		w.t.Errorf("the agent confirms %q", got)
	}
	if call := w.uninstall("member"); !call.Done() || len(call.Remaining) > 0 || len(agent.Uninstalled) != 1 {
		w.t.Errorf("uninstall: %+v, want it done, once, with nothing left", call)
	}
}

func testCallsRefused(w *world) {
	if err := w.putSettings("member", protocol.Settings{}).Err; !errors.Is(err, members.ErrNotConnected) {
		w.t.Errorf("not connected: %v", err)
	}
	w.serve("member", "key", reporting(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == protocol.PathUninstall {
			_, _ = io.WriteString(rw, "done")
			return
		}
		http.Error(rw, "cannot store: the text of an agent", http.StatusInternalServerError)
	}))
	if err := w.putSettings("member", protocol.Settings{}).Err; err == nil || !strings.Contains(err.Error(), "500") {
		w.t.Errorf("refused: %v, want an error with 500", err)
	}
	if err := w.uninstall("member").Err; err == nil || !strings.Contains(err.Error(), "malformed") {
		w.t.Errorf("malformed: %v, want an error that says malformed", err)
	}
	w.serve("silent", "key", reporting(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	if err := w.putSettings("silent", protocol.Settings{}).Err; !errors.Is(err, context.DeadlineExceeded) {
		w.t.Errorf("silent: %v, want the deadline's error", err)
	}
}

// With everything at once the race detector and the bubble judge: no data race, no deadlock, nothing left behind.
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

// synced counts the reports of everything.
type synced[E any] struct{ *sync.WaitGroup }

func (s synced[E]) Synced(types.NamespacedName, []E) { s.Done() }
func (s synced[E]) Event(types.NamespacedName, E)    {}
func (s synced[E]) Stopped(types.NamespacedName)     {}

// A member that does nothing costs the hub's leader three goroutines, with its report, its sets and its plans: two of
// the tunnel and one that reads.
func TestIdleMembersCostFewGoroutines(t *testing.T) {
	const count, most = 50, 3
	registry := members.New(logr.Discard(), time.Now)
	t.Cleanup(registry.Close)
	var everything sync.WaitGroup
	everything.Add(2 * count) // sets, plans
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
				reporting(said(""), lines)(w, r)
			}))
		}()
		t.Cleanup(func() {
			_ = conn.Close()
			<-served
		})
		pprof.Do(t.Context(), pprof.Labels("side", "hub"), func(ctx context.Context) { // what is started here is labelled
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
	t.Logf("%.1f goroutines for each idle member", perMember)
	if perMember > most || perMember < 1 {
		t.Errorf("%.1f goroutines for each idle member, want 1 to %d", perMember, most)
	}
}

// labelled counts the goroutines of the hub's side.
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
