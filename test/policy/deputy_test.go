// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/hosts"
	"github.com/drover-dev/drover/test/testkit"
)

// rounds is how many times each side of the race acts. An unprotected provisioner lost the race in the first round.
const rounds = 200

// testDeputy: a user without hosts/instructions loops deleting a Host's instructions and creating a Secret of its name
// with an instruction of theirs, while the provisioner, which has hosts/instructions, reads the instructions and writes
// them back. It must never write that instruction. The drover-secrets policy refuses the user's Secret; the provisioner
// must not depend on that, so the race takes place in a namespace without it.
func testDeputy(t *testing.T, h *fixture) {
	const planted = "planted"
	workspace := h.unguarded(t)
	h.bindProvisioner(t, workspace)
	h.allow(t, "mallory", workspace, may("secrets", "get", "create", "delete"))
	host := &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "deputy"}}
	me := v1.HostConsumerRef{APIVersion: v1.GroupVersion.String(), Kind: "DroverMachine", Name: "m1", UID: "u"}
	host.Spec.ConsumerRef = &me
	h.Apply(t, host)
	hub := hosts.Hub{Client: h.provisioner(t), Live: h.provisioner(t)}
	first := protocol.HostInstructions{Instructions: []protocol.HostInstruction{{ID: "bootstrap", Command: []string{"true"}}}}
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error { // the policy is in force for a moment longer
		_, err := hub.Give(ctx, host, me, first)
		return err
	})
	name := client.ObjectKey{Namespace: workspace, Name: "deputy" + v1.HostInstructionsSecretSuffix}
	made := &corev1.Secret{}
	if err := h.Client.Get(t.Context(), name, made); err != nil {
		t.Fatal(err)
	}
	fake := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: name.Namespace, Name: name.Name, Labels: made.Labels, Annotations: made.Annotations, OwnerReferences: made.OwnerReferences,
	}, Data: map[string][]byte{v1.HostInstructionsKey: []byte(strings.Replace(string(made.Data[v1.HostInstructionsKey]), `"instructions":[`, `"instructions":[{"id":"`+planted+`","command":["true"]},`, 1))}}
	changes, err := h.Client.Watch(t.Context(), &corev1.SecretList{}, client.InNamespace(name.Namespace), client.MatchingFields{"metadata.name": name.Name})
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Stop()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	var all sync.WaitGroup
	defer func() { stop(); all.Wait() }()
	mallory, opaque := h.as(t, "mallory"), atomic.Int64{}
	all.Go(func() {
		for ctx.Err() == nil {
			_ = mallory.Delete(ctx, fake.DeepCopy())
			// Leave the plan deleted for as long as the provisioner takes between its read and its write.
			_ = mallory.Get(ctx, name, &corev1.Secret{})
			if mallory.Create(ctx, fake.DeepCopy()) == nil {
				opaque.Add(1)
			}
		}
	})
	all.Go(func() {
		for n := 0; ctx.Err() == nil && (n < rounds || opaque.Load() < rounds/10); n++ {
			if plan, version, err := hub.Instructions(ctx, host); err == nil && plan != nil {
				plan.Instructions = append(plan.Instructions, protocol.HostInstruction{ID: "task", Command: []string{"true"}})
				_, _ = hub.ReplaceInstructions(ctx, host, me, *plan, version)
			}
		}
		stop()
	})
	for ended := false; !ended; {
		select {
		case <-ctx.Done():
			ended = true
		case event := <-changes.ResultChan():
			if now, ok := event.Object.(*corev1.Secret); ok && now.Type == v1.SecretTypeHostInstructions && strings.Contains(string(now.Data[v1.HostInstructionsKey]), planted) {
				t.Fatalf("the provisioner wrote %s, want no instruction of a user without hosts/instructions",
					now.Data[v1.HostInstructionsKey])
			}
		}
	}
	all.Wait()
	if opaque.Load() < rounds/10 {
		t.Errorf("the competing writer made %d Secrets, want at least %d: the race was not run", opaque.Load(), rounds/10)
	}
	if err := h.Client.Delete(t.Context(), fake); err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

// unguarded creates a namespace in which the drover-secrets policy does not apply.
func (h *fixture) unguarded(t *testing.T) string {
	t.Helper()
	const label = "test.drover.dev/unguarded"
	workspace := h.Workspace(t)
	testkit.Update(t, h.Client, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: workspace}}, func(n *corev1.Namespace) {
		n.Labels[label] = "true"
	})
	guard := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "drover-secrets"}}
	testkit.Update(t, h.Client, guard, func(b *admissionv1.ValidatingAdmissionPolicyBinding) {
		b.Spec.MatchResources = &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: label, Operator: metav1.LabelSelectorOpDoesNotExist}},
		}}
	})
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		return h.Client.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "a-host-plan"}}, client.DryRunAll)
	})
	return workspace
}
