// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/drover-dev/drover/agent/apply"
	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/agent/stream"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
	"github.com/drover-dev/drover/test/testkit/member"
)

var (
	seed   = flag.Uint64("seed", 0, "of the random test of rights; 0 takes any")
	rounds = flag.Int("rounds", 40, "of the random test of rights: changes on the hub or in the member")
)

// clockSlack is how long a binding may still be in force after it has expired, on a busy machine.
const clockSlack = 5 * time.Second

// TestRights makes random changes to templates, bindings, projects, namespaces, the Cluster's labels, the agent and its
// tunnel. After each change, the member's own access reviews must agree with the model. In between, no user may have a
// right that is allowed neither before nor after the change.
func TestRights(t *testing.T) {
	if *seed == 0 {
		*seed = uint64(rand.Uint32())
	}
	t.Logf("go test ./controllers -run TestRights -seed %d -rounds %d", *seed, *rounds)
	left, err := busy() // managers of earlier tests end with work in their queues
	if err != nil {
		t.Fatal(err)
	}
	r := newRightsWorld(t, rand.New(rand.NewPCG(*seed, 1)))
	r.left = left
	r.begin()
	granted := r.granted
	for i := range *rounds {
		done := r.round()
		t.Logf("%d: %s; %d of %d granted", i, done, r.granted, len(people)*len(questions()))
		granted += r.granted
	}
	if granted == 0 {
		t.Error("nothing was ever granted: the test has shown little")
	}
}

// begin creates some objects of every kind.
func (r *rightsWorld) begin() {
	r.t.Helper()
	for i := range clusterRoles {
		r.putTemplate(r.workspace+clusterRoles[i], v1.ContextCluster)
		r.putTemplate(r.workspace+projectRoles[i], v1.ContextProject)
	}
	for _, act := range []func() string{r.actProject, r.actClusterBinding, r.actProjectBinding} {
		for range 8 {
			act()
		}
	}
	for !r.grants() { // or the member's answers would only be compared with refusals
		r.actTemplate()
		r.actClusterBinding()
	}
	r.disturbed = true // objects may be created in any order
	r.agree(model{r.now})
}

// grants reports whether any user has a right in the member now.
func (r *rightsWorld) grants() bool {
	now := model{r.inMember()}
	return slices.ContainsFunc(people, func(who person) bool {
		return slices.ContainsFunc(questions(), func(what question) bool { return now.allows(who, what, time.Now()) })
	})
}

// rightsWorld is a hub and a member with separate API servers, and the real controllers and a real agent between them.
type rightsWorld struct {
	left map[string]float64 // the earlier result of busy
	*world
	member *member.Member
	random *rand.Rand
	agent  *agent
	tunnel *testkit.Agent

	now state // on the hub, and in the member, where users label namespaces
	cut *cut  // nil while the tunnel exists
	// disturbed reports whether a user has changed delivered objects; in that case, anything may be allowed briefly.
	disturbed bool
	granted   int // positive answers when the state was last correct
}

// cut is a time without a tunnel.
type cut struct {
	delivered state   // the state that the member has received from the hub
	since     []state // the states that the hub has required since then
}

// agent is the part of a member's agent that applies sets. It can be restarted while the tunnel stays.
type agent struct {
	busy   atomic.Int64
	stop   func()
	stream *stream.Stream

	mu      sync.Mutex // guards applier
	applier *apply.Applier
}

// ServeHTTP serves the paths below protocol.PathSets.
func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.busy.Add(1)
	defer a.busy.Add(-1)
	a.mu.Lock()
	applier := a.applier
	a.mu.Unlock()
	applier.ServeHTTP(w, r)
}

// Names of the objects of random acts. The namespaces "home-…" are always in their projects; "listed-…" occur only in
// specs, and "moved-…" are only labeled in the member.
var (
	people = []person{
		{"github:alice", []string{"github:dev"}}, {"github:bob", []string{"github:dev", "github:ops"}}, {"github:carol", nil},
	}
	projectNames = []string{"p0", "p1", "p2"}
	listedNames  = []string{"listed-0", "listed-1"}
	movedNames   = []string{"moved-0", "moved-1"}
	clusterRoles = []string{"-c0", "-c1", "-c2"} // after the workspace's name, because templates have no namespace
	projectRoles = []string{"-p0", "-p1", "-p2"}
)

func newRightsWorld(t *testing.T, random *rand.Rand) *rightsWorld {
	t.Helper()
	r := &rightsWorld{random: random, now: newState(), agent: &agent{stream: stream.New()}, member: member.Start(t), world: newWholeWorld(t)}
	r.now.external = map[string]rbacv1.PolicyRule{"theirs": {APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"get"}}}
	r.member.Apply(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}, Rules: []rbacv1.PolicyRule{r.now.external["theirs"]}})
	for i, name := range projectNames {
		r.makeNamespace("home-"+name, projectNames[i])
	}
	for _, name := range movedNames {
		r.makeNamespace(name, "")
	}
	r.cluster("prod", nil)
	r.cluster("edge", map[string]string{"env": "prod"}) // has no agent
	r.elsewhere()
	r.lead()
	r.connect()
	return r
}

