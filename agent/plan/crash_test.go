// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/nodesim"
	"github.com/drover-dev/drover/test/testkit"
)

// accidents is how many plans have accidents. It must be even.
const accidents = 14

// TestAccidents runs many plans of the same shape in parallel. For the plan accident-k, the runner dies right after the
// k-th write for the plan and after every 14th write from there, and loses the response halfway in between. Therefore,
// for each write that a plan needs, both accidents happen after it in some plan. The n-th runner also dies after its
// n-th write to objects that all plans need.
func TestAccidents(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs many plans")
	}
	s := newEnv(t)
	f := &crashes{t: t, writes: map[string]int{}}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { s.keepInvariants(ctx, t) })
	running.Go(func() { s.live(ctx, t, f) })
	for _, plan := range accidentPlans() {
		s.prepareAccident(t, plan)
	}
	s.awaitAccidents(t)
	for _, plan := range accidentPlans() {
		s.expectUnharmed(t, plan)
		if writes := f.written(plan); writes < accidents {
			t.Errorf("plan %s took %d writes, want enough for both accidents", plan, writes)
		}
	}
}

// live runs one runner after the other until ctx ends.
func (s *env) live(ctx context.Context, t *testing.T, f *crashes) {
	lives := 0
	for ; ctx.Err() == nil; lives++ {
		l := &agentRun{crashes: f, number: lives + 1}
		l.ctx, l.die = context.WithCancel(ctx)
		r, err := s.newRunner(options{wrap: l.wrap})
		if err != nil {
			t.Error(err)
			l.die()
			return
		}
		r.Lead(l.ctx)
		l.die()
	}
	t.Logf("%d runners", lives)
}

func accidentPlan(k int) string { return fmt.Sprintf("accident-%02d", k) }

func accidentPlans() []string {
	var all []string
	for k := 1; k <= accidents; k++ {
		all = append(all, accidentPlan(k))
	}
	return all
}

// crashes counts the writes for each plan, across all runs of the runner.
type crashes struct {
	t *testing.T

	mu     sync.Mutex // guards writes
	writes map[string]int
}

// count counts a write, and returns the number of writes including this one.
func (f *crashes) count(plan string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes[plan]++
	return f.writes[plan]
}

func (f *crashes) written(plan string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writes[plan]
}

// agentRun is one run of the runner, until its process dies.
type agentRun struct {
	*crashes
	number int
	ctx    context.Context
	die    context.CancelFunc
	next   http.RoundTripper
}

func (l *agentRun) wrap(next http.RoundTripper) http.RoundTripper {
	l.next = next
	return l
}

// errDead is returned for requests of a dead process.
var errDead = errors.New("the process is dead")

var accidentForm = regexp.MustCompile(`accident-(\d\d)`)

// RoundTrip sends a request. After that, the process may be dead, or the response may be lost. It fails the test if the
// API server rejects an object as invalid.
func (l *agentRun) RoundTrip(r *http.Request) (*http.Response, error) {
	if l.ctx.Err() != nil {
		return nil, errDead
	}
	if r.Method == http.MethodGet {
		return l.next.RoundTrip(r)
	}
	plan, k := victim(r)
	resp, err := l.next.RoundTrip(r)
	if err != nil {
		return resp, err
	}
	dies, lost := l.crashesAt(plan, k)
	if !dies && !lost {
		if resp.StatusCode == http.StatusUnprocessableEntity {
			l.t.Errorf("the API server takes this object as invalid: %s %s: %s", r.Method, r.URL.Path, resp.Status)
		}
		return resp, nil
	}
	_, _ = io.Copy(io.Discard, resp.Body) // the API server has written everything
	_ = resp.Body.Close()
	if lost {
		return nil, io.ErrUnexpectedEOF
	}
	l.die()
	return nil, errDead
}

// crashesAt counts a write for the k-th plan, or for objects that all plans need if plan is empty. It reports what
// happens after the write.
func (l *agentRun) crashesAt(plan string, k int) (dies, lost bool) {
	if plan == "" {
		return l.count(fmt.Sprintf("life %d", l.number)) == l.number, false
	}
	since := (l.count(plan) - k + accidents) % accidents
	return since == 0, since == accidents/2
}

// victim returns the plan that a write is for, and its number.
func victim(r *http.Request) (plan string, k int) {
	found := accidentForm.FindStringSubmatch(r.URL.Path)
	if found == nil && r.GetBody != nil {
		if body, err := r.GetBody(); err == nil {
			text, _ := io.ReadAll(body)
			found = accidentForm.FindStringSubmatch(string(text))
		}
	}
	if found == nil {
		return "", 0
	}
	k, _ = strconv.Atoi(found[1])
	return found[0], k
}

