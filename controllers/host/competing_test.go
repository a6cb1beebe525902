// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/host"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/testkit"
)

func TestReplacedJoinSecretIsAConflict(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.reconcile()
	w.settings.Servers = []string{"https://moved.example.com"} // the command is another one
	var theirs *corev1.Secret
	w.r.Client = testkit.Competing(w.Client, func(ctx context.Context, _ any) bool {
		theirs = w.Replace(ctx, t, registration.RegistrationSecret(host.Member(w.name)))
		return true
	})
	if _, err := w.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: w.name}); !apierrors.IsConflict(err) {
		t.Errorf("got %v, want a conflict", err)
	}
	w.WantUnchanged(t, theirs)
	w.want(v1.HostWaitingToRegister, v1.ReasonAwaitingAgent) // a conflict is not a failure
	w.r.Client = w.Client
	w.reconcile()
	h := w.want(v1.HostWaitingToRegister, v1.ReasonSecretConflict)
	if ready := meta.FindStatusCondition(h.Status.Conditions, v1.ConditionReady); !strings.Contains(ready.Message, "run no command from it; delete it") {
		t.Errorf("the message is %q, want it to say what to do", ready.Message)
	}
	w.WantUnchanged(t, theirs)
}

func TestJoinedHostNeedsNoJoinSecret(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.reconcile()
	key := testkit.Key(t)
	w.connect(w.join(key), key, protocol.HostProgress{})
	w.reconcile()
	w.want(v1.HostAvailable, v1.ReasonHostAvailable)
	theirs := w.Replace(t.Context(), t, registration.RegistrationSecret(host.Member(w.name)))
	w.reconcile()
	h := w.want(v1.HostAvailable, v1.ReasonHostAvailable)
	if ready := meta.FindStatusCondition(h.Status.Conditions, v1.ConditionReady); !strings.Contains(ready.Message, "Secret "+theirs.Name+" is there and is not Drover's: run no command from it, and delete it") {
		t.Errorf("the message is %q, want it to say what to do about the Secret", ready.Message)
	}
	w.WantUnchanged(t, theirs)
}
