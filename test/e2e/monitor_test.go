// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/test/framework"
)

// monitor follows the nodes and pods of members, and the Clusters of the hub, while a plan runs, and records violations
// of its limits.
type monitor struct {
	members map[string]*framework.Plane
	foreign string // "member/node" that a user has cordoned

	mu       sync.Mutex // guards what follows
	plan     string
	clusters int // that may be at work at once, and nodes of a member
	nodes    int
	claims   map[string]map[string]rollout.Claim // of nodes at work, by member and node
	running  map[string]map[types.UID]bool       // pods of plans, by "member/node"
	begun    map[string]bool                     // Clusters at work
	most     peaks
	faults   []string
}

// peaks are the highest numbers at any moment. If a limit was never nearly reached, the test proves nothing about it.
type peaks struct{ clusters, nodes, cordoned int }

func newMonitor(plan, foreign string, members map[string]*framework.Plane) *monitor {
	return &monitor{plan: plan, foreign: foreign, members: members, clusters: 1, nodes: 1,
		claims: map[string]map[string]rollout.Claim{}, running: map[string]map[types.UID]bool{}, begun: map[string]bool{}}
}

// watchFor follows another plan from now on. No plan may be running.
func (w *monitor) watchFor(plan string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.plan = plan
}

// allow sets the limits. No plan may be running.
func (w *monitor) allow(clusters, nodes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clusters, w.nodes, w.most = clusters, nodes, peaks{}
}

// follow checks all changes from now on until the test has ended.
func (w *monitor) follow(t *testing.T, hub *framework.Plane) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { stop(); running.Wait() })
	start := func(plane *framework.Plane, list client.ObjectList, namespace string, see func(client.Object, bool)) {
		running.Go(func() {
			if err := eachChange(ctx, plane.Client, list, namespace, see); err != nil && ctx.Err() == nil {
				w.fault("a watch ended: %v", err)
			}
		})
	}
	for name, plane := range w.members {
		start(plane, &corev1.NodeList{}, "", func(o client.Object, gone bool) { w.seeNode(ctx, name, o.(*corev1.Node), gone) })
		start(plane, &corev1.PodList{}, v1.PlansNamespace, func(o client.Object, gone bool) { w.seePod(name, o.(*corev1.Pod), gone) })
	}
	start(hub, &v1.ClusterList{}, metav1.NamespaceDefault, func(o client.Object, gone bool) { w.seeCluster(o.(*v1.Cluster), gone) })
}

// eachChange calls see for all objects that exist, and then for each change, until ctx ends.
func eachChange(ctx context.Context, c client.WithWatch, list client.ObjectList, namespace string, see func(o client.Object, gone bool)) error {
	if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return err
	}
	there, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	for _, o := range there {
		see(o.(client.Object), false)
	}
	changes, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), watches(func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		return c.Watch(ctx, list, &client.ListOptions{Namespace: namespace, Raw: &o})
	}))
	if err != nil {
		return err
	}
	for e := range changes.ResultChan() {
		switch o := e.Object.(type) {
		case client.Object:
			see(o, e.Type == watch.Deleted)
		case *metav1.Status:
			return fmt.Errorf("%s", o.Message)
		}
	}
	return ctx.Err()
}

// watches turns a function into something that can be watched repeatedly.
type watches func(context.Context, metav1.ListOptions) (watch.Interface, error)

func (f watches) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return f(ctx, o)
}

// seeNode checks that the plan works on no more nodes of a member, and on no more members, than allowed. It also checks
// that a cordon belongs either to a claim or to a user. A user's cordon must stay.
func (w *monitor) seeNode(ctx context.Context, member string, n *corev1.Node, gone bool) {
	if over := w.noteNode(member, n, gone); over {
		w.lookAtAll(ctx)
	}
}

