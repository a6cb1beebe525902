// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"crypto/ed25519"
	"encoding/json"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/cluster"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/test/testkit"
)

// fleet is a workspace of three Clusters, a, b and c, with one agent each. The agent of a is in the first wave, and the
// others are in the last wave.
type fleet struct {
	*world
	of     map[string]*world
	agents map[string]*testkit.Agent
	keys   map[string]ed25519.PublicKey
	has    map[string]string // the digest of the Deployment that each agent runs
}

func newFleet(t *testing.T) *fleet {
	w := newWorld(t, testkit.Shared(t))
	w.r.Upgrades = &cluster.Upgrades{
		Client: client.NewNamespacedClient(w.Client, w.name.Namespace), Recorder: w.recorder, Now: w.clock.Now,
		Pace: func(int) rollout.Pace {
			return rollout.Pace{MaxConcurrent: 1, Waves: []rollout.Wave{{Name: "first", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"ring": "first"}}}}}
		},
	}
	f := &fleet{world: w, of: map[string]*world{}, agents: map[string]*testkit.Agent{}, keys: map[string]ed25519.PublicKey{}, has: map[string]string{}}
	f.lead("drover:one")
	for _, name := range []string{"c", "b", "a"} {
		one := *w
		one.name.Name = name
		f.of[name] = &one
		object := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: one.name.Namespace, Name: name}}
		if name == "a" {
			object.Labels = map[string]string{"ring": "first"}
		}
		w.Apply(t, object)
		one.reconcile()
		f.keys[name] = one.join()
		f.connects(name)
		f.runs(name, one.digest())
	}
	return f
}

// connects connects an agent, and waits until it has the hub's settings.
func (f *fleet) connects(name string) {
	f.t.Helper()
	one := f.of[name]
	f.agents[name] = one.connect(f.keys[name], testkit.HealthyReport())
	one.reconcile()
	one.until(func(s members.State) bool { return s.Report.SettingsDigest == f.settings.Digest() })
	one.reconcile()
}

