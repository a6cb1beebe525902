// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/test/testkit"
)

func manifest(kind, name, text string) string {
	return fmt.Sprintf(
		`{"apiVersion":"v1","data":{"text":%q},"kind":%q,"metadata":{"name":%q,"namespace":"default"}}`, text, kind, name)
}

// baseline creates a Baseline for the member prod with the given manifests.
func (w *world) baseline(name, role string, manifests []string, change ...func(*v1.Baseline)) *v1.Baseline {
	w.t.Helper()
	b := &v1.Baseline{ObjectMeta: w.meta(name), Spec: v1.BaselineSpec{
		ClusterTarget: v1.ClusterTarget{ClusterName: "prod"}, RoleTemplateName: role,
	}}
	for _, text := range manifests {
		b.Spec.Manifests = append(b.Spec.Manifests, v1.Manifest{RawExtension: runtime.RawExtension{Raw: []byte(text)}})
	}
	for _, f := range change {
		f(b)
	}
	w.Apply(w.t, b)
	return b
}

// edit changes an object on the hub.
func edit[T client.Object](w *world, object T, change func(T)) {
	w.t.Helper()
	w.eventually(func(ctx context.Context) error {
		if err := w.Client.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		change(object)
		return w.Client.Update(ctx, object)
	})
}

// healthy is the state that an agent reports for a set when everything is healthy.
func healthy(content set.Content) protocol.SetState {
	state := protocol.SetState{Phase: protocol.SetApplied}
	if b := content.Baseline; b != nil {
		n := int32(len(b.Objects))
		state.Baseline = &protocol.BaselineState{Revision: b.Revision, Objects: n, Healthy: n}
	}
	return state
}

// objects waits until a member has exactly these objects of a Baseline, and returns the set.
func (w *world) objects(agent *testkit.Agent, id string, want ...string) testkit.HeldSet {
	w.t.Helper()
	var held testkit.HeldSet
	w.eventually(func(context.Context) error {
		var found bool
		if held, found = agent.Sets.Get(id); !found || held.Content.Baseline == nil {
			return fmt.Errorf("the member has no %s", id)
		}
		var got []string
		for _, object := range held.Content.Baseline.Objects {
			got = append(got, string(object))
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("the member has %q, want %q", got, want)
		}
		return nil
	})
	return held
}

func TestABaselineReachesItsMember(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.Shared(t))
	agent := w.member("prod", nil)
	agent.Sets.Become(healthy)
	role := w.role("cni", v1.RoleTemplateSpec{})
	b := w.baseline("cni", role, []string{manifest("ConfigMap", "a", "x"), manifest("ConfigMap", "b", "y")})
	w.holds(agent, "baseline/cni", "role/"+role)
	held := w.objects(agent, "baseline/cni", manifest("ConfigMap", "a", "x"), manifest("ConfigMap", "b", "y"))
	binding := held.Content.Objects
	if len(binding) != 1 || binding[0].GetName() != "drover:baseline:cni:drover:cluster:"+role ||
		binding[0].GetKind() != "ClusterRoleBinding" {
		t.Errorf("the set has the objects %v, want only the binding of the Baseline's user", binding)
	}
	if c := held.Content.Baseline; c.Name != "cni" || c.Drift != v1.DriftRepair || c.Conflicts != v1.ConflictsReport ||
		c.DeletionPolicy != v1.DeletionDelete || c.HealthSeconds != 300 {
		t.Errorf("the set has %+v, want the defaults of the policies", c)
	}
	w.ready(b, v1.ReasonApplied)
	if s := b.Status; s.Revision != held.Content.Baseline.Revision || s.CompleteRevision != s.Revision || s.Objects != 2 ||
		s.Clusters.Summary != "1/1" {
		t.Errorf("the status is %+v, want the delivered revision with 2 objects in 1/1 clusters", s)
	}
	first := b.Status.Revision
	edit(w, b, func(b *v1.Baseline) { b.Spec.Manifests = b.Spec.Manifests[:1] })
	if held = w.objects(agent, "baseline/cni", manifest("ConfigMap", "a", "x")); held.Content.Baseline.Revision == first {
		t.Errorf("the revision is still %s, want another one for other objects", first)
	}
	if err := w.Client.Delete(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	w.holds(agent)
	if calls := agent.Sets.Calls(); !slices.Contains(calls, "DELETE baseline/cni") {
		t.Errorf("the hub sent %v, want DELETE baseline/cni", calls)
	}
}

