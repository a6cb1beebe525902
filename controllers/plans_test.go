// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/test/testkit"
)

// plan makes a Plan for all members of the workspace.
func (w *world) plan(name string, change ...func(*v1.PlanSpec)) *v1.Plan {
	w.t.Helper()
	p := &v1.Plan{ObjectMeta: w.meta(name)}
	p.Spec.ClusterSelector = &metav1.LabelSelector{}
	p.Spec.Version, p.Spec.Upgrade.Image = "v1.36.3+k3s1", "rancher/k3s-upgrade"
	for _, f := range change {
		f(&p.Spec)
	}
	w.Apply(w.t, p)
	return p
}

// change edits a Plan.
func (w *world) change(name string, change func(*v1.PlanSpec)) {
	w.t.Helper()
	w.eventually(func(ctx context.Context) error {
		p := &v1.Plan{}
		if err := w.Client.Get(ctx, client.ObjectKey{Namespace: w.workspace, Name: name}, p); err != nil {
			return err
		}
		change(&p.Spec)
		return w.Client.Update(ctx, p)
	})
}

// relabel gives a Cluster other labels.
func (w *world) relabel(name string, labels map[string]string) {
	w.t.Helper()
	w.eventually(func(ctx context.Context) error {
		c := &v1.Cluster{}
		if err := w.Client.Get(ctx, client.ObjectKey{Namespace: w.workspace, Name: name}, c); err != nil {
			return err
		}
		c.Labels = labels
		return w.Client.Update(ctx, c)
	})
}

// delivered is the Plan that a member was given, nil if none.
func delivered(a *testkit.Agent, name string) *v1.Plan {
	set, there := a.Sets.Get("plan/" + name)
	if !there {
		return nil
	}
	for _, o := range set.Content.Objects {
		if o.GetKind() == "Plan" {
			p := &v1.Plan{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, p); err != nil {
				panic(err)
			}
			return p
		}
	}
	return nil
}

// says has a member report the progress of the plan that it was given last.
func says(a *testkit.Agent, name, reason string, counts ...int) {
	p := delivered(a, name)
	n := append(counts, make([]int, 5)...)
	count := rollout.Count(n[0], n[1], n[2], n[3], n[4])
	status := v1.PlanStatus{Revision: p.Annotations[v1.AnnotationRevision], Nodes: &count}
	condition := metav1.Condition{Type: v1.ConditionComplete, Status: metav1.ConditionFalse, Reason: reason, Message: "as the test wants"}
	if reason == v1.ReasonComplete {
		condition.Status = metav1.ConditionTrue
	}
	status.Conditions = []metav1.Condition{condition}
	if n[2] > 0 {
		status.Applying = []v1.ApplyingNode{{Node: "node-1", Stage: v1.StageUpgrading, Since: metav1.Now(), Attempt: 1}}
	}
	if n[3] > 0 {
		status.Failures = []v1.NodeFailure{{Node: "node-1", Final: true, At: metav1.Now(), Attempt: 3, Reason: v1.ReasonUpgradeFailed, Message: "exit 1", Log: "boom"}}
	}
	a.Sets.Plans.SetStatus(name, status)
}

// has waits until a member has the plan, running or paused.
func (w *world) has(a *testkit.Agent, name string, paused bool) {
	w.t.Helper()
	w.eventually(func(context.Context) error {
		if p := delivered(a, name); p == nil || p.Spec.Paused != paused {
			return fmt.Errorf("the member has %v, want one with paused %v", p, paused)
		}
		return nil
	})
}

// lacks checks that a member has no plan, now and when all else has settled.
func (w *world) lacks(a *testkit.Agent, name string) {
	w.t.Helper()
	if p := delivered(a, name); p != nil {
		w.t.Errorf("a member has the plan too early, or still: %v", p.Annotations)
	}
}

