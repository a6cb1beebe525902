// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/agent/plan"
	"github.com/drover-dev/drover/agent/stream"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/upgradecheck"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/nodesim"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) {
	testkit.Parallel(6)
	m.Run()
}

// env is a control plane with simulated nodes.
type env struct {
	client client.WithWatch
	config *rest.Config
	sim    *nodesim.Sim

	mu      sync.Mutex // guards scripts
	scripts map[string][]nodesim.Script
}

// newEnv starts a control plane with real controllers.
func newEnv(t *testing.T) *env {
	t.Helper()
	plane, err := lab.Start(t.Context(), lab.Options{
		Dir: t.TempDir(), ControllerManager: true, Progress: os.Stderr,
		// ExtraArgs turns the node lifecycle controller off, because nothing renews the leases of simulated nodes.
		ExtraArgs: map[string][]string{lab.ControllerManager: {"--controllers=*,-node-lifecycle-controller",
			"--kube-api-qps=500", "--kube-api-burst=500"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := plane.Stop(); err != nil {
			t.Error(err)
		}
	})
	s := &env{config: plane.RESTConfig(), scripts: map[string][]nodesim.Script{}}
	s.config.QPS = -1
	if s.client, err = client.NewWithWatch(s.config, client.Options{Scheme: testkit.Scheme(t)}); err != nil {
		t.Fatal(err)
	}
	s.sim = nodesim.Start(context.WithoutCancel(t.Context()), s.client, s.next)
	t.Cleanup(s.sim.Close)
	return s
}

// script sets what the next pods on a node do. Later pods succeed immediately.
func (s *env) script(node string, scripts ...nodesim.Script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scripts[node] = scripts
}

func (s *env) next(pod *corev1.Pod) nodesim.Script {
	s.mu.Lock()
	defer s.mu.Unlock()
	node := pod.Spec.NodeName
	if pod.Labels["job-name"] == "" {
		return nodesim.Script{Hangs: true} // a pod of an application
	}
	if len(s.scripts[node]) == 0 {
		return nodesim.Script{}
	}
	script := s.scripts[node][0]
	s.scripts[node] = s.scripts[node][1:]
	return script
}

// runner runs Plans until the test ends or stop is called.
type runner struct {
	*plan.Runner
	stream *stream.Stream
	stop   func()
}

// options of a run that tests change.
type options struct {
	now  func() time.Time
	ask  func(context.Context, string) (string, error)
	wrap func(http.RoundTripper) http.RoundTripper
	// checks replaces the upgrade checks of the control plane. If real is true, the control plane is checked instead.
	checks *fakeChecks
	real   bool

	namespace string // namespace of the agent
}

// ask is a fake of the release channels.
func (s *env) ask(_ context.Context, url string) (string, error) {
	if strings.HasSuffix(url, "/stable") {
		return "v9.0.0+k3s1", nil
	}
	return "", errors.New("it answers 404, and not 302, 303, 307 or 308")
}

func (s *env) run(t *testing.T, o options) *runner {
	t.Helper()
	r, err := s.newRunner(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() { defer close(ended); r.Lead(ctx) }()
	r.stop = func() { cancel(); <-ended }
	t.Cleanup(r.stop)
	return r
}

func (s *env) newRunner(o options) (*runner, error) {
	config := rest.CopyConfig(s.config)
	if o.wrap != nil {
		config.Wrap(o.wrap)
	}
	c, err := kube.New(config)
	if err != nil {
		return nil, err
	}
	log := logr.Discard()
	if testing.Verbose() {
		log = funcr.New(func(prefix, args string) { fmt.Fprintln(os.Stderr, time.Now().Format("05.000"), prefix, args) },
			funcr.Options{Verbosity: 1})
	}
	all := stream.New()
	topic := all.Topic(protocol.SubjectPlans)
	check := cmp.Or(o.checks, &fakeChecks{}).check
	if o.real {
		check = nil
	}
	return &runner{stream: all,
		Runner: plan.New(plan.Options{Client: c.REST, Objects: c.Objects(), Topic: topic,
			Namespace: cmp.Or(o.namespace, metav1.NamespaceDefault), Ask: o.ask, Check: check, Now: o.now, Log: log})}, nil
}

// fakeChecks has the findings of upgrade checks.
type fakeChecks struct {
	mu       sync.Mutex // guards the fields below
	findings []upgradecheck.Finding
	err      error
	targets  []upgradecheck.Target
}

func (f *fakeChecks) check(_ context.Context, target *upgradecheck.Target) ([]upgradecheck.Finding, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.targets = append(f.targets, *target)
	return f.findings, f.err
}

// finds sets the findings.
func (f *fakeChecks) finds(err error, findings ...upgradecheck.Finding) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.findings, f.err = findings, err
}

// made returns the number of checks for a plan.
func (f *fakeChecks) made(plan string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for i := range f.targets {
		if f.targets[i].Plan == plan {
			n++
		}
	}
	return n
}

// nodes adds nodes for the plan with that name.
func (s *env) nodes(t *testing.T, plan string, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := s.sim.AddNode(t.Context(), name, map[string]string{"for": plan}); err != nil {
			t.Fatal(err)
		}
	}
}

// newPlan returns a Plan for the nodes with its name as a label. Failures are final after the given number of retries,
// which happen immediately.
func newPlan(name string, retries int32) *v1.Plan {
	p := &v1.Plan{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: v1.PlansNamespace}}
	p.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"for": name}}
	p.Spec.Version, p.Spec.Concurrency = "v1.36.3+k3s1", new(intstr.FromInt32(1))
	p.Spec.Retries = &v1.PlanRetries{Limit: new(retries), Backoff: &metav1.Duration{}}
	p.Spec.Upgrade.Image = "rancher/k3s-upgrade"
	return p
}

