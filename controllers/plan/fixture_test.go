// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/plan"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/release"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/status"
	"github.com/drover-dev/drover/test/testkit"
)

// fixture is a workspace with the Plan "k3s", its reconciler, and fake members whose reports the test chooses.
type fixture struct {
	*testkit.Env
	t        *testing.T
	clock    *testkit.Clock
	recorder *events.FakeRecorder
	r        *plan.Reconciler
	name     types.NamespacedName
	// members that are not listed are connected, and have reported nothing about the plan
	members   map[string]plan.MemberState
	answer    release.Result
	delivered map[types.NamespacedName]*set.Set
	claims    int                    // writes of Clusters
	writes    int                    // of the Plan's status
	cached    map[string]*v1.Cluster // the content of the cache, if it differs from the API server's
}

func newFixture(t *testing.T, env *testkit.Env, clusters ...string) *fixture {
	t.Helper()
	s := &fixture{Env: env, t: t, clock: testkit.NewClock(), recorder: events.NewFakeRecorder(1000), members: map[string]plan.MemberState{}, cached: map[string]*v1.Cluster{}}
	s.name = types.NamespacedName{Namespace: env.Workspace(t), Name: "k3s"}
	counting := interceptor.NewClient(env.Client, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			s.claims++
			return c.Patch(ctx, object, patch, options...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, kind string, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			s.writes++
			return c.SubResource(kind).Patch(ctx, object, patch, options...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			err := c.List(ctx, list, options...)
			if clusters, is := list.(*v1.ClusterList); is {
				for i := range clusters.Items {
					if old := s.cached[clusters.Items[i].Name]; old != nil {
						clusters.Items[i] = *old.DeepCopy()
					}
				}
			}
			return err
		},
	})
	s.r = &plan.Reconciler{
		Output:  status.Output{Client: counting, Recorder: s.recorder, Now: s.clock.Now},
		Secrets: labelled{env.Client}, Deliveries: s, State: s.State, Channel: s.Result,
	}
	for _, name := range clusters {
		s.Apply(t, &v1.Cluster{ObjectMeta: s.meta(name)})
	}
	return s
}

// labelled reads Secrets like a cache that has only the Secrets for plans.
type labelled struct{ client.Reader }

func (l labelled) Get(ctx context.Context, name client.ObjectKey, object client.Object, options ...client.GetOption) error {
	err := l.Reader.Get(ctx, name, object, options...)
	if err == nil && object.GetLabels()[v1.LabelPlansUse] != "true" {
		return apierrors.NewNotFound(corev1.Resource("secrets"), name.Name)
	}
	return err
}

func (s *fixture) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: s.name.Namespace, Name: name}
}

// The fixture is the reconciler's Deliverer, the State of plans in members, and the Channel.

func (s *fixture) Replace(_ delivery.Key, sets map[types.NamespacedName]*set.Set) {
	s.delivered = sets
}

func (s *fixture) Outcomes(_ string, members []types.NamespacedName) []delivery.Outcome {
	outcomes := make([]delivery.Outcome, 0, len(members))
	for _, name := range members {
		outcomes = append(outcomes, delivery.Outcome{Cluster: name.Name, Stage: delivery.Applied})
	}
	return outcomes
}

func (s *fixture) Remains(string, []types.NamespacedName) (held, away, unreported int) {
	return 0, 0, 0
}
func (s *fixture) Kept(string, types.NamespacedName) *set.Set { return nil }
func (s *fixture) Changed(types.NamespacedName)               {}
func (s *fixture) Forget(types.NamespacedName)                {}

func (s *fixture) State(_ string, member types.NamespacedName) plan.MemberState {
	if state, known := s.members[member.Name]; known {
		return state
	}
	return plan.MemberState{Connected: true, Reported: true}
}

func (s *fixture) Result(string, string) release.Result { return s.answer }
func (s *fixture) OnPolled(func(string))                {}

// Actions of tests.

// plan creates the Plan, for all members of the workspace.
func (s *fixture) plan(change ...func(*v1.PlanSpec)) {
	s.t.Helper()
	p := &v1.Plan{ObjectMeta: s.meta(s.name.Name)}
	p.Spec.ClusterSelector = &metav1.LabelSelector{}
	p.Spec.Version, p.Spec.Upgrade.Image = "v1.36.3+k3s1", "rancher/k3s-upgrade"
	for _, f := range change {
		f(&p.Spec)
	}
	s.Apply(s.t, p)
}

