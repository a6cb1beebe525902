// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/nodesim"
	"github.com/drover-dev/drover/test/testkit"
)

// fleet is a hub with two managers and three members, one of which is the hub itself. Each member has three nodes.
type fleet struct {
	*system
	members map[string]*framework.Plane
	agents  map[string]*framework.Agent
	monitor *monitor
	chance  *chance
	backup  backup // of when the first version was complete
	// repaired is set when the bad image works again.
	repaired atomic.Bool
}

const (
	soak     = 2 * time.Second
	badTag   = "bad"
	badLog   = "unpacking\nno space left on device"
	cordoned = "beta/node-2" // by a user
)

var memberNodes = []string{"node-1", "node-2", "node-3"}

// fleetPlan is what a user applies on the hub.
const fleetPlan = `
apiVersion: v1
kind: Secret
metadata: {name: token, namespace: default, labels: {plans.cluster.drover.dev/use: "true"}}
stringData: {token: fleet-secret}
---
apiVersion: cluster.drover.dev/v1
kind: Plan
metadata: {name: k3s, namespace: default}
spec:
  clusterSelector: {}
  version: v1.36.3+k3s1
  drain: {force: true, timeout: 60s}
  upgrade: {image: rancher/k3s-upgrade}
  secrets: [{name: token}]
  retries: {limit: 1, backoff: 0s}
  postCompleteLabels: {example.org/version: $(LATEST_VERSION)}
  rollout:
    waves:
    - {name: canary, clusterSelector: {matchLabels: {ring: canary}}, soak: 2s}
`

// TestLong_APlanOfAFleet rolls a plan out to members with their own control planes, makes it fail, repairs it, restores
// an old hub and deletes the plan. Then it runs another plan while managers and agents are killed.
func TestLong_APlanOfAFleet(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	for _, step := range []struct {
		name string
		test func(*fleet, *testing.T)
	}{
		{"waves are done in their order, and members are as the plan says", testWaves},
		{"an image that fails stops it, and the hub has the last lines of the log", testBadImage},
		{"a cause that is repaired is tried again with plan retry", testRetried},
		{"a version that is mended goes on", testMended},
		{"a hub that is restored from an older backup runs nothing old again before a user says so", testRestored},
		{"a plan that is deleted leaves nothing but labels of Nodes", testPlanDeleted},
		{"managers and agents that are killed at any time do no harm", testPlanSurvives},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.test(f, t) }) {
			f.logState(t)
			return
		}
	}
}

func startFleet(t *testing.T) *fleet {
	t.Helper()
	s := startWith(t, (*system).startPair)
	beta, err := s.plane("beta")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = beta.Kill() })
	f := &fleet{system: s, members: map[string]*framework.Plane{"alpha": s.member, "beta": beta, "home": s.hub.Plane}, agents: map[string]*framework.Agent{}, chance: newChance()}
	for name, plane := range f.members {
		cluster, agent := s.imported(t, name, plane, protocol.AgentNamespace)
		f.agents[name] = agent
		if name == "alpha" {
			label := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"ring":"canary"}}}`))
			if err := s.hub.Client.Patch(t.Context(), s.cluster(t, cluster), label); err != nil {
				t.Fatal(err)
			}
		}
		f.addNodes(t, name, plane)
	}
	for name := range f.members {
		s.await(t, cluster(name), 30*time.Second, framework.Ready)
	}
	f.monitor = newMonitor("k3s", cordoned, f.members)
	f.monitor.follow(t, s.hub.Plane)
	return f
}

// addNodes adds nodes to a member. One of them may have been cordoned by a user.
func (f *fleet) addNodes(t *testing.T, name string, plane *framework.Plane) {
	t.Helper()
	sim := nodesim.Start(context.WithoutCancel(t.Context()), plane.Client, f.script)
	t.Cleanup(sim.Close)
	for _, node := range memberNodes {
		if err := sim.AddNode(t.Context(), node, nil); err != nil {
			t.Fatal(err)
		}
		if name+"/"+node != cordoned {
			continue
		}
		patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`))
		if err := plane.Client.Patch(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, patch); err != nil {
			t.Fatal(err)
		}
	}
}