// noteNode reports whether the plan seems to work on more members than allowed. This may be wrong, because watches of
// several API servers have no common order.
func (w *monitor) noteNode(member string, n *corev1.Node, gone bool) (over bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	name := member + "/" + n.Name
	claim, at := atWork(n, w.plan)
	if w.claims[member] == nil {
		w.claims[member] = map[string]rollout.Claim{}
	}
	if delete(w.claims[member], n.Name); at && !gone {
		w.claims[member][n.Name] = claim
	}
	if got := len(w.claims[member]); got > w.nodes {
		w.note("%d nodes of %s are at work, %d may be", got, member, w.nodes)
	} else {
		w.most.nodes = max(w.most.nodes, got)
	}
	switch {
	case name == w.foreign && !n.Spec.Unschedulable:
		w.note("%s was uncordoned, though a user had cordoned it", name)
	case name == w.foreign && claim.Cordoned:
		w.note("%s counts as cordoned by the plan, and it was not", name)
	case name != w.foreign && n.Spec.Unschedulable != (at && claim.Cordoned):
		w.note("%s: unschedulable is %t, and its claim is %s", name, n.Spec.Unschedulable, n.Annotations[v1.PlanLabel(w.plan)])
	case n.Spec.Unschedulable && at:
		w.most.cordoned++
	}
	members := 0
	for _, claims := range w.claims {
		members += min(1, len(claims))
	}
	return members > w.clusters
}

// atWork returns the claim of a plan on a node, and whether the claim counts: the claim of a plan that failed
// permanently, or that only waits for its turn, does not.
func atWork(n *corev1.Node, plan string) (rollout.Claim, bool) {
	var c rollout.Claim
	text, there := n.Annotations[v1.PlanLabel(plan)]
	if !there || json.Unmarshal([]byte(text), &c) != nil {
		return c, false
	}
	return c, (c.Failure == nil || !c.Failure.Final) && c.Done == nil
}

// seePod checks that a node never runs two pods of plans at once.
func (w *monitor) seePod(member string, p *corev1.Pod, gone bool) {
	if p.Spec.NodeName == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	name := member + "/" + p.Spec.NodeName
	if w.running[name] == nil {
		w.running[name] = map[types.UID]bool{}
	}
	if delete(w.running[name], p.UID); !gone && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
		w.running[name][p.UID] = true
	}
	if got := len(w.running[name]); got > 1 {
		w.note("%s runs %d pods of plans at once, the last one is %s", name, got, p.Name)
	}
}

// seeCluster checks that no more claims of Clusters are active than allowed. A claim without a revision belongs to an
// idle Cluster that is waiting.
func (w *monitor) seeCluster(c *v1.Cluster, gone bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var claim rollout.ClusterClaim
	text, there := c.Annotations[v1.PlanLabel(w.plan)]
	atWork := !gone && there && json.Unmarshal([]byte(text), &claim) == nil && claim.Revision != "" && claim.Complete == nil && claim.Failed == nil
	if delete(w.begun, c.Name); atWork {
		w.begun[c.Name] = true
	}
	got := len(w.begun)
	if got > w.clusters {
		w.note("%d Clusters are at work, %d may be", got, w.clusters)
	} else {
		w.most.clusters = max(w.most.clusters, got)
	}
}

// lookAtAll reads the nodes of all members twice. If a node has the same claim both times, the plan was working on it
// in between.
func (w *monitor) lookAtAll(ctx context.Context) {
	w.mu.Lock()
	plan := w.plan
	w.mu.Unlock()
	first, err := w.claimed(ctx, plan)
	if err != nil {
		return // the test is over
	}
	second, err := w.claimed(ctx, plan)
	if err != nil {
		return
	}
	var members []string
	for member := range first {
		for node, since := range first[member] {
			if second[member][node].Equal(since) {
				members = append(members, member)
			}
		}
	}
	slices.Sort(members)
	members = slices.Compact(members)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(members) > w.clusters {
		w.note("nodes of %v are at work, %d members may be", members, w.clusters)
	}
}

// claimed returns the nodes that the plan is working on, by member and node, and the time since when.
func (w *monitor) claimed(ctx context.Context, plan string) (map[string]map[string]time.Time, error) {
	all := map[string]map[string]time.Time{}
	for name, plane := range w.members {
		nodes := &corev1.NodeList{}
		if err := plane.Client.List(ctx, nodes); err != nil {
			return nil, err
		}
		all[name] = map[string]time.Time{}
		for i := range nodes.Items {
			if claim, at := atWork(&nodes.Items[i], plan); at {
				all[name][nodes.Items[i].Name] = claim.Since
			}
		}
	}
	return all, nil
}

// note must be called with mu held.
func (w *monitor) note(format string, args ...any) {
	w.faults = append(w.faults, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

func (w *monitor) fault(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note(format, args...)
}

// found returns the faults so far, and the peaks.
func (w *monitor) found() ([]string, peaks) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.faults), w.most
}

