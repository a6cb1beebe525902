// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/plan"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/release"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestReconcile(t *testing.T) {
	env := testkit.Shared(t)
	for name, test := range map[string]func(*testing.T, *fixture){
		"a member that has said nothing yet is asked, and nothing is written on it": func(t *testing.T, s *fixture) {
			s.members["a"] = plan.MemberState{Connected: true, Silent: s.clock.Now()}
			s.plan()
			if again := s.reconcile(); again.RequeueAfter != time.Second {
				t.Errorf("it looks again after %v", again.RequeueAfter)
			}
			if message := s.expect(v1.ReasonApplying); !strings.Contains(message, "asked") || s.claims != 0 || len(s.delivered) != 0 {
				t.Errorf("%s; %d writes, delivered %v, want it to ask first and write nothing", message, s.claims, s.delivered)
			}
		},
		"one that says nothing for 15 s counts as away, and the next begins": func(t *testing.T, s *fixture) {
			s.members["a"] = plan.MemberState{Connected: true, Silent: s.clock.Now()}
			s.plan()
			s.clock.Advance(15 * time.Second)
			s.reconcile()
			if s.claim("b") != nil {
				t.Error("b has begun too early")
			}
			s.clock.Advance(time.Second)
			s.reconcile()
			if s.claim("a") != nil || s.claim("b") == nil {
				t.Errorf("a has %v, b has %v", s.claim("a"), s.claim("b"))
			}
		},
		"a member begins, is complete, and the next one follows": func(t *testing.T, s *fixture) {
			s.plan()
			s.reconcile()
			s.expect(v1.ReasonApplying)
			p := s.given("a")
			if claim := s.claim("a"); claim == nil || !claim.Since.Equal(s.clock.Now()) || p == nil || p.Spec.Version != "v1.36.3+k3s1" || s.given("b") != nil {
				t.Fatalf("claim %+v, given %+v, want a claim of now, and the version given to the first member only", claim, p)
			}
			s.clock.Advance(fullStop)
			s.says("a", v1.ReasonComplete, v1.PlanCount{Total: 3, Complete: 3})
			s.reconcile()
			st := s.read().Status
			if claim := s.claim("a"); claim.Complete == nil || s.cluster("a").Labels[v1.PlanLabel("k3s")] != st.LatestHash || s.claim("b") == nil {
				t.Errorf("claims %+v, %+v, want the first complete and labelled, and the second begun", claim, s.claim("b"))
			}
			s.says("b", v1.ReasonNoNodes, v1.PlanCount{})
			s.reconcile()
			s.expect(v1.ReasonComplete)
			if st = s.read().Status; st.Clusters.Summary != "2/2" || st.Nodes.Summary != "3/3" || !meta.IsStatusConditionTrue(st.Conditions, v1.ConditionReady) {
				t.Errorf("status %+v, want 2/2 Clusters, 3/3 nodes and Ready", st)
			}
			if got := s.events(); !slices.Equal(got, []string{"Normal Applying", "Normal Complete"}) {
				t.Errorf("events %q, want Applying and then Complete", got)
			}
		},
		"a plan that is too large to be sent hands over that members keep what they have": func(t *testing.T, s *fixture) {
			s.plan(func(spec *v1.PlanSpec) {
				for i := range 24 { // as many Secrets as a plan can refer to, each of the maximum size
					secret := &corev1.Secret{ObjectMeta: s.meta(fmt.Sprintf("secret%d", i))}
					secret.Labels = map[string]string{v1.LabelPlansUse: "true"}
					secret.Data = map[string][]byte{"a": make([]byte, index.MaxSecretData-100)}
					s.Apply(t, secret)
					if i < 16 {
						spec.Secrets = append(spec.Secrets, v1.PlanSecret{Name: secret.Name})
						continue
					}
					spec.ImagePullSecrets = append(spec.ImagePullSecrets, v1.PullSecret{Name: secret.Name})
				}
			})
			s.reconcile()
			s.expect(v1.ReasonDeliveryFailed)
			if given := s.delivered[types.NamespacedName{Namespace: s.name.Namespace, Name: "a"}]; given == nil || given.Digest != delivery.Unchanged(given.ID).Digest {
				t.Errorf("handed over %v, want that the member keeps what it has", s.delivered)
			}
		},
		"a plan whose channel has not answered hands over that members keep what they have": func(t *testing.T, s *fixture) {
			s.plan(func(spec *v1.PlanSpec) { spec.Version, spec.Channel = "", "https://slow.example.com" })
			s.edit("b", func(c *v1.Cluster) { c.Annotations = map[string]string{v1.PlanLabel("k3s"): "{}"} })
			s.reconcile()
			given := s.delivered[types.NamespacedName{Namespace: s.name.Namespace, Name: "b"}]
			if len(s.delivered) != 1 || given == nil || given.Digest != delivery.Unchanged(given.ID).Digest {
				t.Errorf("handed over %v, want that the member that has begun keeps what it has", s.delivered)
			}
		},
		"a member that fails stops the plan": func(t *testing.T, s *fixture) {
			s.plan()
			s.reconcile()
			s.says("a", v1.ReasonNodeFailed, v1.PlanCount{Total: 3, Complete: 1, Failed: 1})
			s.reconcile()
			s.expect(v1.ReasonTooManyFailures)
			if claim := s.claim("a"); claim.Failed == nil || s.claim("b") != nil || !meta.IsStatusConditionTrue(s.read().Status.Conditions, v1.ConditionStalled) {
				t.Errorf("claims %+v, %+v, want the first failed, no second, and Stalled", claim, s.claim("b"))
			}
			before := s.read()
			s.clock.Advance(time.Hour)
			s.reconcile()
			if after := s.read(); after.ResourceVersion != before.ResourceVersion {
				t.Errorf("a stalled plan was written again: %+v, want %+v", after.Status, before.Status)
			}
			if got := s.events(); !slices.Equal(got, []string{"Normal Applying", "Warning TooManyFailures"}) {
				t.Errorf("events %q, want Applying and then a warning TooManyFailures", got)
			}
		},
		"a pause ends the failure of a member at once, and the resumed plan is not stalled": func(t *testing.T, s *fixture) {
			s.plan()
			s.reconcile()
			s.says("a", v1.ReasonNodeFailed, v1.PlanCount{Total: 3, Complete: 1, Failed: 1})
			s.reconcile()
			s.change(func(spec *v1.PlanSpec) { spec.Paused = true })
			s.reconcile()
			if claim, given := s.claim("a"), s.given("a"); claim.Failed == nil || !given.Spec.Paused {
				t.Fatalf("claim %+v, given %+v, want a failure until the member has paused", claim, given.Spec)
			}
			s.says("a", v1.ReasonPaused, v1.PlanCount{Total: 3, Complete: 1, Applying: 1})
			s.clock.Advance(fullStop)
			s.reconcile()
			s.expect(v1.ReasonPaused)
			if claim, st := s.claim("a"), s.read().Status; claim.Failed != nil || st.Clusters.Failed != 0 {
				t.Errorf("claim %+v, %+v, want no failure", claim, st.Clusters)
			}
			s.change(func(spec *v1.PlanSpec) { spec.Paused = false })
			s.reconcile()
			s.expect(v1.ReasonApplying)
			if s.given("a").Spec.Paused || meta.IsStatusConditionTrue(s.read().Status.Conditions, v1.ConditionStalled) {
				t.Errorf("given %+v, %+v, want it to run and not to be stalled", s.given("a").Spec, s.read().Status.Conditions)
			}
		},
		"a plan that is deleted, or is for no member any more, takes its claims and labels off, and leaves the one that keeps it off": func(t *testing.T, s *fixture) {
			s.plan()
			for _, end := range []func(){
				func() { s.change(func(spec *v1.PlanSpec) { spec.ClusterSelector = nil }) },
				func() {
					if err := s.Client.Delete(t.Context(), s.read()); err != nil {
						t.Fatal(err)
					}
				},
			} {
				s.edit("a", func(c *v1.Cluster) { c.Labels = map[string]string{v1.PlanLabel("k3s"): v1.PlanDisabled} })
				s.edit("b", func(c *v1.Cluster) {
					c.Labels, c.Annotations = map[string]string{v1.PlanLabel("k3s"): "hash"}, map[string]string{v1.PlanLabel("k3s"): "{}"}
				})
				s.reconcile()
				if s.given("b") == nil {
					t.Fatal("b has nothing")
				}
				end()
				s.reconcile()
				if s.claim("b") != nil || len(s.delivered) != 0 || s.cluster("b").Labels[v1.PlanLabel("k3s")] != "" ||
					s.cluster("a").Labels[v1.PlanLabel("k3s")] != v1.PlanDisabled {
					t.Errorf("claim %v, delivered %v", s.claim("b"), s.delivered)
				}
				if s.Client.Get(t.Context(), s.name, &v1.Plan{}) == nil {
					s.change(func(spec *v1.PlanSpec) { spec.ClusterSelector = &metav1.LabelSelector{} })
				}
			}
		},
		"a claim that cannot be read lets what runs there finish first": func(t *testing.T, s *fixture) {
			s.plan()
			s.edit("a", func(c *v1.Cluster) { c.Annotations = map[string]string{v1.PlanLabel("k3s"): "rubbish"} })
			s.reconcile()
			if p := s.given("a"); p == nil || !p.Spec.Paused || s.claim("b") != nil {
				t.Errorf("a was given %+v, b claims %v", p, s.claim("b"))
			}
		},
		"a Cluster that changed since it was read is read again, and what a person did to it stays": func(t *testing.T, s *fixture) {
			s.plan()
			s.cached["a"] = s.cluster("a")
			s.edit("a", func(c *v1.Cluster) { c.Labels = map[string]string{v1.PlanLabel("k3s"): v1.PlanDisabled} })
			if again := s.reconcile(); again.RequeueAfter == 0 || s.claim("a") != nil || s.writes != 0 {
				t.Errorf("again after %v, claim %v, %d writes of the status", again.RequeueAfter, s.claim("a"), s.writes)
			}
			delete(s.cached, "a")
			s.reconcile()
			if s.claim("a") != nil || s.claim("b") == nil || s.cluster("a").Labels[v1.PlanLabel("k3s")] != v1.PlanDisabled {
				t.Errorf("claims %v, %v, want the disabled member released and the next one begun", s.claim("a"), s.claim("b"))
			}
		},
		"a cache that lags behind the own write makes no second one": func(t *testing.T, s *fixture) {
			s.plan()
			s.cached["a"] = s.cluster("a")
			s.reconcile()
			s.reconcile()
			if s.claims != 1 || s.given("a") == nil {
				t.Errorf("%d writes of Clusters", s.claims)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { test(t, newFixture(t, env, "a", "b")) })
	}
	t.Run("a plan that cannot be computed begins in no member, and pauses where it has begun", func(t *testing.T) { testGates(t, env) })
	t.Run("in a channel", func(t *testing.T) { testChannels(t, env) })
	t.Run("with members that are unstable", func(t *testing.T) { testUnstableMembers(t, env) })
}