// script returns how a pod runs: applications run until they are evicted, a bad image fails, and other pods need some
// time.
func (f *fleet) script(p *corev1.Pod) nodesim.Script {
	switch {
	case p.Labels["upgrade.cattle.io/plan"] == "":
		return nodesim.Script{Hangs: true}
	case strings.HasPrefix(p.Name, "apply-") && strings.Contains(p.Spec.Containers[0].Image, badTag) && !f.repaired.Load():
		return nodesim.Script{Exit: 1, Log: badLog}
	}
	return f.chance.script()
}

// logState logs the output of the processes.
func (f *fleet) logState(t *testing.T) {
	t.Helper()
	for _, replica := range f.hub.Replicas {
		t.Logf("%s:\n%s", replica.Name, tail(replica.Process.LogFile()))
	}
	for name, agent := range f.agents {
		out, err := f.members[name].Kubectl(context.WithoutCancel(t.Context()), nil, "get", "plans,jobs,pods", "-n", v1.PlansNamespace, "-o", "wide")
		t.Logf("%s: %v\n%s\nits agent:\n%s", name, err, out, tail(agent.Log))
	}
}

// expectNoHarm fails if the monitor has found any harm.
func (f *fleet) expectNoHarm(t *testing.T) peaks {
	t.Helper()
	faults, most := f.monitor.found()
	for _, fault := range faults {
		t.Error(fault)
	}
	return most
}

// plan waits until a Plan on the hub meets the given conditions.
func (f *fleet) plan(t *testing.T, name string, limit time.Duration, wanted func(*v1.Plan) bool) *v1.Plan {
	t.Helper()
	p := &v1.Plan{}
	testkit.Eventually(t, limit, func(ctx context.Context) error {
		if err := f.hub.Client.Get(ctx, types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: name}, p); err != nil {
			return err
		}
		if p.Status.ObservedGeneration != p.Generation || !wanted(p) {
			text, _ := json.Marshal(p.Status)
			return fmt.Errorf("plan %s is at generation %d and its status is %s", name, p.Generation, text)
		}
		return nil
	})
	return p
}

// is returns a check for the function plan. It compares the reasons of the plan's conditions.
func is(reason string) func(*v1.Plan) bool {
	return func(p *v1.Plan) bool {
		ready := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionReady)
		return ready != nil && ready.Reason == reason
	}
}

// watching is "kubectl drover plan watch" on the hub, with its output and its exit code.
type watching struct {
	out  bytes.Buffer
	code chan int
}

func (f *fleet) watch(t *testing.T, name string) *watching {
	t.Helper()
	w := &watching{code: make(chan int, 1)}
	command := f.planCommand(t, "watch", name)
	command.Stdout, command.Stderr = &w.out, &w.out
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { w.code <- exitCode(command.Wait()) }()
	return w
}

// planCommand returns the command "kubectl drover plan" on the hub.
func (f *fleet) planCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	kubeconfig := filepath.Join(f.dir, "plan.kubeconfig")
	if err := f.hub.WriteKubeconfig(kubeconfig); err != nil {
		t.Fatal(err)
	}
	args = append(append([]string{"drover", "plan"}, args...), "-w", metav1.NamespaceDefault, "--kubeconfig", kubeconfig)
	command := exec.CommandContext(t.Context(), f.programs.Kubectl, args...)
	command.Env = append(os.Environ(), "PATH="+pluginDir(t)+string(os.PathListSeparator)+os.Getenv("PATH"))
	return command
}

// expect waits until the command has ended, and checks its exit code and its last line.
func (w *watching) expect(t *testing.T, code int, last string) {
	t.Helper()
	select {
	case got := <-w.code:
		if out := strings.TrimSpace(w.out.String()); got != code || !strings.Contains(out[strings.LastIndex(out, "\n")+1:], last) {
			t.Errorf("it ends with %d, want %d, and %q in the last line of\n%s", got, code, last, out)
		}
	case <-time.After(planPatience):
		t.Error("kubectl drover plan watch does not end")
	}
}

// setVersion makes a plan install another version.
func (f *fleet) setVersion(t *testing.T, name, version string) {
	t.Helper()
	if _, err := f.hub.Kubectl(t.Context(), nil, "patch", "plan.cluster.drover.dev", name, "--type=merge", "-p", `{"spec":{"version":"`+version+`"}}`); err != nil {
		t.Fatal(err)
	}
}