func (r *rightsWorld) makeNamespace(name, project string) {
	r.t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if project != "" {
		namespace.Labels = map[string]string{v1.LabelProject: project}
	}
	r.member.Apply(r.t, namespace)
	r.now.labelled[name] = project
}

// elsewhere creates a Cluster of the same name in another workspace, in which all users have all rights. It must not
// make any difference in this workspace.
func (r *rightsWorld) elsewhere() {
	r.t.Helper()
	other := metav1.ObjectMeta{Namespace: r.Workspace(r.t), Name: "prod"}
	r.Apply(r.t, &v1.Cluster{ObjectMeta: other})
	role := r.role("all", v1.RoleTemplateSpec{External: "cluster-admin"})
	target := v1.ClusterTarget{ClusterName: "prod"}
	for _, p := range people {
		other.Name = strings.TrimPrefix(p.name, "github:")
		r.Apply(r.t, &v1.ClusterRoleTemplateBinding{ObjectMeta: other, Spec: v1.ClusterRoleTemplateBindingSpec{
			ClusterTarget: target, RoleTemplateName: role, Subject: v1.Subject{Kind: v1.SubjectUser, Name: p.name}}})
	}
	for _, name := range projectNames {
		other.Name = name
		r.Apply(r.t, &v1.Project{ObjectMeta: other, Spec: v1.ProjectSpec{ClusterTarget: target, Namespaces: slices.Concat(listedNames, movedNames)}})
	}
}

// lead starts the agent, even after it was stopped.
func (r *rightsWorld) lead() {
	r.t.Helper()
	c, err := kube.New(r.member.Agent)
	if err != nil {
		r.t.Fatal(err)
	}
	applier := apply.New(apply.Options{Client: c.REST, Objects: c.Objects(), Secrets: c.Secrets(protocol.AgentNamespace), Topic: r.agent.stream.Topic(protocol.SubjectSets), Log: logr.Discard()})
	ctx, cancel := context.WithCancel(context.Background())
	var leading sync.WaitGroup
	leading.Go(func() { applier.Lead(ctx) })
	r.agent.mu.Lock()
	r.agent.applier = applier
	r.agent.mu.Unlock()
	r.agent.stop = func() { cancel(); leading.Wait() }
	r.t.Cleanup(r.agent.stop)
}

func (r *rightsWorld) connect() {
	r.t.Helper()
	r.tunnel = testkit.ConnectAgentServing(r.t, testkit.HealthyReport(), r.agent, r.agent.stream)
	r.registry.Add(members.Peer{Cluster: protocol.ClusterRef{Namespace: r.workspace, Name: "prod", UID: "u"}, Key: "k"}, r.tunnel.Session)
}

// round makes a change, waits until the member agrees with the model, and returns a description of the change.
func (r *rightsWorld) round() string {
	r.t.Helper()
	if r.cut == nil && r.random.IntN(8) == 0 {
		return r.partition()
	}
	before := r.inMember()
	done := r.act()
	r.agree(model{before, r.inMember()})
	if r.cut != nil && r.random.IntN(5) == 0 {
		return done + ", " + r.heal()
	}
	return done
}

// inMember returns the desired state of the member, which is the current state, or the state at the time when the
// tunnel was cut.
func (r *rightsWorld) inMember() state {
	if r.cut == nil {
		return r.now.clone()
	}
	s := r.cut.delivered.clone()
	s.labelled = r.now.clone().labelled
	return s
}

func (r *rightsWorld) partition() string {
	r.t.Helper()
	r.cut = &cut{delivered: r.now.clone(), since: []state{r.now.clone()}}
	r.tunnel.Kill()
	r.eventually(func(context.Context) error {
		if peers := r.registry.Local(types.NamespacedName{Namespace: r.workspace, Name: "prod"}); len(peers) > 0 {
			return errors.New("the tunnel is there")
		}
		return nil
	})
	return "the tunnel is cut"
}

func (r *rightsWorld) heal() string {
	r.t.Helper()
	since := r.cut.since
	r.cut = nil
	r.connect()
	r.agree(append(model{r.now}, since...))
	return fmt.Sprintf("healed after %d changes on the hub", len(since)-1)
}

