// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
	"github.com/drover-dev/drover/test/traffic"
)

// Activities that continue while replicas are restarted.
const (
	replicas       = 3
	memberCount    = 3
	loadPerSecond  = 200
	loadAtOnce     = 16 // on a slow machine the rate falls, but the hub is still measured
	leastRequests  = 300
	watchCount     = 100
	sessionCount   = 5
	changesEach    = 25 * time.Millisecond // of one ConfigMap after the other
	http2Ways      = 6
	http1Ways      = 3
	drainDelay     = time.Second
	drainSessions  = 20 * time.Second
	sessionsGoOn   = 5 * time.Second // after the replica was asked to stop
	restartLimit   = 60 * time.Second
	trafficObjects = "traffic"
)

// TestLong_Replicas restarts and kills replicas of the manager under load. It runs alone, because beside other tests
// its requests would wait for the CPU.
func TestLong_Replicas(t *testing.T) {
	u := startTraffic(t)
	t.Run("a rolling restart loses nothing", func(t *testing.T) { testRollingRestart(t, u) })
	t.Run("one of two agents that stops, or dies, is not missed", func(t *testing.T) { testAgentRestarts(t, u) })
	t.Run("a replica that is killed is missed for no longer than a reconnect", func(t *testing.T) { testKills(t, u) })
}

// underTraffic is a hub with several replicas whose members are used continuously.
type underTraffic struct {
	*system
	clusters  []types.NamespacedName
	agents    []*framework.Agent // of the clusters
	ways      []*traffic.Way
	pod       string // path of the pod that sessions are with
	load      *traffic.Load
	readiness *traffic.ReadinessWatch
	watches   []*traffic.Watch

	mu      sync.Mutex // guards what follows
	changes []int      // how often the ConfigMap of each watch has been changed
}

func startTraffic(t *testing.T) *underTraffic {
	t.Helper()
	s := startWith(t, (*system).startReplicas)
	u := &underTraffic{system: s}
	create(t, s.member, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: trafficObjects}})
	create(t, s.member, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: trafficObjects, Name: "load"}})
	for i := range memberCount {
		cluster, agent := s.imported(t, "member-"+strconv.Itoa(i), s.member, agentNamespace("member-"+strconv.Itoa(i)))
		u.clusters, u.agents = append(u.clusters, cluster), append(u.agents, agent)
	}
	for _, cluster := range u.clusters {
		s.await(t, cluster, 30*time.Second, framework.Ready)
	}
	u.pod = "/api/v1/namespaces/default/pods/" + startKubelet(t, s.member).pod
	u.begin(t)
	return u
}

func (s *system) startReplicas(t *testing.T) {
	t.Helper()
	plane, err := s.plane("hub", lab.User{Name: "demo", Token: demoToken}, lab.User{Name: "stranger", Token: strangerToken})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Kill() })
	s.hub, err = framework.InstallReplicas(within(t, 2*time.Minute), plane, framework.Layout{Replicas: replicas, Configure: func(c *config.Config) {
		c.Drain = config.Drain{Delay: &metav1.Duration{Duration: drainDelay}, Sessions: &metav1.Duration{Duration: drainSessions}}
	}})
	t.Cleanup(func() { _ = s.hub.StopManagers() })
	if err != nil {
		t.Fatal(err)
	}
}

// begin begins the load, the watches and the changes that the watches receive. They last as long as the test.
func (u *underTraffic) begin(t *testing.T) {
	t.Helper()
	bundle, err := u.hub.Bundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	u.ways, err = traffic.Ways(traffic.Hub{URL: u.hub.URL(), Bundle: bundle, Token: demoToken}, http2Ways, http1Ways)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { stop(); running.Wait() })
	u.readiness = traffic.WatchReadiness(ctx, u.hub.Client)
	running.Go(u.readiness.Wait)
	u.changes = make([]int, watchCount)
	for i := range watchCount {
		name := "watched-" + strconv.Itoa(i)
		create(t, u.member, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: trafficObjects, Name: name}, Data: traffic.Counter(0)})
		w := &traffic.Watch{Way: u.ways[i%len(u.ways)], Cluster: u.clusters[i%len(u.clusters)], Namespace: trafficObjects, Name: name}
		if err := w.Start(ctx); err != nil {
			t.Fatal(err)
		}
		running.Go(w.Wait)
		u.watches = append(u.watches, w)
	}
	u.load = &traffic.Load{Ways: u.ways, Clusters: u.clusters, Namespace: trafficObjects, ConfigMap: "load", PerSecond: loadPerSecond, AtOnce: loadAtOnce}
	running.Go(func() { u.load.Run(ctx) })
	running.Go(func() { u.change(ctx) })
}