func TestAMistakeKeepsTheObjectsOfMembers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.Shared(t))
	agent := w.member("prod", nil)
	agent.Sets.Become(healthy)
	role := w.role("cni", v1.RoleTemplateSpec{})
	b := w.baseline("cni", role, []string{manifest("ConfigMap", "a", "x")})
	before := w.objects(agent, "baseline/cni", manifest("ConfigMap", "a", "x"))
	for reason, change := range map[string]func(*v1.Baseline){
		v1.ReasonInvalidManifests: func(b *v1.Baseline) {
			b.Spec.Manifests = append(b.Spec.Manifests, b.Spec.Manifests[0])
		},
		v1.ReasonRoleTemplateNotFound: func(b *v1.Baseline) { b.Spec.RoleTemplateName = "no-such-template" },
	} {
		good := b.Spec.DeepCopy()
		edit(w, b, change)
		w.ready(b, reason)
		if now, found := agent.Sets.Get("baseline/cni"); !found || now.Digest != before.Digest {
			t.Errorf("%s: the member has %+v, want that it keeps its objects", reason, now)
		}
		edit(w, b, func(b *v1.Baseline) { b.Spec = *good })
		w.ready(b, v1.ReasonApplied)
	}
	if calls := agent.Sets.Calls(); slices.Contains(calls, "DELETE baseline/cni") {
		t.Errorf("the hub sent %v, want no DELETE", calls)
	}
}

func TestTheStatusOfABaselineNamesTheObjectsThatAreNotHealthy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.Shared(t))
	agent := w.member("prod", nil)
	state := protocol.SetState{
		Phase: protocol.SetProgressing, Objects: []protocol.SetObject{{Object: "Deployment a/b", Message: "0 of 1 replicas"}},
	}
	agent.Sets.Become(func(content set.Content) protocol.SetState {
		s := healthy(content)
		if s.Baseline != nil {
			s.Phase, s.Objects, s.Baseline.Healthy = state.Phase, state.Objects, 1
		}
		return s
	})
	role := w.role("cni", v1.RoleTemplateSpec{})
	b := w.baseline("cni", role, []string{manifest("ConfigMap", "a", "x"), manifest("ConfigMap", "b", "y")})
	w.ready(b, v1.ReasonApplying)
	w.says(b, v1.ConditionReady, "In cluster prod, 1 of 2 objects are healthy")
	held, _ := agent.Sets.Get("baseline/cni")
	agent.Sets.SetState(protocol.SetState{
		ID: held.ID, Digest: held.Digest, Phase: protocol.SetUnhealthy, Objects: state.Objects,
	})
	w.ready(b, v1.ReasonUnhealthy)
	w.says(b, v1.ConditionReady, "Deployment a/b: 0 of 1 replicas")
	if b.Status.CompleteRevision != "" {
		t.Errorf("the complete revision is %s, want none", b.Status.CompleteRevision)
	}
}

func TestAnAgentWithoutBaselinesIsTooOld(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.Shared(t))
	w.cluster("prod", nil)
	report := testkit.HealthyReport()
	report.Features = []string{protocol.FeatureSets}
	agent := testkit.ConnectAgentWith(t, report, testkit.NewSets())
	w.registry.Add(members.Peer{
		Cluster: protocol.ClusterRef{Namespace: w.workspace, Name: "prod", UID: "u"}, Key: "k",
	}, agent.Session)
	b := w.baseline("cni", w.role("cni", v1.RoleTemplateSpec{}), []string{manifest("ConfigMap", "a", "x")})
	w.ready(b, v1.ReasonAgentTooOld)
	if _, found := agent.Sets.Get("baseline/cni"); found {
		t.Error("the member has the set, want that it is not sent")
	}
}

func TestValuesReachOnlyMembersThatNeedThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.Shared(t))
	prod, test := w.member("prod", map[string]string{"site": "a"}), w.member("test", nil)
	role := w.role("cni", v1.RoleTemplateSpec{})
	b := w.baseline("cni", role, []string{manifest("ConfigMap", "a", "$(CLUSTER_NAME) $(LABEL:site)")})
	w.baseline("other", role, []string{manifest("ConfigMap", "b", "y")},
		func(b *v1.Baseline) { b.Spec.ClusterName = "test" })
	w.holds(prod, "baseline/cni", "role/"+role, "values")
	w.holds(test, "baseline/other", "role/"+role)
	values := func(want map[string]string) {
		t.Helper()
		w.eventually(func(context.Context) error {
			held, _ := prod.Sets.Get("values")
			for name, value := range want {
				if held.Content.Values[name] != value {
					return fmt.Errorf("the member has the values %v, want %v", held.Content.Values, want)
				}
			}
			return nil
		})
	}
	values(map[string]string{"CLUSTER_NAME": "prod", "LABEL:site": "a"})
	cluster := &v1.Cluster{ObjectMeta: w.meta("prod")}
	edit(w, cluster, func(c *v1.Cluster) { c.Labels = map[string]string{"site": "b"} })
	values(map[string]string{"LABEL:site": "b"})
	edit(w, b, func(b *v1.Baseline) { b.Spec.Manifests[0].Raw = []byte(manifest("ConfigMap", "a", "plain")) })
	w.holds(prod, "baseline/cni", "role/"+role)
}

// source is a ConfigMap or Secret with one manifest.
func (w *world) source(object client.Object, name, text string, label bool) {
	w.t.Helper()
	object.SetNamespace(w.workspace)
	object.SetName(name)
	if label {
		object.SetLabels(map[string]string{v1.LabelBaselinesUse: "true"})
	}
	switch o := object.(type) {
	case *corev1.ConfigMap:
		o.Data = map[string]string{"text": text}
	case *corev1.Secret:
		o.Data = map[string][]byte{"text": []byte(text)}
	}
	w.Apply(w.t, object)
}

func from(kind, name string) func(*v1.Baseline) {
	return func(b *v1.Baseline) { b.Spec.From = append(b.Spec.From, v1.BaselineSource{Kind: kind, Name: name}) }
}

func TestAChangedSourceReachesTheMembers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.Shared(t))
	agent := w.member("prod", nil)
	configMap, secret := &corev1.ConfigMap{}, &corev1.Secret{}
	first, second := manifest("ConfigMap", "a", "x"), manifest("Secret", "b", "y")
	w.source(configMap, "objects", "# comment\n---\n"+first, true)
	w.source(secret, "login", second, true)
	role := w.role("cni", v1.RoleTemplateSpec{})
	w.baseline("cni", role, nil, from("ConfigMap", "objects"), from("Secret", "login"))
	w.objects(agent, "baseline/cni", first, second)
	second = manifest("Secret", "b", "z")
	edit(w, secret, func(s *corev1.Secret) { s.Data["text"] = []byte(second) })
	w.objects(agent, "baseline/cni", first, second)
	first = manifest("ConfigMap", "a", "w")
	edit(w, configMap, func(c *corev1.ConfigMap) { c.Data["text"] = first })
	w.objects(agent, "baseline/cni", first, second)
}

// A hub without such Baselines needs no watch of ConfigMaps.
func TestSourcesAreWatchedFromTheFirstUseOn(t *testing.T) {
	var started []string
	start := func(kind string) func() error {
		return func() error { started = append(started, kind); return nil }
	}
	s := sources{Reader: testkit.Shared(t).Client, start: map[string]func() error{
		index.ConfigMapSource: start(index.ConfigMapSource), index.SecretSource: start(index.SecretSource),
	}}
	err := s.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "x"}, index.SourceMetadata(index.SecretSource))
	if !apierrors.IsNotFound(err) || !slices.Equal(started, []string{index.SecretSource}) {
		t.Errorf("got %v and the watches %v, want NotFound and only a watch of Secrets", err, started)
	}
}

func TestASourceWithoutTheLabelIsNotFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.Shared(t))
	agent := w.member("prod", nil)
	agent.Sets.Become(healthy)
	secret := &corev1.Secret{}
	w.source(secret, "login", manifest("Secret", "b", "y"), false)
	b := w.baseline("cni", w.role("cni", v1.RoleTemplateSpec{}), nil, from("Secret", "login"))
	w.ready(b, v1.ReasonSourceNotFound)
	edit(w, secret, func(s *corev1.Secret) { s.Labels = map[string]string{v1.LabelBaselinesUse: "true"} })
	w.ready(b, v1.ReasonApplied)
	edit(w, secret, func(s *corev1.Secret) { s.Labels = nil })
	w.ready(b, v1.ReasonSourceNotFound)
	w.objects(agent, "baseline/cni", manifest("Secret", "b", "y"))
}