// agree waits until nothing is in progress and the member's answers match the current state. On the way, the member
// must grant no more than the model of all possible states.
func (r *rightsWorld) agree(way model) {
	r.t.Helper()
	right := model{r.inMember()}
	testkit.Eventually(r.t, time.Minute, func(ctx context.Context) error {
		asked := time.Now()
		granted, err := r.ask(ctx)
		if err != nil {
			return err
		}
		wrong, yes := error(nil), 0
		for i, grant := range granted {
			who, what := grant.who, grant.what
			if grant.allowed && !r.disturbed && !way.allows(who, what, asked.Add(-clockSlack)) {
				r.t.Fatalf("seed %d: %s may %s, which is right at no time", *seed, who.name, what)
			}
			if grant.allowed {
				yes++
			}
			if want := right.allows(who, what, time.Now()); want != grant.allowed {
				wrong = fmt.Errorf("answer %d: %s may %s: %t, want %t", i, who.name, what, grant.allowed, want)
			}
		}
		if wrong != nil {
			return wrong
		}
		r.granted = yes
		return r.quiet(ctx)
	})
	r.disturbed = false
}

// accessResult is the member's answer to one question.
type accessResult struct {
	who     person
	what    question
	allowed bool
}

// questions returns the questions that each person asks in each namespace.
func questions() []question {
	var all []question
	ask := func(a authorizationv1.ResourceAttributes) { all = append(all, question{resource: &a}) }
	for _, namespace := range slices.Concat([]string{"", "default", "home-p0", "home-p1", "home-p2"}, listedNames, movedNames) {
		ask(authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "get", Resource: "pods"})
		ask(authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "list", Resource: "secrets"})
		ask(authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "get", Resource: "secrets", Name: "one"})
		ask(authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "delete", Group: "apps", Resource: "deployments"})
		ask(authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "get", Resource: "services"})
	}
	ask(authorizationv1.ResourceAttributes{Verb: "get", Resource: "nodes"})
	return append(all, question{path: "/logs/kubelet.log"})
}

// String describes the question for messages.
func (q question) String() string {
	if q.resource == nil {
		return "get " + q.path
	}
	return fmt.Sprintf("%s %s%s %q in namespace %q", q.resource.Verb, q.resource.Resource, "."+q.resource.Group, q.resource.Name, q.resource.Namespace)
}

// ask sends the member all questions of all people.
func (r *rightsWorld) ask(ctx context.Context) ([]accessResult, error) {
	var answers []accessResult
	for _, who := range people {
		for _, what := range questions() {
			answers = append(answers, accessResult{who: who, what: what})
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range answers {
		a := &answers[i]
		group.Go(func() error {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: a.who.name, Groups: a.who.groups, ResourceAttributes: a.what.resource}}
			if a.what.resource == nil {
				review.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Verb: "get", Path: a.what.path}
			}
			err := r.member.Client.Create(ctx, review)
			a.allowed = review.Status.Allowed
			return err
		})
	}
	return answers, group.Wait()
}

// quiet returns an error while work may be in progress: caches that lag behind, queues of controllers, requests to the
// agent.
func (r *rightsWorld) quiet(ctx context.Context) error {
	for _, kind := range []func() client.ObjectList{
		func() client.ObjectList { return &v1.RoleTemplateList{} }, func() client.ObjectList { return &v1.ClusterRoleTemplateBindingList{} },
		func() client.ObjectList { return &v1.ProjectRoleTemplateBindingList{} }, func() client.ObjectList { return &v1.ProjectList{} },
		func() client.ObjectList { return &v1.ClusterList{} },
	} {
		cached, live := kind(), kind()
		if err := errors.Join(r.manager.GetClient().List(ctx, cached), r.Client.List(ctx, live)); err != nil {
			return err
		}
		if known, there := versions(r.t, cached), versions(r.t, live); !slices.Equal(known, there) {
			return fmt.Errorf("%T: the cache has %v, there is %v", live, known, there)
		}
	}
	const calm = 5
	for range calm {
		if err := r.idle(); err != nil {
			return err
		}
		if n := r.agent.busy.Load(); n > 0 {
			return fmt.Errorf("%d requests to the agent", n)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// idle returns an error while a controller has more work than before the test.
func (r *rightsWorld) idle() error {
	now, err := busy()
	for what, n := range now {
		if n > max(r.left[what], 0) { // a manager that ended late may have left a negative count
			return fmt.Errorf("%s is %v", what, n)
		}
	}
	return err
}

// busy returns the work of the controllers of this process.
func busy() (map[string]float64, error) {
	families, err := metrics.Registry.Gather()
	if err != nil {
		return nil, err
	}
	all := map[string]float64{}
	for _, family := range families {
		if name := family.GetName(); name != "workqueue_depth" && name != "controller_runtime_active_workers" {
			continue
		}
		for _, m := range family.GetMetric() {
			all[fmt.Sprint(family.GetName(), m.GetLabel())] = m.GetGauge().GetValue()
		}
	}
	return all, nil
}

func versions(t *testing.T, list client.ObjectList) []string {
	t.Helper()
	var all []string
	for _, o := range items(t, list) {
		all = append(all, o.GetName()+" "+o.GetResourceVersion())
	}
	slices.Sort(all)
	return all
}

func items(t *testing.T, list client.ObjectList) []client.Object {
	t.Helper()
	var all []client.Object
	if err := meta.EachListItem(list, func(item runtime.Object) error {
		all = append(all, item.(client.Object))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}