// create creates an object as soon as the runner has installed the Plan kind.
func (s *env) create(t *testing.T, object client.Object) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		return s.client.Create(ctx, object)
	})
}

// eventually waits longer than the 30 s that the garbage collector needs to notice a new kind.
func eventually(t *testing.T, check func(context.Context) error) {
	t.Helper()
	testkit.Eventually(t, 90*time.Second, check)
}

// await waits until the Ready condition of a Plan has the reason, and returns the Plan.
func (s *env) await(t *testing.T, name, reason string) *v1.Plan {
	t.Helper()
	p := &v1.Plan{}
	eventually(t, func(ctx context.Context) error {
		if err := s.client.Get(ctx, client.ObjectKey{Namespace: v1.PlansNamespace, Name: name}, p); err != nil {
			return err
		}
		ready := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionReady)
		if ready == nil || ready.Reason != reason || p.Status.ObservedGeneration != p.Generation {
			return fmt.Errorf("plan %s is %+v", name, p.Status)
		}
		return nil
	})
	return p
}

// node returns the current state of a Node.
func (s *env) node(t *testing.T, name string) *corev1.Node {
	t.Helper()
	n := &corev1.Node{}
	if err := s.client.Get(t.Context(), client.ObjectKey{Name: name}, n); err != nil {
		t.Fatal(err)
	}
	return n
}

// expectNode fails the test unless the node has the given label of the plan, no claim, and the given cordon.
func (s *env) expectNode(t *testing.T, name, plan, hash string, cordoned bool) {
	t.Helper()
	n := s.node(t, name)
	key := v1.PlanLabel(plan)
	if n.Labels[key] != hash || n.Spec.Unschedulable != cordoned || n.Annotations[key] != "" {
		t.Errorf("node %s: label %q (want %q), unschedulable %t (want %t), claim %q", name, n.Labels[key], hash,
			n.Spec.Unschedulable, cordoned, n.Annotations[key])
	}
}

// change patches an object.
func (s *env) change(t *testing.T, object client.Object, change func()) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		if err := s.client.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		change()
		return s.client.Update(ctx, object)
	})
}