// change changes one watched ConfigMap after the other, without using the hub.
func (u *underTraffic) change(ctx context.Context) {
	tick := time.NewTicker(changesEach)
	defer tick.Stop()
	for i := 0; ; i = (i + 1) % watchCount {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		u.mu.Lock()
		n := u.changes[i] + 1
		u.mu.Unlock()
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: trafficObjects, Name: u.watches[i].Name}}
		patch := client.RawPatch(types.MergePatchType, []byte(`{"data":{"n":"`+strconv.Itoa(n)+`"}}`))
		if err := u.member.Client.Patch(ctx, object, patch); err != nil {
			if ctx.Err() == nil {
				u.t.Errorf("change %s: %v", object.Name, err)
			}
			return
		}
		u.mu.Lock()
		u.changes[i] = n
		u.mu.Unlock()
	}
}

func testRollingRestart(t *testing.T, u *underTraffic) {
	u.forget()
	began := time.Now()
	for _, replica := range u.hub.Replicas {
		u.restart(t, replica)
	}
	took := time.Since(began)
	r := u.load.Result()
	t.Logf("%d replicas restarted in %s: %d requests, p50 %s, p99 %s, longest %s", replicas, took.Round(time.Second), r.Requests, r.P50, r.P99, r.Longest)
	if r.Requests < leastRequests {
		t.Errorf("only %d requests, not %d at least: the test has not looked at what it should", r.Requests, leastRequests)
	}
	u.expectNoFailure(t)
	u.expectWatches(t, true)
}

// expectNoFailure checks the requests and the status of the Clusters since forget.
func (u *underTraffic) expectNoFailure(t *testing.T) {
	t.Helper()
	list := u.load.Result().Failures
	for _, failure := range list[:min(len(list), 20)] {
		t.Error(failure)
	}
	if len(list) > 0 {
		t.Errorf("%d requests failed", len(list))
	}
	for _, outage := range u.readiness.Outages() {
		t.Errorf("a Cluster was shown as not Ready: %s", outage)
	}
}

// restart stops a replica gracefully and starts it again, while sessions continue.
func (u *underTraffic) restart(t *testing.T, replica *framework.Replica) {
	t.Helper()
	sessions := u.openSessions(t)
	talking, quiet := context.WithTimeout(t.Context(), sessionsGoOn)
	defer quiet()
	began := time.Now()
	stopped := make(chan error, 1)
	go func() { stopped <- replica.Process.Stop(within(t, restartLimit)) }()
	var all sync.WaitGroup
	for _, session := range sessions {
		all.Go(func() {
			err := session.Talk(talking)
			if err == nil {
				err = session.End(within(t, 10*time.Second))
			}
			if err != nil {
				t.Errorf("%s stops: after %s: %v", replica.Name, time.Since(began).Round(time.Millisecond), err)
			}
		})
	}
	all.Wait()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	took := time.Since(began)
	if err := replica.Process.Err(); err != nil {
		t.Errorf("%s ended with %v:\n%s", replica.Name, err, tail(replica.Process.LogFile()))
	}
	u.startReplica(t, replica)
	t.Logf("%s stopped after %s and was ready again after %s", replica.Name, took.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
}

func (u *underTraffic) startReplica(t *testing.T, replica *framework.Replica) {
	t.Helper()
	ctx := within(t, restartLimit)
	if err := replica.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := u.hub.AwaitBalanced(ctx); err != nil { // it takes a moment to notice backends that are gone, too
		t.Fatal(err)
	}
}

// openSessions opens sessions with one member after the other, with both protocols.
func (u *underTraffic) openSessions(t *testing.T) []*traffic.Session {
	t.Helper()
	var sessions []*traffic.Session
	for i := range sessionCount {
		session, err := traffic.OpenSession(within(t, 2*time.Minute), u.ways[0], u.clusters[i%len(u.clusters)], u.pod, i%2 == 0)
		if err != nil {
			t.Errorf("%s: %v", time.Now().Format("15:04:05.000"), err)
			continue
		}
		sessions = append(sessions, session)
	}
	return sessions
}

// forget clears the records.
func (u *underTraffic) forget() {
	u.load.Reset()
	u.readiness.Reset()
	for _, w := range u.watches {
		w.Reset()
	}
}

// expectWatches waits until every watch has received all changes until now.
func (u *underTraffic) expectWatches(t *testing.T, clean bool) {
	t.Helper()
	u.mu.Lock()
	changes := append([]int{}, u.changes...)
	u.mu.Unlock()
	ctx := within(t, 20*time.Second)
	starts, unclean := 0, []string{}
	for i, w := range u.watches {
		if changes[i] < 2 {
			t.Errorf("%s was changed %d times: the test has not looked at what it should", w.Name, changes[i])
		}
		if err := w.Await(ctx, changes[i]); err != nil {
			t.Error(err)
		}
		n, broken, _ := w.Result()
		starts += n
		unclean = append(unclean, broken...)
	}
	t.Logf("%d watches were begun %d times; %d ends were not clean", watchCount, starts, len(unclean))
	if clean && len(unclean) > 0 {
		t.Errorf("%d watches did not end cleanly, for example:\n%s", len(unclean), lines(unclean, 10))
	}
	if starts <= watchCount {
		t.Error("no watch had to be resumed: the test has not looked at what it should")
	}
}

func lines(list []string, most int) string {
	text := ""
	for _, line := range list[:min(most, len(list))] {
		text += line + "\n"
	}
	return text
}

// testAgentRestarts adds a second agent to a member, and then stops one after the other.
func testAgentRestarts(t *testing.T, u *underTraffic) {
	cluster := u.clusters[0]
	manifest, err := u.hub.Manifest(within(t, 10*time.Second), cluster, u.cluster(t, cluster).UID)
	if err != nil {
		t.Fatal(err)
	}
	second := u.agent(t, manifest, cluster.Name+"-second", u.member, agentNamespace(cluster.Name))
	awaitReady(t, second)
	agents := []*framework.Agent{u.agents[0], second}
	u.awaitAgents(t, cluster, 2)
	u.forget()
	for _, agent := range agents {
		began := time.Now()
		if err := agent.Process.Stop(within(t, restartLimit)); err != nil {
			t.Error(err)
		}
		t.Logf("an agent stopped after %s", time.Since(began).Round(time.Millisecond))
		u.startAgent(t, agent)
		awaitReady(t, agent) // as a rolling update does before it goes on
		u.awaitAgents(t, cluster, 2)
	}
	u.expectNoFailure(t)
	t.Run("while one is killed the Cluster stays Ready and is reached", func(t *testing.T) {
		u.forget()
		kill(t, second.Process)
		u.awaitAgents(t, cluster, 1)
		if lapse := u.load.Lapse(cluster); lapse > time.Second {
			t.Errorf("it could not be reached for %s", lapse)
		}
		for _, outage := range u.readiness.Outages() {
			t.Errorf("shown as not Ready: %s", outage)
		}
	})
}

// awaitReady waits until an agent's readiness probe succeeds.
func awaitReady(t *testing.T, agent *framework.Agent) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+agent.Address+"/readyz", nil)
		if err != nil {
			return err
		}
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
		if err != nil {
			return err
		}
		if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %w", resp.Status, err)
		}
		return nil
	})
}