// reads waits until a Plan's status is as wanted.
func (w *world) reads(name string, check func(*v1.PlanStatus) bool) *v1.PlanStatus {
	w.t.Helper()
	p := &v1.Plan{}
	w.eventually(func(ctx context.Context) error {
		if err := w.Client.Get(ctx, client.ObjectKey{Namespace: w.workspace, Name: name}, p); err != nil {
			return err
		}
		if !check(&p.Status) {
			text, _ := json.Marshal(p.Status)
			return fmt.Errorf("the status is %s", text)
		}
		return nil
	})
	return &p.Status
}

// becomes waits for the reason of a Plan's condition Complete.
func (w *world) becomes(name, reason string) *v1.PlanStatus {
	w.t.Helper()
	return w.reads(name, func(s *v1.PlanStatus) bool { return reasonOf(s) == reason })
}

func reasonOf(s *v1.PlanStatus) string {
	if c := meta.FindStatusCondition(s.Conditions, v1.ConditionComplete); c != nil {
		return c.Reason
	}
	return ""
}

// claim returns a Cluster's annotation and label for a plan.
func (w *world) claim(cluster, plan string) (string, string) {
	w.t.Helper()
	c := &v1.Cluster{}
	if err := w.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.workspace, Name: cluster}, c); err != nil {
		w.t.Fatal(err)
	}
	return c.Annotations[v1.PlanLabel(plan)], c.Labels[v1.PlanLabel(plan)]
}

