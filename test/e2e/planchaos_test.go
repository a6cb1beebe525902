// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/nodesim"
	"github.com/drover-dev/drover/test/testkit"
)

var (
	seed   = flag.Uint64("seed", 0, "of the harm that is done while a plan runs; 0 takes any")
	rounds = flag.Int("rounds", 1, "of that harm")
)

const (
	// planPatience is the maximum time until a plan finishes when processes are no longer killed.
	planPatience = 2 * time.Minute
	// leastHarm and mostHarm are the bounds of the time during which a round does harm.
	leastHarm, mostHarm = 8 * time.Second, 10 * time.Second
	failShare           = 0.15 // of the pods of plans, while there is harm
)

// chance makes upgrades take long or fail. Before harm is called, it has no effect.
type chance struct {
	mu     sync.Mutex // guards what follows
	random *rand.Rand
}

func newChance() *chance { return &chance{} }

func (c *chance) harm(random *rand.Rand) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.random = random
}

func (c *chance) script() nodesim.Script {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.random == nil {
		return nodesim.Script{}
	}
	s := nodesim.Script{Takes: between(c.random, 0, 600*time.Millisecond), Log: "as chance would have it"}
	if c.random.Float64() < failShare {
		s.Exit = 1
	}
	return s
}

func between(random *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(random.Int64N(int64(most-least)))
}

// victim is a process that is killed and started again.
type victim struct {
	name        string
	least, most time.Duration // that it lives
	kill        func() error
	start       func(context.Context) error
}

// victims are all managers and agents. An agent is started as the next container of its pod. It leads immediately,
// because a replica that is known to be dead loses its Lease. A manager waits for the Lease.
func (f *fleet) victims() []victim {
	var all []victim
	for _, replica := range f.hub.Replicas {
		all = append(all, victim{replica.Name, 2 * time.Second, 9 * time.Second, func() error { return replica.Process.Kill() }, func(ctx context.Context) error { return replica.Start(ctx) }})
	}
	for _, name := range []string{"alpha", "beta", "home"} {
		agent, plane := f.agents[name], f.members[name]
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: protocol.AgentNamespace, Name: protocol.LeaderLease}}
		all = append(all, victim{"agent of " + name, 300 * time.Millisecond, 4 * time.Second, func() error { return agent.Process.Kill() }, func(ctx context.Context) error {
			if err := client.IgnoreNotFound(plane.Client.Delete(ctx, lease.DeepCopy())); err != nil {
				return err
			}
			return agent.Start()
		}})
	}
	return all
}

// harass kills a process repeatedly until ctx ends, and then leaves it running.
func (v *victim) harass(ctx context.Context, t *testing.T, random *rand.Rand) {
	for {
		lives := time.NewTimer(between(random, v.least, v.most))
		select {
		case <-ctx.Done():
			lives.Stop()
			return
		case <-lives.C:
		}
		if err := v.kill(); err != nil {
			t.Errorf("kill %s: %v", v.name, err)
			return
		}
		t.Logf("%s %s is killed", time.Now().Format("15:04:05.000"), v.name)
		limited, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := v.start(limited)
		cancel()
		if err != nil {
			t.Errorf("start %s: %v", v.name, err)
			return
		}
	}
}

// testPlanSurvives runs a plan while processes are killed. "make test-plans" runs more rounds.
func testPlanSurvives(f *fleet, t *testing.T) {
	if *seed == 0 {
		*seed = uint64(rand.Uint32())
	}
	t.Logf("make test-plans SEED=%d ROUNDS=%d", *seed, *rounds)
	f.monitor.watchFor("chaos")
	for round := range *rounds {
		t.Run("round "+strconv.Itoa(round+1), func(t *testing.T) { f.surviveOnce(t, round, rand.New(rand.NewPCG(*seed, uint64(round)))) })
		if t.Failed() {
			return
		}
	}
}

func (f *fleet) surviveOnce(t *testing.T, round int, random *rand.Rand) {
	clusters, nodes := 1+random.IntN(2), 1+random.IntN(2)
	f.chance.harm(rand.New(rand.NewPCG(random.Uint64(), 0)))
	defer f.chance.harm(nil)
	f.monitor.allow(clusters, nodes)
	t.Logf("%d clusters at once, %d nodes", clusters, nodes)
	f.startApplications(t, round)
	f.applyChaos(t, round, clusters, nodes)

	ctx, stop := context.WithTimeout(t.Context(), between(random, leastHarm, mostHarm))
	var harm sync.WaitGroup
	for i, v := range f.victims() {
		harm.Go(func() { v.harass(ctx, t, rand.New(rand.NewPCG(*seed, uint64(round*100+i+1)))) })
	}
	if random.IntN(2) == 0 {
		pause(ctx, between(random, 0, leastHarm))
		t.Logf("%s the version is changed", time.Now().Format("15:04:05.000"))
		f.setVersion(t, "chaos", fmt.Sprintf("v%d.1", round))
	}
	harm.Wait()
	stop()
	if t.Failed() {
		return
	}
	calm := time.Now()
	p := f.plan(t, "chaos", planPatience, is(v1.ReasonComplete))
	t.Logf("complete %s after the last kill", time.Since(calm).Round(time.Millisecond))
	f.expectDone(t, p, p.Status.LatestVersion)
	if most := f.expectNoHarm(t); most.nodes != nodes || most.cordoned == 0 {
		t.Errorf("the peaks were %+v, too low to test the limits", most)
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// startApplications starts a pod on each node that has to be evicted.
func (f *fleet) startApplications(t *testing.T, round int) {
	t.Helper()
	for _, plane := range f.members {
		for _, node := range memberNodes {
			create(t, plane, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("app-%d-%s", round, node)}, Spec: corev1.PodSpec{NodeName: node,
				Containers: []corev1.Container{{Name: "main", Image: "app"}}, TerminationGracePeriodSeconds: new(int64(1)), AutomountServiceAccountToken: new(false)}})
		}
	}
}

// applyChaos creates the plan, or makes it begin again.
func (f *fleet) applyChaos(t *testing.T, round, clusters, nodes int) {
	t.Helper()
	p := &v1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "chaos"}}
	set := func(p *v1.Plan) {
		p.Spec.ClusterSelector, p.Spec.Rollout = &metav1.LabelSelector{}, &v1.Rollout{MaxConcurrentClusters: int32(clusters)}
		p.Spec.Version, p.Spec.Upgrade.Image = fmt.Sprintf("v%d.0", round), "rancher/k3s-upgrade"
		p.Spec.Prepare, p.Spec.Drain = &v1.PlanContainer{Image: "rancher/k3s-upgrade"}, &v1.Drain{Force: true}
		p.Spec.Concurrency = new(intstr.FromInt(nodes))
		p.Spec.Retries = &v1.PlanRetries{Limit: new(int32(20)), Backoff: &metav1.Duration{}}
	}
	if round == 0 {
		set(p)
		create(t, f.hub.Plane, p)
		return
	}
	f.plan(t, "chaos", planPatience, is(v1.ReasonComplete))
	testkit.Update(t, f.hub.Client, p, set)
}