// prepareAccident creates a plan and its two nodes. One node has a pod, and the first attempt on it fails. The other
// was cordoned by a user.
func (s *env) prepareAccident(t *testing.T, name string) {
	t.Helper()
	a, b := name+"-a", name+"-b"
	s.nodes(t, name, a, b)
	n := s.node(t, b)
	s.change(t, n, func() { n.Spec.Unschedulable = true })
	s.pod(t, name+"-app", a, func(*corev1.Pod) {})
	s.script(a, nodesim.Script{}, nodesim.Script{Exit: 1, Log: "no"})
	p := newPlan(name, 1)
	p.Spec.Prepare = &v1.PlanContainer{Image: "rancher/k3s-upgrade"}
	p.Spec.Drain = &v1.Drain{Force: true}
	p.Spec.PostCompleteLabels = map[string]v1.LabelTemplate{"example.org/version": "$(LATEST_VERSION)"}
	s.create(t, p)
}

func (s *env) awaitAccidents(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, 4*time.Minute, func(ctx context.Context) error {
		plans := &v1.PlanList{}
		if err := s.client.List(ctx, plans); err != nil {
			return err
		}
		var waiting []string
		for i := range plans.Items {
			if !meta.IsStatusConditionTrue(plans.Items[i].Status.Conditions, v1.ConditionComplete) {
				waiting = append(waiting, plans.Items[i].Name)
			}
		}
		if len(waiting) > 0 {
			return fmt.Errorf("%d plans are not complete: %s", len(waiting), strings.Join(waiting, ", "))
		}
		return nil
	})
}

// expectUnharmed checks the nodes of a plan at the end.
func (s *env) expectUnharmed(t *testing.T, name string) {
	t.Helper()
	p := &v1.Plan{}
	if err := s.client.Get(t.Context(), client.ObjectKey{Namespace: v1.PlansNamespace, Name: name}, p); err != nil {
		t.Fatal(err)
	}
	s.expectNode(t, name+"-a", name, p.Status.LatestHash, false)
	s.expectNode(t, name+"-b", name, p.Status.LatestHash, true)
	for _, node := range []string{name + "-a", name + "-b"} {
		if got := s.node(t, node).Labels["example.org/version"]; got != p.Status.LatestVersion {
			t.Errorf("node %s has the version %q, want %q", node, got, p.Status.LatestVersion)
		}
	}
}

// keepInvariants checks pods and nodes with watches until ctx ends.
func (s *env) keepInvariants(ctx context.Context, t *testing.T) {
	pods, podsErr := s.client.Watch(ctx, &corev1.PodList{}, client.InNamespace(v1.PlansNamespace))
	nodes, nodesErr := s.client.Watch(ctx, &corev1.NodeList{})
	if podsErr != nil || nodesErr != nil {
		t.Errorf("list pods and nodes: %v, %v", podsErr, nodesErr)
		return
	}
	defer pods.Stop()
	defer nodes.Stop()
	i := &invariants{running: sets{}, upgrades: sets{}, claims: sets{}, foreign: map[string]bool{}}
	for {
		var e watch.Event
		var open bool
		select {
		case e, open = <-pods.ResultChan():
		case e, open = <-nodes.ResultChan():
		}
		if !open {
			if ctx.Err() == nil {
				t.Error("a watch ended, so later events were not checked")
			}
			return
		}
		switch o := e.Object.(type) {
		case *corev1.Pod:
			i.seePod(t, o, e.Type == watch.Deleted)
		case *corev1.Node:
			i.seeNode(t, o)
		}
	}
}

// invariants are the conditions that must hold all the time.
type invariants struct {
	running, upgrades sets // pods by node
	claims            sets // nodes by plan
	foreign           map[string]bool
}

// seePod fails the test if a node runs two pods of plans at the same time, or runs its upgrade more often than
// necessary.
func (i *invariants) seePod(t *testing.T, p *corev1.Pod, deleted bool) {
	node, uid := p.Spec.NodeName, string(p.UID)
	if node == "" {
		return
	}
	i.running.put(node, uid, !deleted && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed)
	if n := len(i.running[node]); n > 1 {
		t.Errorf("node %s runs %d pods at once", node, n)
	}
	if p.Labels[v1.Group+"/job"] == "upgrade" {
		i.upgrades.put(node, uid, true)
	}
	must := 1
	if strings.HasSuffix(node, "-a") {
		must = 2 // the first attempt fails
	}
	if n := len(i.upgrades[node]); n > must {
		t.Errorf("node %s runs its upgrade %d times, want %d", node, n, must)
	}
}

// seeNode fails the test if a plan works on two nodes at the same time, or uncordons a node that it did not cordon.
func (i *invariants) seeNode(t *testing.T, n *corev1.Node) {
	plan := n.Labels["for"]
	i.claims.put(plan, n.Name, n.Annotations[v1.PlanLabel(plan)] != "")
	if at := len(i.claims[plan]); at > 1 {
		t.Errorf("plan %s has %d nodes at work", plan, at)
	}
	if i.foreign[n.Name] && !n.Spec.Unschedulable {
		t.Errorf("node %s was uncordoned, want it to stay as the user cordoned it", n.Name)
	}
	i.foreign[n.Name] = strings.HasSuffix(n.Name, "-b") && n.Spec.Unschedulable
}

// sets are sets by name.
type sets map[string]map[string]bool

func (s sets) put(name, member string, in bool) {
	if s[name] == nil {
		s[name] = map[string]bool{}
	}
	if in {
		s[name][member] = true
	} else {
		delete(s[name], member)
	}
}