func TestPlans(t *testing.T) {
	env := testkit.Shared(t)
	for name, test := range map[string]func(*testing.T, *world){
		"a plan of one member goes through to complete, and its removal leaves nothing": func(t *testing.T, w *world) {
			a := w.member("prod", nil)
			w.plan("k3s", func(s *v1.PlanSpec) { s.ClusterSelector, s.ClusterName = nil, "prod" })
			w.has(a, "k3s", false)
			p := delivered(a, "k3s")
			if p.Namespace != v1.PlansNamespace || p.Spec.ClusterName != "" || p.Spec.Rollout != nil || p.Spec.Version != "v1.36.3+k3s1" {
				t.Errorf("the member was given %+v", p)
			}
			says(a, "k3s", v1.ReasonApplying, 3, 1, 1)
			w.reads("k3s", func(s *v1.PlanStatus) bool {
				return s.Nodes != nil && s.Nodes.Summary == "1/3" && len(s.Applying) == 1 && s.Applying[0].Cluster == "prod" && len(s.Members) == 1
			})
			says(a, "k3s", v1.ReasonComplete, 3, 3)
			s := w.becomes("k3s", v1.ReasonComplete)
			if s.Clusters.Summary != "1/1" || s.LatestVersion != "v1.36.3-k3s1" || !meta.IsStatusConditionTrue(s.Conditions, v1.ConditionReady) {
				t.Errorf("status %+v", s)
			}
			if claim, label := w.claim("prod", "k3s"); !strings.Contains(claim, "complete") || label != s.LatestHash {
				t.Errorf("claim %s, label %s", claim, label)
			}
			if err := w.Client.Delete(t.Context(), &v1.Plan{ObjectMeta: w.meta("k3s")}); err != nil {
				t.Fatal(err)
			}
			w.eventually(func(context.Context) error {
				claim, label := w.claim("prod", "k3s")
				if claim != "" || label != "" || delivered(a, "k3s") != nil {
					return fmt.Errorf("claim %q, label %q, delivered %v", claim, label, delivered(a, "k3s"))
				}
				return nil
			})
		},
		"waves go one after the other, and within them no more at once than allowed": func(t *testing.T, w *world) {
			canary := w.member("canary", map[string]string{"ring": "canary"})
			one, two, three := w.member("one", nil), w.member("two", nil), w.member("three", nil)
			w.plan("k3s", func(s *v1.PlanSpec) {
				s.Rollout = &v1.Rollout{MaxConcurrentClusters: 2, Waves: []v1.Wave{
					{Name: "first", ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"ring": "canary"}}}}}
			})
			w.has(canary, "k3s", false)
			says(canary, "k3s", v1.ReasonApplying, 1, 0, 1)
			w.reads("k3s", func(s *v1.PlanStatus) bool { return len(s.Applying) == 1 })
			w.lacks(one, "k3s")
			says(canary, "k3s", v1.ReasonComplete, 1, 1)
			w.has(one, "k3s", false)
			w.has(three, "k3s", false) // by name, before "two"
			w.reads("k3s", func(s *v1.PlanStatus) bool { return len(s.Members) == 2 && s.Members[0].Wave == rollout.Rest })
			w.lacks(two, "k3s")
			says(three, "k3s", v1.ReasonComplete, 1, 1)
			w.has(two, "k3s", false)
			says(one, "k3s", v1.ReasonComplete, 1, 1)
			says(two, "k3s", v1.ReasonNoNodes, 0, 0)
			if s := w.becomes("k3s", v1.ReasonComplete); s.Clusters.Summary != "4/4" || len(s.Waves) != 2 || s.Nodes.Summary != "3/3" {
				text, _ := json.Marshal(s)
				t.Errorf("status %s", text)
			}
		},
		"a wave soaks before the next one begins": func(t *testing.T, w *world) {
			first, second := w.member("first", map[string]string{"ring": "0"}), w.member("second", nil)
			w.plan("k3s", func(s *v1.PlanSpec) {
				s.Rollout = &v1.Rollout{MaxConcurrentClusters: 2, Waves: []v1.Wave{{Name: "one", Soak: &metav1.Duration{Duration: 2 * time.Second},
					ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"ring": "0"}}}}}
			})
			w.has(first, "k3s", false)
			says(first, "k3s", v1.ReasonComplete, 1, 1)
			s := w.becomes("k3s", v1.ReasonSoaking)
			until := s.Waves[0].SoakUntil
			w.lacks(second, "k3s")
			w.has(second, "k3s", false)
			if until == nil || time.Now().Before(until.Time) {
				t.Errorf("it began before %v", until)
			}
		},
		"more failures than allowed stop the plan, and a changed plan goes on": func(t *testing.T, w *world) {
			a, b := w.member("a", nil), w.member("b", nil)
			c := w.member("c", nil)
			w.plan("k3s", func(s *v1.PlanSpec) { s.Rollout = &v1.Rollout{MaxConcurrentClusters: 2} })
			w.has(a, "k3s", false)
			w.has(b, "k3s", false)
			says(a, "k3s", v1.ReasonNodeFailed, 3, 1, 0, 1)
			s := w.becomes("k3s", v1.ReasonTooManyFailures)
			if !meta.IsStatusConditionTrue(s.Conditions, v1.ConditionStalled) || len(s.Failures) != 1 || s.Failures[0].Cluster != "a" || s.Failures[0].Log != "boom" {
				t.Errorf("status %+v", s)
			}
			w.has(b, "k3s", true)
			w.has(a, "k3s", false) // its own agent begins no further node; so that its failures can be mended there
			w.lacks(c, "k3s")
			w.change("k3s", func(s *v1.PlanSpec) { s.Rollout.MaxFailedClusters = 1 })
			w.has(b, "k3s", false)
			w.has(c, "k3s", false) // a failed one takes no place
			w.change("k3s", func(s *v1.PlanSpec) { s.Version = "v1.36.4+k3s1" })
			w.eventually(func(context.Context) error {
				if p := delivered(a, "k3s"); p.Spec.Version != "v1.36.4+k3s1" || !p.Spec.Paused {
					return fmt.Errorf("a has %s, paused %v", p.Spec.Version, p.Spec.Paused)
				}
				return nil
			})
			for _, m := range []*testkit.Agent{a, b, c} {
				w.has(m, "k3s", true)
				says(m, "k3s", v1.ReasonPaused, 3, 0)
			}
			w.has(a, "k3s", false)
			w.has(b, "k3s", false)
			says(a, "k3s", v1.ReasonComplete, 3, 3)
			says(b, "k3s", v1.ReasonComplete, 3, 3)
			w.has(c, "k3s", false)
			says(c, "k3s", v1.ReasonComplete, 3, 3)
			if s := w.becomes("k3s", v1.ReasonComplete); len(s.Failures) > 0 || len(s.Members) > 0 {
				t.Errorf("status %+v", s)
			}
		},
		"pause holds all, and resuming goes on": func(t *testing.T, w *world) {
			a, b := w.member("a", nil), w.member("b", nil)
			w.plan("k3s")
			w.has(a, "k3s", false)
			w.change("k3s", func(s *v1.PlanSpec) { s.Paused = true })
			w.has(a, "k3s", true)
			says(a, "k3s", v1.ReasonPaused, 1, 0)
			w.becomes("k3s", v1.ReasonPaused)
			w.change("k3s", func(s *v1.PlanSpec) { s.Paused = false })
			w.has(a, "k3s", false)
			says(a, "k3s", v1.ReasonComplete, 1, 1)
			w.has(b, "k3s", false)
		},
		"members that hold plans off, by a label on the hub or by themselves, are skipped and begin when they take part": func(t *testing.T, w *world) {
			a := w.member("a", map[string]string{v1.LabelPlansHold: "true"})
			w.cluster("b", nil)
			sets := testkit.NewSets()
			sets.Plans.Hold("the window is closed")
			b := w.connect("b", sets)
			c := w.member("c", nil)
			off := w.member("d", map[string]string{v1.PlanLabel("k3s"): v1.PlanDisabled})
			w.plan("k3s")
			w.has(c, "k3s", false)
			says(c, "k3s", v1.ReasonComplete, 1, 1)
			s := w.becomes("k3s", v1.ReasonHeld)
			if s.Clusters.Summary != "1/3" || s.Clusters.Held != 2 {
				t.Errorf("status %+v", s.Clusters)
			}
			for _, m := range []*testkit.Agent{a, b, off} {
				w.lacks(m, "k3s")
			}
			sets.Plans.Hold("")
			w.has(b, "k3s", false)
			says(b, "k3s", v1.ReasonComplete, 1, 1)
			w.relabel("a", map[string]string{v1.LabelPlansHold: "false"})
			w.has(a, "k3s", false)
		},
		"in a closed window no member begins": func(t *testing.T, w *world) {
			a := w.member("a", nil)
			tomorrow := time.Now().UTC().AddDate(0, 0, 2).Weekday().String()
			w.plan("k3s", func(s *v1.PlanSpec) { s.Window = &v1.TimeWindow{Days: []v1.Day{v1.Day(tomorrow)}} })
			w.becomes("k3s", v1.ReasonAwaitingWindow)
			w.lacks(a, "k3s")
			w.change("k3s", func(s *v1.PlanSpec) { s.Window = nil })
			w.has(a, "k3s", false)
		},
		"a new leader goes on from the claims alone": func(t *testing.T, w *world) {
			a, b := w.member("a", nil), w.member("b", nil)
			w.plan("k3s")
			w.has(a, "k3s", false)
			says(a, "k3s", v1.ReasonApplying, 2, 1, 1)
			w.reads("k3s", func(s *v1.PlanStatus) bool { return s.Nodes != nil && s.Nodes.Complete == 1 })
			p := &v1.Plan{ObjectMeta: w.meta("k3s")}
			w.stop()
			if err := w.Client.Status().Patch(t.Context(), p, client.RawPatch("application/merge-patch+json", []byte(`{"status":null}`))); err != nil {
				t.Fatal(err)
			}
			calls := len(a.Sets.Calls())
			says(a, "k3s", v1.ReasonApplying, 2, 2, 0)
			w.lead()
			w.reads("k3s", func(s *v1.PlanStatus) bool { return s.Nodes != nil && s.Nodes.Complete == 2 })
			if got := a.Sets.Calls(); len(got) != calls {
				t.Errorf("the member was sent again what it has: %v", got[calls:])
			}
			w.lacks(b, "k3s")
			says(a, "k3s", v1.ReasonComplete, 2, 2)
			w.has(b, "k3s", false)
		},
		"claims of a plan that was deleted while no manager led are released": func(t *testing.T, w *world) {
			a := w.member("a", nil)
			w.plan("k3s")
			w.has(a, "k3s", false)
			w.stop()
			if err := w.Client.Delete(t.Context(), &v1.Plan{ObjectMeta: w.meta("k3s")}); err != nil {
				t.Fatal(err)
			}
			w.lead()
			w.eventually(func(context.Context) error {
				if claim, _ := w.claim("a", "k3s"); claim != "" || delivered(a, "k3s") != nil {
					return fmt.Errorf("claim %q, delivered %v", claim, delivered(a, "k3s"))
				}
				return nil
			})
		},
		"secrets go along under a name of the plan's, and a change of one does all members again": func(t *testing.T, w *world) {
			a := w.member("a", nil)
			w.plan("k3s", func(s *v1.PlanSpec) { s.Secrets = []v1.PlanSecret{{Name: "token"}} })
			if s := w.becomes("k3s", v1.ReasonSecretNotFound); !meta.IsStatusConditionTrue(s.Conditions, v1.ConditionStalled) {
				t.Errorf("status %+v", s)
			}
			w.lacks(a, "k3s")
			secret := &corev1.Secret{ObjectMeta: w.meta("token"), Data: map[string][]byte{"x": []byte("1")}}
			secret.Labels = map[string]string{v1.LabelPlansUse: "true"}
			w.Apply(t, secret)
			w.has(a, "k3s", false)
			set, _ := a.Sets.Get("plan/k3s")
			if len(set.Content.Objects) != 2 || set.Content.Objects[1].GetName() != "k3s.token" || set.Content.Objects[1].GetNamespace() != v1.PlansNamespace ||
				delivered(a, "k3s").Spec.Secrets[0].Name != "k3s.token" || delivered(a, "k3s").Spec.Secrets[0].Path != "token" {
				t.Errorf("delivered %+v", set.Content.Objects)
			}
			says(a, "k3s", v1.ReasonComplete, 1, 1)
			w.becomes("k3s", v1.ReasonComplete)
			was := delivered(a, "k3s").Annotations[v1.AnnotationRevision]
			secret.Data["x"] = []byte("2")
			if err := w.Client.Update(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
			w.eventually(func(context.Context) error {
				if p := delivered(a, "k3s"); p.Annotations[v1.AnnotationRevision] == was || p.Spec.Paused {
					return fmt.Errorf("delivered %v, paused %v", p.Annotations, p.Spec.Paused)
				}
				return nil
			})
		},
		"CVE-2021-36775, CVE-2023-32199: a Secret goes from members with its label, and with the plan": func(t *testing.T, w *world) {
			a := w.member("a", nil)
			secret := &corev1.Secret{ObjectMeta: w.meta("token"), Data: map[string][]byte{"x": []byte("hunter2")}}
			secret.Labels = map[string]string{v1.LabelPlansUse: "true"}
			w.Apply(t, secret)
			w.plan("k3s", func(s *v1.PlanSpec) { s.Secrets = []v1.PlanSecret{{Name: "token"}} })
			w.has(a, "k3s", false)
			says(a, "k3s", v1.ReasonApplying, 1, 0, 1)
			w.reads("k3s", func(s *v1.PlanStatus) bool { return len(s.Applying) == 1 })
			w.update(secret, func() { secret.Labels[v1.LabelPlansUse] = "false" })
			w.becomes("k3s", v1.ReasonSecretNotFound)
			copies := func(want int) {
				t.Helper()
				w.eventually(func(context.Context) error {
					set, there := a.Sets.Get("plan/k3s")
					if !there || len(set.Content.Objects) != 1+want || delivered(a, "k3s").Spec.Paused != (want == 0) {
						return fmt.Errorf("the member has %+v", set.Content.Objects)
					}
					return nil
				})
			}
			copies(0)
			w.update(secret, func() { secret.Labels[v1.LabelPlansUse] = "true" })
			copies(1)
			w.delete(&v1.Plan{ObjectMeta: w.meta("k3s")})
			w.eventually(func(context.Context) error {
				if set, there := a.Sets.Get("plan/k3s"); there {
					return fmt.Errorf("the member has %+v", set.Content.Objects)
				}
				return nil
			})
		},
		"CVE-2021-36782, CVE-2022-45157, CVE-2024-52284: no Secret of a plan shows in a status, an annotation or an event": func(t *testing.T, w *world) {
			a := w.member("a", nil)
			secret := &corev1.Secret{ObjectMeta: w.meta("token"), Data: map[string][]byte{"x": []byte("hunter2")}}
			secret.Labels = map[string]string{v1.LabelPlansUse: "true"}
			w.Apply(t, secret)
			a.Sets.Become(func(protocol.Set) protocol.SetState {
				return protocol.SetState{Phase: protocol.SetFailed, Objects: []protocol.SetObject{{Object: "Secret drover-plans/k3s.token", Phase: protocol.SetFailed, Message: "refused"}}, Failed: 1}
			})
			w.plan("k3s", func(s *v1.PlanSpec) { s.Secrets = []v1.PlanSecret{{Name: "token"}} })
			w.reads("k3s", func(s *v1.PlanStatus) bool {
				return len(s.Members) == 1 && s.Members[0].Reason == v1.ReasonDeliveryFailed
			})
			w.showsNo("hunter2", &v1.PlanList{}, &v1.ClusterList{}, &corev1.EventList{}, &corev1.ConfigMapList{})
		},
		"CVE-2024-22031: two plans of one name in two workspaces share nothing": func(t *testing.T, w *world) {
			a := w.member("a", nil)
			other := w.other
			foreign := &v1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: other, Name: "k3s"}}
			foreign.Spec.ClusterSelector, foreign.Spec.Version, foreign.Spec.Upgrade.Image = &metav1.LabelSelector{}, "v1", "evil"
			w.Apply(t, foreign)
			w.eventually(func(ctx context.Context) error {
				if err := w.Client.Get(ctx, client.ObjectKeyFromObject(foreign), foreign); err != nil {
					return err
				}
				if c := meta.FindStatusCondition(foreign.Status.Conditions, v1.ConditionComplete); c == nil || c.Reason != v1.ReasonNoClusters {
					return fmt.Errorf("status %+v", foreign.Status)
				}
				return nil
			})
			w.plan("k3s")
			w.has(a, "k3s", false)
			if image := delivered(a, "k3s").Spec.Upgrade.Image; image == "evil" {
				t.Error("the member has the plan of another workspace")
			}
			w.delete(foreign)
			w.reads("k3s", func(s *v1.PlanStatus) bool { return s.Clusters != nil && s.Clusters.Applying == 1 })
			w.has(a, "k3s", false)
		},
		"the manager's configuration decides where channels may be": func(t *testing.T, w *world) {
			asked := false
			server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
			defer server.Close()
			refused := func(name, message string) {
				w.plan(name, func(s *v1.PlanSpec) { s.Version, s.Channel = "", server.URL+"/"+name })
				w.reads(name, func(s *v1.PlanStatus) bool {
					c := meta.FindStatusCondition(s.Conditions, v1.ConditionLatestResolved)
					return c != nil && c.Reason == v1.ReasonChannelFailed && strings.Contains(c.Message, message)
				})
			}
			refused("public", "or set channels.private in the manager's configuration")
			w.stop()
			w.settings = ", channels: {private: true}"
			w.lead()
			refused("private", "use one that is not of this machine")
			if asked {
				t.Error("a server on this machine was asked")
			}
		},
		"a member that is away is passed over, and one that goes away at work keeps its place": func(t *testing.T, w *world) {
			w.cluster("a", nil)
			b, c := w.member("b", nil), w.member("c", nil)
			w.plan("k3s")
			w.has(b, "k3s", false)
			b.Kill()
			w.reads("k3s", func(s *v1.PlanStatus) bool { return len(s.Members) == 1 && s.Members[0].Reason == v1.ReasonMembersAway })
			w.lacks(c, "k3s")
			b = w.connect("b", b.Sets)
			says(b, "k3s", v1.ReasonComplete, 1, 1)
			w.has(c, "k3s", false)
			says(c, "k3s", v1.ReasonComplete, 1, 1)
			w.becomes("k3s", v1.ReasonMembersAway)
			a := w.connect("a", testkit.NewSets())
			w.has(a, "k3s", false)
		},
		"a manager that has just begun passes over no member that may only not be back yet": func(t *testing.T, w *world) {
			w.stop()
			w.started = time.Now()
			w.lead()
			w.cluster("a", nil)
			b := w.member("b", nil)
			w.plan("k3s")
			w.becomes("k3s", v1.ReasonApplying)
			w.lacks(b, "k3s")
			a := w.connect("a", testkit.NewSets())
			w.has(a, "k3s", false)
			w.lacks(b, "k3s")
		},
		"a member that is deselected at work finishes what runs and is let go": func(t *testing.T, w *world) {
			a := w.member("a", map[string]string{"env": "prod"})
			w.plan("k3s", func(s *v1.PlanSpec) {
				s.ClusterSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}
			})
			w.has(a, "k3s", false)
			says(a, "k3s", v1.ReasonApplying, 2, 1, 1)
			w.relabel("a", map[string]string{"env": "dev"})
			w.has(a, "k3s", true)
			says(a, "k3s", v1.ReasonPaused, 2, 1)
			w.eventually(func(context.Context) error {
				if claim, _ := w.claim("a", "k3s"); claim != "" || delivered(a, "k3s") != nil {
					return fmt.Errorf("claim %q, delivered %v", claim, delivered(a, "k3s"))
				}
				return nil
			})
			w.becomes("k3s", v1.ReasonNoClusters)
		},
		"an agent that refuses the plan is named": func(t *testing.T, w *world) {
			a := w.member("a", nil)
			a.Sets.Answer(422)
			w.plan("k3s")
			s := w.reads("k3s", func(s *v1.PlanStatus) bool {
				return len(s.Members) == 1 && s.Members[0].Reason == v1.ReasonDeliveryFailed
			})
			if !strings.Contains(s.Members[0].Message, "422") {
				t.Errorf("status %+v", s.Members)
			}
		},
		"the hub ignores a plan that names no member": func(t *testing.T, w *world) {
			a := w.member("a", nil)
			w.plan("own", func(s *v1.PlanSpec) { s.ClusterSelector = nil })
			w.plan("k3s")
			w.has(a, "k3s", false)
			w.lacks(a, "own")
			p := &v1.Plan{}
			if err := w.Client.Get(t.Context(), client.ObjectKey{Namespace: w.workspace, Name: "own"}, p); err != nil || p.Status.ObservedGeneration != 0 {
				t.Errorf("%+v, %v", p.Status, err)
			}
		},
		"a plan for a Cluster that is not there says so": func(t *testing.T, w *world) {
			w.plan("k3s", func(s *v1.PlanSpec) { s.ClusterSelector, s.ClusterName = nil, "prod" })
			w.becomes("k3s", v1.ReasonClusterNotFound)
			a := w.member("prod", nil)
			w.has(a, "k3s", false)
		},
		"two plans on one member do not disturb each other's claims": func(t *testing.T, w *world) {
			a := w.member("a", nil)
			w.plan("k3s")
			w.plan("os")
			for _, name := range []string{"k3s", "os"} {
				w.has(a, name, false)
				says(a, name, v1.ReasonComplete, 1, 1)
			}
			w.becomes("k3s", v1.ReasonComplete)
			w.becomes("os", v1.ReasonComplete)
			for _, name := range []string{"k3s", "os"} {
				if claim, label := w.claim("a", name); claim == "" || label == "" {
					t.Errorf("%s: claim %q, label %q", name, claim, label)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newWorld(t, env))
		})
	}
}
