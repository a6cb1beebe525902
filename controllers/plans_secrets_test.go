// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

func testSecretsOfAPlan(t *testing.T, w *world) {
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
}

func testSecretOfAPlanGoes(t *testing.T, w *world) {
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
}

func testSecretsOfPlansShowNowhere(t *testing.T, w *world) {
	a := w.member("a", nil)
	secret := &corev1.Secret{ObjectMeta: w.meta("token"), Data: map[string][]byte{"x": []byte("hunter2")}}
	secret.Labels = map[string]string{v1.LabelPlansUse: "true"}
	w.Apply(t, secret)
	a.Sets.Become(func(set.Content) protocol.SetState {
		return protocol.SetState{Phase: protocol.SetFailed, Objects: []protocol.SetObject{{Object: "Secret drover-plans/k3s.token", Phase: protocol.SetFailed, Message: "refused"}}, Failed: 1}
	})
	w.plan("k3s", func(s *v1.PlanSpec) { s.Secrets = []v1.PlanSecret{{Name: "token"}} })
	w.reads("k3s", func(s *v1.PlanStatus) bool {
		return len(s.Members) == 1 && s.Members[0].Reason == v1.ReasonDeliveryFailed
	})
	w.showsNo("hunter2", &v1.PlanList{}, &v1.ClusterList{}, &corev1.EventList{}, &corev1.ConfigMapList{})
}