func testGates(t *testing.T, env *testkit.Env) {
	secret := func(s *v1.PlanSpec) { s.Secrets = []v1.PlanSecret{{Name: "token"}} }
	unusable := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a b", Operator: "Exists"}}}
	for name, tt := range map[string]struct {
		secret  *corev1.Secret
		change  func(*v1.PlanSpec)
		reason  string
		message string
		goesOn  bool // without a user's action
	}{
		"a selector of clusters": {change: func(s *v1.PlanSpec) { s.ClusterSelector = unusable }, reason: v1.ReasonInvalidSelector, message: "change the plan"},
		"a selector of a wave": {
			change: func(s *v1.PlanSpec) {
				s.Rollout = &v1.Rollout{MaxConcurrentClusters: 1, Waves: []v1.Wave{{Name: "w", ClusterSelector: unusable}}}
			},
			reason: v1.ReasonInvalidSelector, message: "wave w",
		},
		"a Secret that is not there":    {change: secret, reason: v1.ReasonSecretNotFound, message: "Secret token does not exist"},
		"a Secret that is not labelled": {secret: &corev1.Secret{}, change: secret, reason: v1.ReasonSecretNotFound, message: v1.LabelPlansUse},
		"a Secret that must not be copied": {
			secret: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1.LabelPlansUse: "true"}}, Type: corev1.SecretTypeBootstrapToken},
			change: secret, reason: v1.ReasonSecretRefused, message: "bootstrap token",
		},
		"an invalid label": {
			change: func(s *v1.PlanSpec) {
				s.PostCompleteLabels = map[string]v1.LabelTemplate{"example.org/v": "$(LATEST_VERSION)-"}
			},
			reason: v1.ReasonInvalidPlan, message: "is not a valid label",
		},
		"no version": {
			change: func(s *v1.PlanSpec) { s.Version, s.Channel = "", "https://example.org/channel" },
			reason: v1.ReasonChannelFailed, message: "it answers 500", goesOn: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, env, "a", "b")
			s.answer = release.Result{Asked: true, Err: errors.New("it answers 500")}
			if tt.secret != nil {
				tt.secret.Namespace, tt.secret.Name = s.name.Namespace, "token"
				s.Apply(t, tt.secret)
			}
			s.edit("b", func(c *v1.Cluster) { c.Annotations = map[string]string{v1.PlanLabel("k3s"): `{"revision":"before"}`} })
			s.plan(tt.change)
			s.reconcile()
			if message := s.expect(tt.reason); !strings.Contains(message, tt.message) {
				t.Errorf("it says %s, want it to contain %q", message, tt.message)
			}
			if p := s.given("b"); s.claim("a") != nil || p == nil || !p.Spec.Paused {
				t.Errorf("a has claim %v, b was given %+v", s.claim("a"), p)
			}
			if st := s.read().Status; meta.IsStatusConditionTrue(st.Conditions, v1.ConditionStalled) == tt.goesOn || st.LatestHash != "" {
				t.Errorf("status %+v, want no hash, and Stalled only if a person must act", st)
			}
		})
	}
	t.Run("a Cluster that is not there", func(t *testing.T) {
		s := newFixture(t, env)
		s.plan(func(spec *v1.PlanSpec) { spec.ClusterSelector, spec.ClusterName = nil, "prod" })
		s.reconcile()
		s.expect(v1.ReasonClusterNotFound)
	})
}

