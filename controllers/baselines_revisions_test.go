// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/test/testkit"
)

// canaryFirst makes a Baseline reach the member canary before the others.
func canaryFirst(b *v1.Baseline) {
	b.Spec.ClusterTarget = v1.ClusterTarget{ClusterSelector: &metav1.LabelSelector{}}
	b.Spec.Rollout = &v1.Rollout{Waves: []v1.Wave{{
		Name: "canary", ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"canary": "true"}},
	}}}
}

// unhealthy is the state that an agent reports for a Baseline of which no object is healthy.
func unhealthy(content set.Content) protocol.SetState {
	state := healthy(content)
	if content.Baseline != nil {
		state.Phase, state.Baseline.Healthy = protocol.SetUnhealthy, 0
	}
	return state
}

// Members that wait for their turn keep objects that were applied with the rights of the old role template.
func TestARolloutKeepsTheRoleOfTheOldRevision(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.Shared(t))
	prod, canary := w.prodAndCanary()
	first, second := manifest("ConfigMap", "a", "first"), manifest("ConfigMap", "a", "second")
	before, after := w.role("before", v1.RoleTemplateSpec{}), w.role("after", v1.RoleTemplateSpec{})
	b := w.baseline("cni", before, []string{first}, canaryFirst)
	w.ready(b, v1.ReasonApplied)
	canary.Sets.Become(unhealthy)
	edit(w, b, func(b *v1.Baseline) {
		b.Spec.RoleTemplateName, b.Spec.Manifests[0].Raw = after, []byte(second)
	})
	w.objects(canary, "baseline/cni", second)
	w.ready(b, v1.ReasonTooManyFailures)
	w.holds(prod, "baseline/cni", "role/"+after, "role/"+before)
	w.objects(prod, "baseline/cni", first)
	held, _ := canary.Sets.Get("baseline/cni")
	state := healthy(held.Content)
	state.ID, state.Digest = held.ID, held.Digest
	canary.Sets.SetState(state)
	w.objects(prod, "baseline/cni", second)
	w.ready(b, v1.ReasonApplied)
	w.holds(prod, "baseline/cni", "role/"+after)
	w.holds(canary, "baseline/cni", "role/"+after)
}

func TestAMistakeKeepsTheRoleOfMembers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.Shared(t))
	agent := w.member("prod", nil)
	agent.Sets.Become(healthy)
	role := w.role("cni", v1.RoleTemplateSpec{})
	b := w.baseline("cni", role, []string{manifest("ConfigMap", "a", "x")})
	w.ready(b, v1.ReasonApplied)
	edit(w, b, func(b *v1.Baseline) { b.Spec.RoleTemplateName = "no-such-template" })
	w.ready(b, v1.ReasonRoleTemplateNotFound)
	w.holds(agent, "baseline/cni", "role/"+role)
	edit(w, b, func(b *v1.Baseline) {
		b.Spec.RoleTemplateName = role
		b.Spec.ClusterTarget = v1.ClusterTarget{ClusterSelector: &metav1.LabelSelector{
			MatchLabels: map[string]string{"not a key": "x"},
		}}
	})
	w.ready(b, v1.ReasonInvalidSelector)
	w.holds(agent, "baseline/cni", "role/"+role)
}

func TestARevisionWithAnotherRoleTemplateIsNotUsed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.Shared(t))
	agent := w.member("prod", nil)
	agent.Sets.Become(healthy)
	before, after := w.role("before", v1.RoleTemplateSpec{}), w.role("after", v1.RoleTemplateSpec{})
	b := w.baseline("cni", before, []string{manifest("ConfigMap", "a", "first")})
	w.ready(b, v1.ReasonApplied)
	first := b.Status.Revision
	edit(w, b, func(b *v1.Baseline) { b.Spec.RoleTemplateName = after })
	w.version(b, agent, "second")
	edit(w, b, func(b *v1.Baseline) { b.Spec.Revision = first })
	w.ready(b, v1.ReasonRevisionNotFound)
	w.says(b, v1.ConditionReady, "set roleTemplateName to "+before)
	w.objects(agent, "baseline/cni", manifest("ConfigMap", "a", "second"))
	edit(w, b, func(b *v1.Baseline) { b.Spec.RoleTemplateName = before })
	w.objects(agent, "baseline/cni", manifest("ConfigMap", "a", "first"))
	w.ready(b, v1.ReasonApplied)
	if s := b.Status; s.Revision != first || s.CompleteRevision != first || s.History[0].RoleTemplateName != before ||
		s.History[1].RoleTemplateName != after {
		t.Errorf("the status is %+v, want revision %s, which is complete, and the role templates of both revisions", s, first)
	}
}

