// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration_test

import (
	"context"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/testkit"
)

// testForeignAgent: a user creates a Secret with the name of an agent's Secret just before the agent joins.
func testForeignAgent(w *world) {
	token, name := w.cluster("member", asIs), registration.AgentSecret(w.name("member"))
	theirs := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name},
		StringData: map[string]string{"a": "b"}}
	w.server.Writer = testkit.Competing(w.Client, func(context.Context, any) bool { w.Apply(w.t, theirs); return true })
	w.want(w.register(token, request(testkit.Key(w.t), token, memberUID)), http.StatusForbidden, v1.ReasonSecretConflict)
	if got := w.refusals(); got != "member "+v1.ReasonSecretConflict {
		w.t.Errorf("reported %q, want the Cluster to say that a Secret is in the way", got)
	}
	w.WantUnchanged(w.t, theirs)
}

// testClaimedToken: an editor, who has the right to delete the Secret of a token that no agent has used, waits for the
// moment when an agent joins. The policy lets editors delete a Secret only if it lacks the annotation.
func testClaimedToken(w *world) {
	token, name := w.cluster("member", asIs), registration.RegistrationSecret(w.name("member"))
	unmarked := func(ctx context.Context) bool {
		secret := &corev1.Secret{}
		return w.Client.Get(ctx, name, secret) == nil && secret.Annotations[v1.Group+"/token-used"] == ""
	}
	joins, deletable := false, false
	w.server.Writer = testkit.Competing(w.Client, func(ctx context.Context, object any) bool {
		secret, ok := object.(*corev1.Secret)
		joins = ok && secret.Labels[v1.LabelSecretKind] == v1.SecretKindAgent
		deletable = joins && unmarked(ctx)
		return joins
	})
	w.want(w.register(token, request(testkit.Key(w.t), token, memberUID)), http.StatusOK, "")
	if !joins || deletable || unmarked(w.t.Context()) {
		w.t.Errorf("an agent joined: %t, the editor could delete its token before: %t, and after: %t; want the token "+
			"guarded before the join", joins, deletable, unmarked(w.t.Context()))
	}
}

// testDeletedToken: the Secret of a token is deleted just before an agent joins with it.
func testDeletedToken(w *world) {
	token, name := w.cluster("member", asIs), registration.RegistrationSecret(w.name("member"))
	w.server.Writer = testkit.Competing(w.Client, func(ctx context.Context, _ any) bool {
		if err := w.Client.Delete(ctx,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}); err != nil {
			w.t.Error(err)
		}
		return true
	})
	w.want(w.register(token, request(testkit.Key(w.t), token, memberUID)), http.StatusUnauthorized, v1.ReasonTokenInvalid)
	if err := w.Client.Get(w.t.Context(), registration.AgentSecret(w.name("member")),
		&corev1.Secret{}); !apierrors.IsNotFound(err) {
		w.t.Errorf("read the agent's Secret: %v, want no agent to join with a deleted token", err)
	}
}