// change edits the Plan.
func (s *fixture) change(f func(*v1.PlanSpec)) {
	s.t.Helper()
	p := s.read()
	f(&p.Spec)
	if err := s.Client.Update(s.t.Context(), p); err != nil {
		s.t.Fatal(err)
	}
}

func (s *fixture) reconcile() ctrl.Result {
	s.t.Helper()
	result, err := s.r.Reconcile(s.t.Context(), ctrl.Request{NamespacedName: s.name})
	if err != nil {
		s.t.Fatal(err)
	}
	return result
}

func (s *fixture) read() *v1.Plan {
	s.t.Helper()
	p := &v1.Plan{}
	if err := s.Client.Get(s.t.Context(), s.name, p); err != nil {
		s.t.Fatal(err)
	}
	return p
}

func (s *fixture) cluster(name string) *v1.Cluster {
	s.t.Helper()
	c := &v1.Cluster{}
	if err := s.Client.Get(s.t.Context(), client.ObjectKey{Namespace: s.name.Namespace, Name: name}, c); err != nil {
		s.t.Fatal(err)
	}
	return c
}

// edit changes a Cluster in the same way as a user.
func (s *fixture) edit(name string, f func(*v1.Cluster)) {
	s.t.Helper()
	c := s.cluster(name)
	f(c)
	if err := s.Client.Update(s.t.Context(), c); err != nil {
		s.t.Fatal(err)
	}
}

// claim returns the plan's claim on a Cluster, or nil if there is none.
func (s *fixture) claim(name string) *rollout.ClusterClaim {
	s.t.Helper()
	text := s.cluster(name).Annotations[v1.PlanLabel(s.name.Name)]
	if text == "" {
		return nil
	}
	claim := &rollout.ClusterClaim{}
	if err := json.Unmarshal([]byte(text), claim); err != nil {
		s.t.Fatal(err)
	}
	return claim
}

// given returns the Plan that a member has, or nil if it has none.
func (s *fixture) given(name string) *v1.Plan {
	s.t.Helper()
	given := s.delivered[types.NamespacedName{Namespace: s.name.Namespace, Name: name}]
	if given == nil || given.JSON() == nil {
		return nil
	}
	p := &v1.Plan{}
	_, content, err := set.Parse(given.JSON())
	if err != nil {
		s.t.Fatal(err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content.Objects[0].Object, p); err != nil {
		s.t.Fatal(err)
	}
	return p
}

// says makes a member report progress of the plan that it most recently received.
func (s *fixture) says(name, reason string, nodes v1.PlanCount, applying ...string) {
	s.t.Helper()
	status := &v1.PlanStatus{Revision: s.given(name).Annotations[v1.AnnotationRevision], LatestHash: s.read().Status.LatestHash, Nodes: &nodes,
		Conditions: []metav1.Condition{{Type: v1.ConditionComplete, Status: metav1.ConditionFalse, Reason: reason, Message: "as the test wants"}}}
	for _, node := range applying {
		status.Applying = append(status.Applying, v1.ApplyingNode{Node: node, Stage: v1.StageUpgrading, Since: metav1.NewTime(s.clock.Now()), Attempt: 1})
	}
	s.members[name] = plan.MemberState{Connected: true, Reported: true, Status: status}
}

// leaves disconnects a member, and writes this into its Cluster.
func (s *fixture) leaves(name string) {
	s.t.Helper()
	state := s.State(s.name.Name, types.NamespacedName{Name: name})
	state.Connected, state.Reported = false, false
	s.members[name] = state
	c := s.cluster(name)
	meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{Type: v1.ConditionConnected, Status: metav1.ConditionFalse, Reason: v1.ReasonTunnelLost,
		Message: "lost", LastTransitionTime: metav1.NewTime(s.clock.Now())})
	if err := s.Client.Status().Update(s.t.Context(), c); err != nil {
		s.t.Fatal(err)
	}
}

// expect checks the reason of the Complete condition, and returns its message.
func (s *fixture) expect(reason string) string {
	s.t.Helper()
	c := meta.FindStatusCondition(s.read().Status.Conditions, v1.ConditionComplete)
	if c == nil || c.Reason != reason {
		s.t.Fatalf("Complete is %+v, want %s", c, reason)
	}
	return c.Message
}

// events returns the reasons of the events since the last call.
func (s *fixture) events() []string {
	var reasons []string
	for {
		select {
		case text := <-s.recorder.Events: // "Normal Reason message"
			reasons = append(reasons, strings.Join(strings.SplitN(text, " ", 3)[:2], " "))
		default:
			return reasons
		}
	}
}

// fullStop is long enough that the next status is written immediately.
const fullStop = 2 * time.Second