// During a rollout, a new member gets the last complete revision with the role template of that revision.
func TestANewMemberGetsTheRoleTemplateOfItsRevision(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.Shared(t))
	canary := w.member("canary", map[string]string{"canary": "true"})
	canary.Sets.Become(healthy)
	before, after := w.role("before", v1.RoleTemplateSpec{}), w.role("after", v1.RoleTemplateSpec{})
	first := manifest("ConfigMap", "a", "first")
	b := w.baseline("cni", before, []string{first}, canaryFirst)
	w.ready(b, v1.ReasonApplied)
	complete := b.Status.Revision
	canary.Sets.Become(unhealthy)
	edit(w, b, func(b *v1.Baseline) {
		b.Spec.RoleTemplateName, b.Spec.Manifests[0].Raw = after, []byte(manifest("ConfigMap", "a", "second"))
	})
	w.ready(b, v1.ReasonTooManyFailures)
	late := w.member("late", nil)
	held := w.objects(late, "baseline/cni", first)
	binding, revision := held.Content.Objects[0].GetName(), held.Content.Baseline.Revision
	if want := "drover:baseline:cni:drover:cluster:" + before; binding != want || revision != complete {
		t.Errorf("got the binding %s and revision %s, want %s and %s", binding, revision, want, complete)
	}
}

// The garbage collector deletes the revisions of a deleted Baseline only after a while.
func TestARevisionOfAnEarlierBaselineIsNotUsed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.Shared(t))
	agent := w.member("prod", nil)
	agent.Sets.Become(healthy)
	role := w.role("cni", v1.RoleTemplateSpec{})
	b := w.baseline("cni", role, []string{manifest("ConfigMap", "a", "x")})
	w.ready(b, v1.ReasonApplied)
	w.delete(b)
	w.holds(agent)
	b = w.baseline("cni", role, []string{manifest("ConfigMap", "a", "x")})
	w.ready(b, v1.ReasonApplied)
	w.eventually(func(ctx context.Context) error {
		var list corev1.SecretList
		if err := w.Client.List(ctx, &list, client.InNamespace(w.workspace),
			client.MatchingLabels{v1.LabelSecretKind: v1.SecretKindBaseline}); err != nil {
			return err
		}
		for _, s := range list.Items {
			if s.OwnerReferences[0].UID == b.UID && s.Labels["cluster.drover.dev/revision"] == b.Status.Revision {
				return nil
			}
		}
		return fmt.Errorf("got %d Secrets, want one of the new Baseline with revision %s", len(list.Items), b.Status.Revision)
	})
}

func TestTheHistoryListsOnlyWhatTheHubKeeps(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.Shared(t))
	agent := w.member("prod", nil)
	agent.Sets.Become(healthy)
	for n := range v1.MaxBaselineRevisions - 2 { // of a user
		w.Apply(t, &corev1.Secret{ObjectMeta: w.meta(fmt.Sprint("cni-revision-", n))})
	}
	b := w.baseline("cni", w.role("cni", v1.RoleTemplateSpec{}), []string{manifest("ConfigMap", "a", "0")})
	w.ready(b, v1.ReasonApplied)
	second := w.version(b, agent, "1")
	third := w.version(b, agent, "2")
	var got []string
	for _, h := range b.Status.History {
		got = append(got, h.Revision)
	}
	if want := []string{third, second}; !slices.Equal(got, want) {
		t.Errorf("the history lists %v, want %v, because two Secrets are left", got, want)
	}
}