func TestASecretOfDroverIsNeverASource(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.Shared(t))
	secret := &corev1.Secret{}
	w.source(secret, "prod-agent", manifest("Secret", "b", "y"), true)
	edit(w, secret, func(s *corev1.Secret) { s.Labels[v1.LabelSecretKind] = "agent" })
	w.cluster("prod", nil)
	b := w.baseline("cni", w.role("cni", v1.RoleTemplateSpec{}), nil, from("Secret", "prod-agent"))
	w.ready(b, v1.ReasonSecretRefused)
	w.says(b, v1.ConditionReady, "Secret prod-agent is not used")
}

// An error must not quote a Secret, because everyone who can read the Baseline can read the error.
func TestAnErrorInASecretDoesNotQuoteIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.Shared(t))
	w.source(&corev1.Secret{}, "login", "kind: [hunter2\npassword: hunter2", true)
	w.cluster("prod", nil)
	b := w.baseline("cni", w.role("cni", v1.RoleTemplateSpec{}), nil, from("Secret", "login"))
	w.ready(b, v1.ReasonInvalidManifests)
	w.says(b, v1.ConditionReady, "Secret login, key text")
	if text, err := json.Marshal(b.Status); err != nil || strings.Contains(string(text), "hunter2") {
		t.Errorf("the status is %s, %v, want nothing of the Secret's content", text, errors.Join(err))
	}
}

// version changes the manifests of a Baseline, waits until a member has them, and returns the revision.
func (w *world) version(b *v1.Baseline, agent *testkit.Agent, text string) string {
	w.t.Helper()
	edit(w, b, func(b *v1.Baseline) { b.Spec.Manifests[0].Raw = []byte(manifest("ConfigMap", "a", text)) })
	w.objects(agent, "baseline/"+b.Name, manifest("ConfigMap", "a", text))
	w.ready(b, v1.ReasonApplied)
	return b.Status.Revision
}

func TestARollbackDeliversTheOldObjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.Shared(t))
	agent := w.member("prod", nil)
	agent.Sets.Become(healthy)
	b := w.baseline("cni", w.role("cni", v1.RoleTemplateSpec{}), []string{manifest("ConfigMap", "a", "first")})
	w.ready(b, v1.ReasonApplied)
	first := b.Status.Revision
	second := w.version(b, agent, "second")
	w.stop()
	w.lead() // the history is on the hub, and not in a manager's memory
	edit(w, b, func(b *v1.Baseline) { b.Spec.Revision = first })
	w.objects(agent, "baseline/cni", manifest("ConfigMap", "a", "first"))
	w.ready(b, v1.ReasonApplied)
	var got []string
	for _, revision := range b.Status.History {
		got = append(got, revision.Revision)
	}
	if b.Status.Revision != first || !slices.Equal(got, []string{first, second}) {
		t.Errorf("got revision %s and history %v, want %s, and then %s", b.Status.Revision, got, first, second)
	}
	edit(w, b, func(b *v1.Baseline) { b.Spec.Revision = "0123456789abcdef" })
	w.ready(b, v1.ReasonRevisionNotFound)
	edit(w, b, func(b *v1.Baseline) { b.Spec.Revision = "" })
	w.objects(agent, "baseline/cni", manifest("ConfigMap", "a", "second"))
}