func TestAMonitor(t *testing.T) {
	node := func(name string, unschedulable bool, claim string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Unschedulable: unschedulable}}
		if claim != "" {
			n.Annotations = map[string]string{v1.PlanLabel("k3s"): claim}
		}
		return n
	}
	pod := func(uid types.UID, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}, Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{Phase: phase}}
	}
	cluster := func(name, claim string) *v1.Cluster {
		return &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1.PlanLabel("k3s"): claim}}}
	}
	for name, test := range map[string]struct {
		see  func(*monitor)
		want string
	}{
		"a node that is cordoned for its claim, and then done": {func(w *monitor) {
			w.noteNode("a", node("n", false, `{"hash":"h"}`), false)
			w.noteNode("a", node("n", true, `{"hash":"h","cordoned":true}`), false)
			w.noteNode("a", node("n", false, ""), false)
			w.noteNode("a", node("m", false, `{"hash":"h"}`), false)
		}, ""},
		"two nodes of a member": {func(w *monitor) {
			w.noteNode("a", node("n", false, "{}"), false)
			w.noteNode("a", node("m", false, "{}"), false)
		}, "2 nodes of a are at work"},
		"a node that failed and another": {func(w *monitor) {
			w.noteNode("a", node("n", false, `{"failure":{"final":true}}`), false)
			w.noteNode("a", node("m", false, "{}"), false)
		}, ""},
		"a node that is left cordoned":     {func(w *monitor) { w.noteNode("a", node("n", true, ""), false) }, "unschedulable is true"},
		"a node uncordoned under its plan": {func(w *monitor) { w.noteNode("a", node("n", false, `{"cordoned":true}`), false) }, "unschedulable is false"},
		"a user's cordon":                  {func(w *monitor) { w.noteNode("a", node("theirs", true, "{}"), false) }, ""},
		"a user's cordon that goes":        {func(w *monitor) { w.noteNode("a", node("theirs", false, ""), false) }, "was uncordoned"},
		"a user's cordon as the claim":     {func(w *monitor) { w.noteNode("a", node("theirs", true, `{"cordoned":true}`), false) }, "counts as cordoned"},
		"a pod after the other": {func(w *monitor) {
			w.seePod("a", pod("1", corev1.PodRunning), false)
			w.seePod("b", pod("2", corev1.PodRunning), false)
			w.seePod("a", pod("1", corev1.PodFailed), false)
			w.seePod("a", pod("3", corev1.PodPending), false)
			w.seePod("a", pod("3", corev1.PodPending), true)
			w.seePod("a", pod("4", corev1.PodPending), false)
		}, ""},
		"two pods": {func(w *monitor) {
			w.seePod("a", pod("1", corev1.PodRunning), false)
			w.seePod("a", pod("2", corev1.PodPending), false)
		}, "a/n runs 2 pods"},
		"a Cluster after the other": {func(w *monitor) {
			w.seeCluster(cluster("a", `{"revision":"1"}`), false)
			w.seeCluster(cluster("a", `{"complete":"2027-01-01T00:00:00Z"}`), false)
			w.seeCluster(cluster("b", `{"revision":"1"}`), false)
		}, ""},
		"a Cluster that is left of a former version, and idle": {func(w *monitor) {
			w.seeCluster(cluster("a", "{}"), false)
			w.seeCluster(cluster("b", `{"revision":"2"}`), false)
		}, ""},
		"two Clusters": {func(w *monitor) {
			w.seeCluster(cluster("a", `{"revision":"1"}`), false)
			w.seeCluster(cluster("b", `{"revision":"1"}`), false)
		}, "2 Clusters are at work"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newMonitor("k3s", "a/theirs", nil)
			test.see(w)
			got, _ := w.found()
			if all := strings.Join(got, "; "); (test.want == "") != (all == "") || !strings.Contains(all, test.want) {
				t.Errorf("found %q, want %q", all, test.want)
			}
		})
	}
	t.Run("nodes of two members are looked at again", func(t *testing.T) {
		w := newMonitor("k3s", "", nil)
		if w.noteNode("a", node("n", false, "{}"), false) || !w.noteNode("b", node("n", false, "{}"), false) {
			t.Error("one member is one too many, or two are not")
		}
	})
}
