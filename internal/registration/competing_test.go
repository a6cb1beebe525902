// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration_test

import (
	"context"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/testkit"
)

// testForeignAgent: a user makes a Secret of the name of an agent's, just before that joins.
func testForeignAgent(w *world) {
	token, name := w.cluster("member", asIs), registration.AgentSecret(w.name("member"))
	theirs := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}, StringData: map[string]string{"a": "b"}}
	w.server.Writer = testkit.Competing(w.Client, func(context.Context, any) bool { w.Apply(w.t, theirs); return true })
	w.want(w.register(token, request(testkit.Key(w.t), token, memberUID)), http.StatusForbidden, v1.ReasonSecretConflict)
	if got := w.refusals(); got != "member "+v1.ReasonSecretConflict {
		w.t.Errorf("told of %q, want the Cluster to say that a Secret is in the way", got)
	}
	w.WantUnchanged(w.t, theirs)
}