// A user who can write Secrets must not be able to decide what a Baseline applies.
func TestAChangedRevisionIsNotUsed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.Shared(t))
	agent := w.member("prod", nil)
	agent.Sets.Become(healthy)
	b := w.baseline("cni", w.role("cni", v1.RoleTemplateSpec{}), []string{manifest("ConfigMap", "a", "first")})
	w.ready(b, v1.ReasonApplied)
	first := b.Status.Revision
	w.version(b, agent, "second")
	secrets := map[string][]byte{}
	for _, name := range []string{"cni-revision-0", "cni-revision-1"} {
		edit(w, &corev1.Secret{ObjectMeta: w.meta(name)}, func(s *corev1.Secret) {
			if secrets[name] = s.Data["objects"]; name == "cni-revision-1" {
				s.Data["objects"] = secrets["cni-revision-0"]
			}
		})
	}
	edit(w, &corev1.Secret{ObjectMeta: w.meta("cni-revision-0")}, func(s *corev1.Secret) {
		s.Data["objects"] = secrets["cni-revision-1"]
	})
	edit(w, b, func(b *v1.Baseline) { b.Spec.Revision = first })
	w.ready(b, v1.ReasonRevisionNotFound)
	w.says(b, v1.ConditionReady, "Secret cni-revision-0 was changed")
	w.objects(agent, "baseline/cni", manifest("ConfigMap", "a", "second"))
}

func TestHistoryOverwritesTheOldest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.Shared(t))
	agent := w.member("prod", nil)
	agent.Sets.Become(healthy)
	w.Apply(t, &corev1.Secret{ObjectMeta: w.meta("cni-revision-1")}) // of a user
	b := w.baseline("cni", w.role("cni", v1.RoleTemplateSpec{}), []string{manifest("ConfigMap", "a", "0")})
	w.ready(b, v1.ReasonApplied)
	want := []string{b.Status.Revision}
	for i := range 6 {
		want = append(want, w.version(b, agent, fmt.Sprint(i+1)))
	}
	want = want[2:] // five Secrets are left
	w.eventually(func(ctx context.Context) error {
		var list corev1.SecretList
		if err := w.Client.List(ctx, &list, client.InNamespace(w.workspace),
			client.MatchingLabels{v1.LabelSecretKind: v1.SecretKindBaseline}); err != nil {
			return err
		}
		var got []string
		for _, s := range list.Items {
			got = append(got, s.Labels["cluster.drover.dev/revision"])
		}
		if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
			return fmt.Errorf("the hub keeps the revisions %v, want the newest %v", got, want)
		}
		return nil
	})
}

// prodAndCanary connects two members in which every Baseline becomes healthy. canaryFirst selects the second one.
func (w *world) prodAndCanary() (prod, canary *testkit.Agent) {
	w.t.Helper()
	prod, canary = w.member("prod", nil), w.member("canary", map[string]string{"canary": "true"})
	for _, agent := range []*testkit.Agent{prod, canary} {
		agent.Sets.Become(healthy)
	}
	return prod, canary
}

func TestARolloutReachesTheCanaryFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.Shared(t))
	prod, canary := w.prodAndCanary()
	first, second := manifest("ConfigMap", "a", "first"), manifest("ConfigMap", "a", "second")
	b := w.baseline("cni", w.role("cni", v1.RoleTemplateSpec{}), []string{first}, canaryFirst)
	w.objects(prod, "baseline/cni", first)
	w.ready(b, v1.ReasonApplied)
	canary.Sets.Become(func(content set.Content) protocol.SetState {
		state := healthy(content)
		if content.Baseline != nil {
			state.Phase = protocol.SetUnhealthy
		}
		return state
	})
	edit(w, b, func(b *v1.Baseline) { b.Spec.Manifests[0].Raw = []byte(second) })
	w.objects(canary, "baseline/cni", second)
	w.ready(b, v1.ReasonTooManyFailures)
	w.objects(prod, "baseline/cni", first)
	late := w.member("late", nil) // it joins in the meantime, and gets the revision that works
	late.Sets.Become(healthy)
	w.objects(late, "baseline/cni", first)
	held, _ := canary.Sets.Get("baseline/cni")
	n := int32(1)
	canary.Sets.SetState(protocol.SetState{ID: held.ID, Digest: held.Digest, Phase: protocol.SetApplied,
		Baseline: &protocol.BaselineState{Revision: held.Content.Baseline.Revision, Objects: n, Healthy: n}})
	w.objects(prod, "baseline/cni", second)
	w.objects(late, "baseline/cni", second)
	w.ready(b, v1.ReasonApplied)
	if s := b.Status; s.CompleteRevision != s.Revision || len(s.Waves) != 2 || s.Waves[1].Clusters.Complete != 2 {
		t.Errorf("the status is %+v, want a complete revision with two members in the last wave", s)
	}
}