func testChannels(t *testing.T, env *testkit.Env) {
	const url = "https://example.org/channel"
	follow := func(s *v1.PlanSpec) { s.Version, s.Channel = "", url }
	found := func(version string, err error) release.Result {
		return release.Result{Version: version, Err: err, Asked: true}
	}
	down := errors.New("no answer: not within 10s")
	t.Run("nothing is written or begun until it has been asked", func(t *testing.T) {
		s := newFixture(t, env, "a")
		s.plan(follow)
		s.reconcile()
		if s.claims != 0 || s.writes != 0 {
			t.Errorf("%d claims, %d writes, want none", s.claims, s.writes)
		}
	})
	t.Run("the version that it leads to is what members get, and it is asked again", func(t *testing.T) {
		s := newFixture(t, env, "a")
		s.plan(follow)
		s.answer = found("v1.36.4+k3s1", nil)
		s.answer.Next = s.clock.Now().Add(time.Hour)
		if again := s.reconcile(); again.RequeueAfter != time.Hour {
			t.Errorf("it looks again after %v", again.RequeueAfter)
		}
		if p, st := s.given("a"), s.read().Status; p == nil || p.Spec.Version != "v1.36.4+k3s1" || p.Spec.Channel != "" || st.LatestVersion != "v1.36.4-k3s1" {
			t.Errorf("given %+v, status %+v, want the channel's version in both, and no channel in the member", p, st)
		}
	})
	t.Run("a new leader goes on with the version that was found before while the channel is down, of the same plan only", func(t *testing.T) {
		s := newFixture(t, env, "a")
		s.plan(follow)
		s.answer = found("v1.36.4+k3s1", nil)
		s.reconcile()
		revision := s.read().Status.Revision
		s.answer = found("", down)
		s.reconcile()
		s.expect(v1.ReasonApplying)
		if p := s.given("a"); p == nil || p.Spec.Paused || s.claims != 1 || s.read().Status.Revision != revision {
			t.Errorf("given %+v, %d writes of Clusters, revision %s, want %s", p, s.claims, s.read().Status.Revision, revision)
		}
		s.clock.Advance(fullStop)
		s.reconcile()
		if resolved := meta.FindStatusCondition(s.read().Status.Conditions, v1.ConditionLatestResolved); resolved.Status != metav1.ConditionTrue ||
			!strings.Contains(resolved.Message, "not within 10s") {
			t.Errorf("LatestResolved is %+v, want it to say that the channel did not answer within 10s", resolved)
		}
		s.change(func(spec *v1.PlanSpec) { spec.Channel = url + "/other" })
		s.reconcile()
		s.expect(v1.ReasonChannelFailed)
		if p := s.given("a"); p == nil || !p.Spec.Paused {
			t.Errorf("given %+v, want it paused", p)
		}
	})
}