// lead starts the leadership of a manager with a default image.
func (f *fleet) lead(image string) {
	f.t.Helper()
	f.r.Agent.Image = image
	if err := f.r.Lead(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	for _, name := range []string{"a", "b", "c"} {
		if f.of[name] != nil {
			f.of[name].reconcile()
		}
	}
}

// settle lets the time pass during which no upgrade starts.
func (f *fleet) settle() {
	f.t.Helper()
	f.pass()
	f.given("", "")
	f.clock.Advance(time.Minute)
}

// pass decides on turns, and reconciles all Clusters.
func (f *fleet) pass() {
	f.t.Helper()
	if _, err := f.r.Upgrades.Reconcile(f.t.Context(), ctrl.Request{}); err != nil {
		f.t.Fatal(err)
	}
	for _, name := range []string{"a", "b", "c"} {
		f.of[name].reconcile()
	}
}

// given checks that only one agent has received a Deployment with the given image, and returns the digest of that
// Deployment. An empty name means that no agent has received one.
func (f *fleet) given(to, image string) (digest string) {
	f.t.Helper()
	for name, agent := range f.agents {
		if name != to {
			if len(agent.Deployments) > 0 {
				f.t.Errorf("%s was given %s, want that only %q is given one", name, <-agent.Deployments, to)
			}
			continue
		}
		select {
		case raw := <-agent.Deployments:
			d := &appsv1.Deployment{}
			if err := json.Unmarshal(raw, d); err != nil {
				f.t.Fatal(err)
			}
			if got := d.Spec.Template.Spec.Containers[0].Image; got != image {
				f.t.Errorf("%s was given the image %s, want %s", name, got, image)
			}
			digest = d.Spec.Template.Annotations[v1.AnnotationAgentDigest]
		case <-time.After(testkit.Patience * 10 * time.Second):
			f.t.Fatalf("%s was given no Deployment", name)
		}
	}
	return digest
}

// runs makes an agent report a Deployment that is rolled out.
func (f *fleet) runs(name, digest string) {
	f.t.Helper()
	f.has[name] = digest
	f.of[name].says(f.agents[name], protocol.Deployment{Digest: digest, RolledOut: true})
}

// restores makes an agent report that it has restored its previous Deployment.
func (f *fleet) restores(name, failed string) {
	f.t.Helper()
	f.of[name].says(f.agents[name], protocol.Deployment{Digest: f.has[name], RolledOut: true, Failed: failed, Message: "ImagePullBackOff"})
}

func (f *fleet) agent(name string) *v1.AgentStatus { return f.of[name].cluster().Status.Agent }

func TestNewImageReachesAgentsInStages(t *testing.T) {
	f := newFleet(t)
	f.settle()
	f.pass()
	f.given("", "")
	for name, w := range f.of {
		w.agentIs(metav1.ConditionTrue, v1.ReasonAgentUpdated)
		if a := f.agent(name); a.Image != "drover:one" || a.WantedImage != "" || a.Upgrade != nil {
			t.Errorf("the agent of %s is %+v, want that it has its image and no upgrade", name, a)
		}
	}

	f.lead("drover:two")
	f.settle()
	f.pass()
	two := f.given("a", "drover:two")
	if message := f.of["b"].agentIs(metav1.ConditionFalse, v1.ReasonAgentWaiting); !strings.Contains(message, "to get image drover:two") {
		t.Errorf("the message is %q, want the image that it waits for", message)
	}
	if a := f.agent("a"); a.Upgrade == nil || a.Upgrade.Wave != "first" || a.WantedImage != "drover:two" || a.Image != "drover:one" {
		t.Errorf("the agent of a is %+v, want it in the wave first on its way to drover:two", a)
	}
	f.pass()
	f.given("", "")

	c := f.of["b"].cluster() // a change to the spec does not wait, and does not change the image
	c.Spec.Agent.Replicas = new(int32(3))
	if err := f.Client.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	f.pass()
	three := f.given("b", "drover:one")
	f.of["b"].agentIs(metav1.ConditionFalse, v1.ReasonAgentUpdating)
	f.runs("b", three)
	f.pass()
	f.of["b"].agentIs(metav1.ConditionFalse, v1.ReasonAgentWaiting)
	f.given("", "")

	f.runs("a", two)
	if a := f.agent("a"); a.Upgrade.Complete == nil || a.Image != "drover:two" || a.WantedImage != "" {
		t.Errorf("the agent of a is %+v, want it complete", a)
	}
	f.pass()
	f.restores("b", f.given("b", "drover:two")) // one at a time: c waits
	f.of["b"].agentIs(metav1.ConditionFalse, v1.ReasonAgentRolledBack)
	if a := f.agent("b"); a.Upgrade.Failed == nil || a.Upgrade.Wave != rollout.Rest {
		t.Errorf("the agent of b is %+v, want it failed in the last wave", a)
	}
	f.pass()
	f.expectEventOnce("Warning " + v1.ReasonAgentRolloutStopped)
	f.pass()
	f.given("", "")

	f.lead("drover:two") // another leader stops, too
	f.settle()
	f.pass()
	f.given("", "")
	f.of["c"].agentIs(metav1.ConditionFalse, v1.ReasonAgentWaiting)

	f.lead("drover:one") // the hub is downgraded again; only upgraded agents are restarted, and only once
	f.settle()
	f.of["c"].agentIs(metav1.ConditionTrue, v1.ReasonAgentUpdated)
	f.of["b"].agentIs(metav1.ConditionTrue, v1.ReasonAgentUpdated)
	f.pass()
	f.runs("a", f.given("a", "drover:one"))
	for range 3 {
		f.clock.Advance(time.Hour)
		f.pass()
		f.given("", "")
	}
	version := f.of["a"].cluster().ResourceVersion
	f.pass()
	if f.of["a"].cluster().ResourceVersion != version {
		t.Error("an agent that is as it should be costs writes")
	}
}

func TestAgentThatDoesNotComeBackStopsTheUpgrade(t *testing.T) {
	f := newFleet(t)
	f.lead("drover:two")
	f.settle()
	f.pass()
	two := f.given("a", "drover:two")
	f.agents["a"].Kill()
	f.of["a"].until(func(s members.State) bool { return !s.Connected() })
	f.pass()
	if up := f.agent("a").Upgrade; up.Failed != nil {
		t.Errorf("the upgrade is %+v, want that it has time to come back", up)
	}
	f.clock.Advance(15 * time.Minute)
	f.pass()
	if up := f.agent("a").Upgrade; up.Failed == nil {
		t.Fatalf("the upgrade is %+v, want it failed", up)
	}
	f.pass()
	f.expectEventOnce("Warning " + v1.ReasonAgentRolloutStopped)
	delete(f.agents, "a")
	f.given("", "")

	f.connects("a")
	f.runs("a", two)
	if up := f.agent("a").Upgrade; up.Failed != nil || up.Complete == nil {
		t.Errorf("the upgrade is %+v, want it complete: it came back late", up)
	}
	f.pass()
	f.given("b", "drover:two")
}

func TestImageInTheSpecIsUsedExactly(t *testing.T) {
	f := newFleet(t)
	f.lead("drover:two")
	f.settle()
	c := f.of["c"].cluster()
	c.Spec.Agent.Image = "drover:chosen"
	if err := f.Client.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	f.of["c"].reconcile()
	f.runs("c", f.given("c", "drover:chosen"))
	f.of["c"].agentIs(metav1.ConditionTrue, v1.ReasonAgentUpdated)
	f.pass()
	f.runs("a", f.given("a", "drover:two"))
	f.pass()
	f.runs("b", f.given("b", "drover:two"))
	f.pass()
	f.given("", "")
	f.of["c"].agentIs(metav1.ConditionTrue, v1.ReasonAgentUpdated)
}