// awaitAgents waits until the Cluster shows the given number of agents.
func (u *underTraffic) awaitAgents(t *testing.T, cluster types.NamespacedName, n int32) {
	t.Helper()
	u.await(t, cluster, 30*time.Second, func(c *v1.Cluster) bool { return c.Status.Agent != nil && c.Status.Agent.Replicas == n })
}

// testKills kills each replica, one of which leads, together with the agent of one member each: the other replicas must
// notice that this agent is lost, and must not show the other agents as lost.
func testKills(t *testing.T, u *underTraffic) {
	const wrong, reconnect = 30 * time.Second, 10 * time.Second
	u.forget()
	for i, replica := range u.hub.Replicas {
		agent, cluster := u.agents[i%len(u.agents)], u.clusters[i%len(u.clusters)]
		kill(t, agent.Process)
		kill(t, replica.Process)
		t.Logf("%s and the agent of %s are killed: it shows after %s", replica.Name, cluster, u.await(t, cluster, wrong, framework.NotReady(v1.ReasonTunnelLost)))
		for _, other := range u.clusters {
			if other == cluster {
				continue
			}
			lapse := u.load.Lapse(other)
			t.Logf("%s could not be reached for %s at most", other, lapse.Round(time.Millisecond))
			if lapse > reconnect {
				t.Errorf("that is longer than %s", reconnect)
			}
		}
		u.startAgent(t, agent)
		u.startReplica(t, replica)
		t.Logf("started again: it shows after %s", u.await(t, cluster, wrong, framework.Ready))
		for _, outage := range u.readiness.Outages() {
			if outage.Cluster != cluster {
				t.Errorf("shown as not Ready though only a replica was lost: %s", outage)
			}
		}
		u.expectServed(t)
		u.forget()
	}
	u.expectWatches(t, false)
}

// expectServed waits until every member is served on every replica.
func (u *underTraffic) expectServed(t *testing.T) {
	t.Helper()
	ctx := within(t, 30*time.Second)
	for _, replica := range u.hub.Replicas {
		for _, cluster := range u.clusters {
			if err := u.hub.AwaitServed(ctx, replica, cluster, demoToken); err != nil {
				t.Errorf("%s: %v\nlog:\n%s", replica.Name, err, tail(replica.Process.LogFile()))
			}
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}
